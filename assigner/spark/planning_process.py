"""The process in which Spark plans a query's batches: what it is told by signals, and how it ends.

Spark closes its end of the socket and sends SIGTERM at the same time, so a reader that heeds the signal never gets to
say goodbye. Here the signal is ignored, the closed socket ends the process, and a watchdog ends it if it hangs.
A driver that died sends nothing: its executors may still be at work, so nobody says that they are done.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
DRAIN_SIGNAL = signal.SIGUSR1
_LONGEST_STOP = 20.0
"""Seconds."""


class RunnerProcess:
    def __init__(self) -> None:
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        self._is_runner = spec is not None and spec.name == RUNNER
        self._parent = os.getppid()

    def prepare(self, drain: Callable[[], None]) -> None:
        """Called on the main thread, as all of a reader's methods are. Elsewhere than in a runner it does nothing."""
        if self._is_runner:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(DRAIN_SIGNAL, lambda number, frame: drain())

    def is_orphaned(self) -> bool:
        return self._is_runner and os.getppid() != self._parent

    def end_in_time(self) -> None:
        """From now on the process has so long to end by itself."""
        if self._is_runner:
            watchdog = threading.Timer(_LONGEST_STOP, os._exit, (1,))
            watchdog.daemon = True
            watchdog.start()
