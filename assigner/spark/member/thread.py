"""`MemberThread` runs the member on a thread of its own, in the process in which Spark plans the query's batches.

Spark calls the reader from that process's main thread and leaves it idle in between; lease renewals and acks must not
wait for those calls. The thread is started at the first call that needs it: Spark makes and pickles more readers than
it runs queries. What ended the member is raised to the next caller.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from assigner.client import Unavailable
from assigner.errors import UnknownTopic
from assigner.logs import get_logger
from assigner.spark.kafka_offsets import KafkaLog
from assigner.spark.member.member import MemberStatistics, QueryMember
from assigner.spark.options import SourceOptions
from assigner.spark.state.sink_record import SinkRecord

T = TypeVar("T")
_STOP_SECONDS = 10.0

_log = get_logger(__name__)


class MemberThread:
    def __init__(self, options: SourceOptions, log: KafkaLog, sink: SinkRecord | None) -> None:
        self._options = options
        self._log = log
        self._sink = sink
        self._started: Future[QueryMember] = Future()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="assigned_kafka member", daemon=True)
        self._thread.start()
        # The member has a timeout of its own; this one is for a thread that died silently.
        self._member = self._started.result(options.assigner_timeout + _STOP_SECONDS)

    @property
    def session(self) -> str:
        return self._member.consumer.session

    def statistics(self) -> MemberStatistics:
        return self._member.statistics()

    def call(self, method: Callable[[QueryMember], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """Call a method of the member on its event loop. Raises what ended the member, if it has ended."""
        if self._failure is not None:
            raise self._failure
        assert self._loop is not None
        result = asyncio.run_coroutine_threadsafe(method(self._member), self._loop)
        timeout = self._options.assigner_timeout if timeout is None else timeout
        try:
            return result.result(timeout)
        except TimeoutError:
            result.cancel()
            raise Unavailable(
                f"the assigner at {','.join(self._options.assigner)} does not say within "
                f"{timeout:g} s what member {self._options.member!r} owns; "
                f"check that it runs, or raise option assignerTimeout"
            ) from None

    def end_batch(self) -> None:
        """Leave the gates: no batch is in flight, because the last one is finished or none was begun."""
        self._member.in_flight.close()

    # --- the end ---------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Begin to drain: the next batch boundaries release everything."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._member.consumer.drain(), self._loop)

    def stop(self) -> None:
        """Leave the group. With a batch in flight its partitions are not reported as released: their lease expires."""
        if self._loop is not None and self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._leave(), self._loop)
        self._thread.join(_STOP_SECONDS)
        self.end_batch()

    async def _leave(self) -> None:
        self._stopped.set()
        await self._member.leave()

    def abandon(self) -> None:
        """Leave no gate, so that the lease has to expire. For a process whose executors may still be writing."""
        self._member.in_flight.pop_all()

    # --- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asks
            if not self._started.done():
                self._started.set_exception(self._explained(error))
            else:
                self._failure = error
                _log.warning("member_failed", group=self._options.group, error=str(error))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        member = QueryMember(self._options, self._log, self._sink)
        async with member.consumer:
            self._started.set_result(member)
            await member.run()
        # A drained member still answers calls: it owns nothing.
        await self._stopped.wait()

    def _explained(self, error: BaseException) -> BaseException:
        """Reword the client's error to name the options of the source."""
        match error:
            case Unavailable():
                why = str(error).removesuffix("; check the addresses")
                return Unavailable(
                    f"the assigner at {','.join(self._options.assigner)} is not reached: {why}; check option assigner, "
                    f"and option tls if it speaks TLS"
                )
            case UnknownTopic():
                return UnknownTopic(f"option subscribe: {error}")
            case _:
                return error
