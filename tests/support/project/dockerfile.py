"""Reads a Dockerfile into its stages and steps, as far as the project's own uses the language."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One instruction, such as ``RUN`` with its arguments as they are written."""

    instruction: str
    arguments: str

    def words(self) -> list[str]:
        """Return the arguments as words, from the exec form where that is used."""
        if self.arguments.startswith("["):
            return [str(word) for word in json.loads(self.arguments)]
        return shlex.split(self.arguments)


@dataclass
class Stage:
    """What one ``FROM`` starts."""

    steps: list[Step] = field(default_factory=list)

    def all(self, instruction: str) -> list[Step]:
        return [step for step in self.steps if step.instruction == instruction]

    def only(self, instruction: str) -> Step:
        """Return the stage's one step of that kind."""
        (step,) = self.all(instruction)
        return step


def read_dockerfile(path: Path) -> list[Stage]:
    """Return the stages of the Dockerfile at *path*."""
    stages: list[Stage] = []
    for line in _logical_lines(path.read_text()):
        instruction, _, arguments = line.partition(" ")
        if instruction == "FROM":
            stages.append(Stage())
        elif stages:
            stages[-1].steps.append(Step(instruction, arguments.strip()))
    return stages


def _logical_lines(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]
