"""A server run as a child process that tests may kill, freeze and thaw."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Reads one line. A line disarms it; the end of the pipe says that the tests died, however that was.
_GUARD = 'read -r line || kill -9 "$0" 2>/dev/null'
_POLL_SECONDS = 0.02


class ServerFailedError(RuntimeError):
    """A server ended, or did not get ready in time; the message holds the end of its log."""


class ServerProcess:
    """A child process with its output in a log file. It never outlives the test process."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._name = Path(command[0]).name
        self._log = log
        with log.open("ab") as output:
            # A session of its own, so that Ctrl-C in the terminal reaches the tests alone.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process as a crash would: SIGKILL, nothing is flushed or said goodbye."""
        self._process.kill()
        self._ended()

    def terminate(self, timeout: float) -> int:
        """Ask the process to end (SIGTERM), kill it after *timeout* seconds, and return its status."""
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._ended()

    def wait(self, timeout: float) -> int:
        """Wait until the process has ended by itself, and return its status; one that does not is an error."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._failed(f"still ran after {timeout:g} s") from None
        return self._ended()

    def freeze(self) -> None:
        """Stop the process in its tracks (SIGSTOP); its connections stay open and silent."""
        self._process.send_signal(signal.SIGSTOP)
        # The signal is only on its way: wait until the last thread has stopped, or the process ended.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def wait_until(self, is_ready: Callable[[], bool], timeout: float) -> None:
        """Wait until *is_ready* says so; a process that ends before, or takes too long, is an error."""
        deadline = time.monotonic() + timeout
        while not is_ready():
            status = self._process.poll()
            if status is not None:
                raise self._failed(f"ended with status {status}")
            if time.monotonic() > deadline:
                raise self._failed(f"was not ready within {timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def log_tail(self, lines: int = 25) -> str:
        """Return the end of the log, under a line that says where the log is."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join([f"--- end of {self._log}", *text.splitlines()[-lines:]])

    def _failed(self, what: str) -> ServerFailedError:
        self.kill()
        return ServerFailedError(f"{self._name} {what}\n{self.log_tail()}")

    def _ended(self) -> int:
        status = self._process.wait()
        if self._guard.poll() is None:
            self._guard.communicate(b"\n")
        return status


def answers(url: str, expected: bytes = b"") -> bool:
    """Say whether an HTTP GET of *url* gives 200 with *expected* in the body."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200 and expected in response.read()
    except (urllib.error.URLError, OSError):
        return False
