"""Drains a query: its running batch finishes, its partitions are handed over, then the query is stopped.

`query.stop()` alone would cut the batch short. The member is found through the query's own progress. On the driver's
machine it receives a signal, which works even if no other member is there to take the partitions; elsewhere (Spark
Connect) the assigner is asked to drain it, and then another member must exist.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from assigner.errors import AssignerError, InvalidInput
from assigner.logs import get_logger
from assigner.spark.member.admin_calls import ask_to_drain, describe_at
from assigner.spark.options import Tls
from assigner.spark.planning_process import DRAIN_SIGNAL, RUNNER
from assigner.spark.positions import OWNER_KEY

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 0.1

_log = get_logger(__name__)


class MemberAddress(msgspec.Struct, frozen=True):
    """The process of a query's member, as the reader reports it with each progress event."""

    assigner: str
    group: str
    member: str
    session: str
    host: str
    pid: int


class NotDrained(AssignerError):
    """The timeout was too short. The query still runs, and handoffs that began go on."""


def drain(query: StreamingQuery, timeout: float = 120.0, *, tls: Tls | None = None, token_file: str = "") -> None:
    """Drain a query; returns when it has stopped and owns nothing. `tls`, `token_file`: as in the source's options."""
    deadline = time.monotonic() + timeout
    members = _wait(lambda: _members_of(query), query, deadline, "has not planned a batch yet")
    for member in members:
        _request_drain(member, tls, token_file)
    _wait(
        lambda: all(_has_left(member, tls, token_file) for member in members), query, deadline, "still owns partitions"
    )
    # The batch that follows the last release is empty, and must not be cut short either.
    _wait(lambda: _holds_nothing(query), query, deadline, "is still in its last batch")
    query.stop()
    _log.info("query_drained", query=str(query.id))


def drain_on_sigterm(
    *queries: StreamingQuery, timeout: float = 120.0, tls: Tls | None = None, token_file: str = ""
) -> None:
    """Drain when the driver gets SIGTERM; `awaitTermination` then returns. Call it from the main thread."""
    # A driver may receive the signal more than once: a pod from its node, a process group from its terminal.
    once = threading.Lock()

    def drain_all(*_: Any) -> None:
        if once.acquire(blocking=False):
            # On other threads: the main thread, which runs this handler, may be in the middle of a call to the JVM.
            for query in queries:
                threading.Thread(target=_drain_or_stop, args=(query, timeout, tls, token_file), name="drain").start()

    signal.signal(signal.SIGTERM, drain_all)
    on_sigterm_of_jvm(drain_all)


def _drain_or_stop(query: StreamingQuery, timeout: float, tls: Tls | None, token_file: str) -> None:
    try:
        drain(query, timeout, tls=tls, token_file=token_file)
    except AssignerError as error:
        _log.warning("query_drain_failed", error=str(error))
        query.stop()


def _wait(done: Callable[[], Any], query: StreamingQuery, deadline: float, problem: str) -> Any:
    while query.isActive:
        found = done()
        if found:
            return found
        if time.monotonic() > deadline:
            raise NotDrained(
                f"query {query.id} {problem}; wait longer (timeout), or stop it: it may then repeat a batch"
            )
        time.sleep(_POLL_SECONDS)
    failure = query.exception()
    if failure is not None:
        raise failure
    return done() or ()


# --- the query's progress ----------------------------------------------------------------------------------------


def _members_of(query: StreamingQuery) -> list[MemberAddress]:
    found = [one[OWNER_KEY] for one in _progress_of(query, "latestOffset")]
    if not found and query.lastProgress is not None:
        raise InvalidInput(f"query {query.id} reads no assigned_kafka, so there is nothing to hand over; stop() it")
    return [msgspec.convert(one, MemberAddress) for one in found]


def _holds_nothing(query: StreamingQuery) -> bool:
    return all(one.keys() == {OWNER_KEY} for one in _progress_of(query, "endOffset"))


def _progress_of(query: StreamingQuery, field: str) -> list[dict[str, Any]]:
    """Read a field of the query's last progress event, one value for each source that is `assigned_kafka`."""
    progress = query.lastProgress
    if progress is None:
        return []
    offsets = [_parsed(source.get(field)) for source in json.loads(progress.json)["sources"]]
    return [one for one in offsets if isinstance(one, dict) and OWNER_KEY in one]


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value else value


# --- the member ------------------------------------------------------------------------------------------------------


def _request_drain(member: MemberAddress, tls: Tls | None, token_file: str) -> None:
    if member.host == socket.gethostname() and _is_runner(member.pid):
        os.kill(member.pid, DRAIN_SIGNAL)
    else:
        ask = partial(ask_to_drain, token_file=token_file)
        anyio.run(ask, member.assigner.split(","), tls, member.group, member.member)


def _is_runner(pid: int) -> bool:
    """Whether the process id still belongs to a runner, and was not reused."""
    try:
        return RUNNER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _has_left(member: MemberAddress, tls: Tls | None, token_file: str) -> bool:
    describe = partial(describe_at, token_file=token_file)
    found = anyio.run(describe, member.assigner.split(","), tls, member.group)
    return not any(one.name == member.member and one.session == member.session for one in found.consumers)


# --- SIGTERM of the JVM ----------------------------------------------------------------------------------------------
# Under `spark-submit` the driver is a JVM, which would exit on SIGTERM at once and take Python with it. So the JVM gets
# another handler, which calls back into Python. Spark Connect has no JVM of its own, and needs none.


class _Handler:
    """A `sun.misc.SignalHandler`. Its names are Java's."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def handle(self, signal: Any) -> None:
        self._act()

    class Java:
        implements = ("sun.misc.SignalHandler",)


def on_sigterm_of_jvm(act: Callable[[], None]) -> None:
    """Call `act`, on a thread of its own, when the session's JVM gets SIGTERM. The JVM then lives on until Spark stops
    it or Python exits."""
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    context = SparkContext._active_spark_context
    gateway = getattr(context, "_gateway", None)
    if gateway is None:
        return
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    signals = gateway.jvm.sun.misc.Signal
    signals.handle(signals("TERM"), _Handler(act))
