"""The page about tokens does what it says: keys, tokens, a service that wants them, and a rotation, as typed there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerProcess
from tests.support.service_processes import UP_WITHIN, until
from tests.unit.project.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "issue-tokens.md"
ALICE = "assigner describe billing --token-file alice.token"


def typed() -> list[str]:
    """What the page tells to type, without the prompts, one command each."""
    text = "".join(blocks(PAGE, "console")).replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in text.splitlines()]


def program(folder: Path, port: int) -> str:
    """The command that runs the page's program."""
    (text,) = blocks(PAGE, "python")
    (folder / "worker.py").write_text(text.replace("127.0.0.1:50051", f"127.0.0.1:{port}"))
    return f"{sys.executable} -u worker.py"


class Shell:
    """A shell in a folder of its own, whose `assigner` is the one of this environment."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder / "here"
        self._logs = folder / "logs"
        self._logs.mkdir()
        programs = folder / "programs"
        self.folder.mkdir()
        programs.mkdir()
        program = programs / "assigner"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m assigner.cli "$@"\n')
        program.chmod(0o755)
        self._environment = {name: text for name, text in os.environ.items() if not name.startswith("ASSIGNER_")} | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ASSIGNER_ADDRESS": f"127.0.0.1:{port}",
            "ASSIGNER_GRPC_PORT": str(port),
            "ASSIGNER_HTTP_PORT": "0",
            "ASSIGNER_AUTH_RELOAD_INTERVAL": "0.1",
        }

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False
        )

    def succeeds(self, command: str) -> bool:
        return self.run(command).returncode == 0

    @contextmanager
    def running(self, command: str) -> Iterator[Path]:
        """Start the command, and end it with the block; its output is in the file."""
        output = self._logs / f"{len(list(self._logs.iterdir()))}.log"
        process = ServerProcess(["bash", "-c", f"cd {self.folder} && exec {command}"], output, self._environment)
        try:
            yield output
        finally:
            process.terminate(UP_WITHIN)

    def gets_partitions(self, consume: str) -> None:
        with self.running(consume) as output:
            until(lambda: "assigned" in output.read_text(), UP_WITHIN, "the consumer is assigned partitions")


@pytest.mark.processes
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    commands = typed()
    serve = next(command for command in commands if command.startswith("assigner serve"))
    consume = next(command for command in commands if command.startswith("assigner consume"))
    before, after = commands[: commands.index(serve)], commands[commands.index(serve) + 1 :]
    port = free_port()
    shell = Shell(tmp_path, port)
    for command in before:
        assert shell.succeeds(command), command
    with shell.running(serve):
        for command in after:
            if command == consume:
                shell.gets_partitions(consume)
                shell.gets_partitions(program(shell.folder, port))
            elif command == ALICE:
                until(lambda: shell.succeeds(ALICE), UP_WITHIN, "the service answers alice")
                refused = shell.run("assigner describe billing")
                assert (refused.returncode, "identity" in refused.stderr) == (1, True), refused.stderr
            else:
                done = shell.run(command)
                assert done.returncode == 0, f"{command}: {done.stderr}"
        # The last command removed alice's key; the worker's new token is of the next one.
        until(lambda: "no live key" in shell.run(ALICE).stderr, UP_WITHIN, "the old key's tokens end")
        shell.gets_partitions(consume)
