"""Controls the process in which Spark plans a query's batches: which signals it handles, and how it exits.

Spark closes its end of the socket and sends SIGTERM at the same time, so a reader that obeys the signal never leaves
the group. Here the signal is ignored, the closed socket ends the process, and a watchdog kills it if it hangs.
A driver that died sends nothing: its executors may still be writing, so the member must not report its release.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
DRAIN_SIGNAL = signal.SIGUSR1
_STOP_SECONDS = 20.0


class RunnerProcess:
    def __init__(self) -> None:
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        self._is_runner = spec is not None and spec.name == RUNNER
        self._parent = os.getppid()

    def prepare(self, drain: Callable[[], None]) -> None:
        """Install the signal handlers, if this process is a runner. Spark calls a reader on the main thread."""
        if self._is_runner:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(DRAIN_SIGNAL, lambda number, frame: drain())

    def is_orphaned(self) -> bool:
        return self._is_runner and os.getppid() != self._parent

    def start_watchdog(self) -> None:
        """Kill the process if it does not exit by itself in time."""
        if self._is_runner:
            watchdog = threading.Timer(_STOP_SECONDS, os._exit, (1,))
            watchdog.daemon = True
            watchdog.start()
