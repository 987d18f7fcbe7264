"""The member on a thread of its own, in the process in which Spark plans the query's batches.

Spark calls the reader from that process's main thread and leaves it alone in between; renewals and answers must not
wait for that. A link is made at the first call that needs it: readers are made more often than queries run, and are
pickled. What ends the member is raised to whoever calls next.
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
from assigner.spark.member.member import QueryMember
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
        # The member gives up by itself; this is for a thread that died without a word.
        self._member = self._started.result(options.assigner_timeout + _STOP_SECONDS)

    @property
    def session(self) -> str:
        return self._member.consumer.session

    def call(self, question: Callable[[QueryMember], Coroutine[Any, Any, T]], patience: float | None = None) -> T:
        """Ask the member, on its loop. Raises what ended it, if it has."""
        if self._failure is not None:
            raise self._failure
        assert self._loop is not None
        answer = asyncio.run_coroutine_threadsafe(question(self._member), self._loop)
        patience = self._options.assigner_timeout if patience is None else patience
        try:
            return answer.result(patience)
        except TimeoutError:
            answer.cancel()
            raise Unavailable(
                f"the assigner at {','.join(self._options.assigner)} does not say within "
                f"{patience:g} s what member {self._options.member!r} owns; "
                f"check that it runs, or raise option assignerTimeout"
            ) from None

    def finish(self) -> None:
        """No batch is under way: the last one is finished, or none was begun."""
        self._member.under_way.close()

    # --- the end ---------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Begin to hand everything over. The next turns do it."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._member.consumer.drain(), self._loop)

    def stop(self) -> None:
        """Leave the group. With a batch under way the assigner is not told that it is over."""
        if self._loop is not None and self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._leave(), self._loop)
        self._thread.join(_STOP_SECONDS)
        self.finish()

    async def _leave(self) -> None:
        self._stopped.set()
        await self._member.leave()

    def abandon(self) -> None:
        """Go without a word: the lease ends by itself. For a process whose executors may still be at work."""
        self._member.under_way.pop_all()

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
        # One that was drained still answers: it owns nothing.
        await self._stopped.wait()

    def _explained(self, error: BaseException) -> BaseException:
        """What the client says, in the words of the source's options."""
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
