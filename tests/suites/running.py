"""Run a foreign test program with a limit: its output goes to a file, and nothing of it is left when it is over."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def run_limited(
    command: Sequence[str], *, directory: Path, log: Path, limit: float, environment: Mapping[str, str] | None = None
) -> int | None:
    """The exit status; None: it took longer than `limit` seconds, and was ended with all processes of its group."""
    everything = os.environ | dict(environment or {})
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=everything,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # The group outlasts its first process where that one left children behind.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
