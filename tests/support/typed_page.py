"""A page of the docs as a reader follows it: its programs saved in a folder of their own, its commands typed there.

`assigner` and `python` are those of this environment. The ports that the page names are replaced by free ones.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerProcess
from tests.support.service_processes import UP_WITHIN
from tests.unit.project.test_docs import ROOT, blocks

SERVICE = 50051
"""The port that pages have the service listen on."""
GATEWAY = 19_092
"""The port at which Kafka clients begin, where a page names it."""


class TypedPage:
    def __init__(self, page: Path, folder: Path, *ports: int) -> None:
        """`ports`: those that the page names, besides that of the service."""
        self.page = page
        self.folder = folder / "here"
        self._logs = folder / "logs"
        self.ports = {port: free_port() for port in (SERVICE, *ports)}
        programs = folder / "programs"
        for made in (self.folder, self._logs, programs):
            made.mkdir()
        for name, arguments in (("assigner", "-m assigner.cli"), ("python", "-u")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
            program.chmod(0o755)
        self._environment = {name: text for name, text in os.environ.items() if not name.startswith("ASSIGNER_")} | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ASSIGNER_ADDRESS": f"127.0.0.1:{self.ports[SERVICE]}",
            "ASSIGNER_GRPC_PORT": str(self.ports[SERVICE]),
            "ASSIGNER_HTTP_PORT": "0",
            **({"ASSIGNER_GATEWAY_PORT": str(self.ports[GATEWAY])} if GATEWAY in self.ports else {}),
        }

    def replaced(self, text: str) -> str:
        """The text with free ports instead of the page's."""
        return re.sub(r"\b\d{4,5}\b", lambda found: str(self.ports.get(int(found[0]), found[0])), text)

    def save(self, number: int, name: str) -> None:
        """Save one of the page's programs under a name that the page gives it."""
        assert f"`{name}`" in self.page.read_text()
        (self.folder / name).write_text(self.replaced(list(blocks(self.page, "python"))[number]))

    def typed(self) -> list[str]:
        """The commands of the page, in their order, without prompts and without what they print."""
        return [command for command, _ in self.shown()]

    def shown(self) -> list[tuple[str, list[str]]]:
        """The commands of the page, each with the lines that the page says it prints."""
        found: list[tuple[str, list[str]]] = []
        for block in blocks(self.page, "console"):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("$ "):
                    found.append((self.replaced(line.removeprefix("$ ")), []))
                else:
                    found[-1][1].append(line)
        return found

    def run(self, command: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end. `typed`: what it reads."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            input=typed,
            capture_output=True,
            text=True,
            check=False,
        )

    def prints(self, command: str, text: str) -> bool:
        """Whether the command succeeds and prints the text, among others."""
        done = self.run(command)
        return done.returncode == 0 and text in done.stdout

    @contextmanager
    def running(self, command: str) -> Iterator[ServerProcess]:
        """Start a command that goes on, and end it with the block, by SIGTERM, upon which it has to exit with 0."""
        log = self._logs / f"{len(list(self._logs.iterdir()))}.log"
        process = ServerProcess(["bash", "-c", f"cd {self.folder} && exec {command}"], log, self._environment)
        try:
            yield process
        finally:
            ended = process.terminate(UP_WITHIN)
        assert ended == 0, f"{command}: {log.read_text()}"

    @contextmanager
    def started(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command that ends by itself, and read what it prints by `communicate`."""
        with subprocess.Popen(
            ["bash", "-c", command], cwd=self.folder, env=self._environment, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()
