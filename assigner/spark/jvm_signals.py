"""SIGTERM where it arrives: under `spark-submit` the driver is a JVM, which would end at once and take Python with it.

The JVM is given another handler, which calls back into Python. Spark Connect has no JVM of its own, and needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _Handler:
    """A `sun.misc.SignalHandler`. Its names are Java's."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def handle(self, signal: Any) -> None:
        self._act()

    class Java:
        implements = ("sun.misc.SignalHandler",)


def on_sigterm_of_jvm(act: Callable[[], None]) -> None:
    """Call `act`, on a thread of its own, when the session's JVM gets SIGTERM. The JVM then lives on until it is told
    to stop, or Python ends."""
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    context = SparkContext._active_spark_context
    gateway = getattr(context, "_gateway", None)
    if gateway is None:
        return
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    signals = gateway.jvm.sun.misc.Signal
    signals.handle(signals("TERM"), _Handler(act))
