"""Stores the last moves of a group for operators: a bounded list, written at most once a second.

No other work waits for these writes. Not promised: completeness. The moves of a leader's last second may be missing;
the log has them.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import anyio

from assigner.aio.wakeup import Wakeup
from assigner.clock import Clock
from assigner.core.group import Change
from assigner.core.writes import Moved
from assigner.errors import StoreError, UnreadableRecord
from assigner.model.keys import HandoffKey, TopicPartition
from assigner.model.records import History, Move, Phase, Step, decode, encode
from assigner.observability.metrics import Metrics
from assigner.store import Compare, Found, Put, Store

LENGTH = 200
INTERVAL = 1.0


async def read_history(store: Store, key: str) -> tuple[Move, ...]:
    result = await store.get(key)
    if not isinstance(result, Found):
        return ()
    try:
        return decode(History, result.entry.value)[0].moves
    except UnreadableRecord:
        return ()


class HistoryWriter:
    def __init__(self, store: Store, key: str, fence: Compare, clock: Clock) -> None:
        self._store = store
        self._key = key
        self._fence = fence
        self._clock = clock
        self._moves: deque[Move] = deque(maxlen=LENGTH)
        self._added = Wakeup()

    def add(self, moved: Moved, generation: int) -> None:
        self._moves.append(
            Move(
                at=int(self._clock.wall()),
                topic=moved.tp.topic,
                partition=moved.tp.partition,
                old=moved.old,
                new=moved.new,
                cause=moved.cause,
                generation=generation,
                epoch=moved.epoch,
                warm=moved.warm,
                unacked=moved.unacked,
            )
        )
        self._added.notify()

    async def run(self) -> None:
        await self._read_stored()
        written = 0
        while True:
            await self._added.since(written)
            mark = self._added.mark()
            put = Put(self._key, encode(History(moves=tuple(self._moves))))
            # A failed write is repeated, because `written` keeps its old mark.
            with suppress(StoreError):
                await self._store.transact([self._fence], [put])
                written = mark
            await anyio.sleep(INTERVAL)

    async def _read_stored(self) -> None:
        try:
            before = await read_history(self._store, self._key)
        except StoreError:
            return
        self._moves = deque([*before, *self._moves], maxlen=LENGTH)


# Measures how long handoffs stay in each step, as the leader sees it.


class HandoffTimes:
    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._since: dict[TopicPartition, tuple[Step, float]] = {}
        self._frozen: dict[TopicPartition, float] = {}
        """Partitions that routers hold requests of back -> since when."""

    def observe(self, change: Change) -> None:
        if not isinstance(change.key, HandoffKey):
            return
        tp = change.key.tp
        now = self._clock.now()
        step = change.after.record.at if change.after else None
        if step is Step.FREEZING:
            self._frozen.setdefault(tp, now)
        elif (step is None or step.phase is not Phase.READY) and tp in self._frozen:
            self._metrics.thawed(now - self._frozen.pop(tp))
        before = self._since.get(tp)
        if before and before[0] is not step:
            self._metrics.handoff_step(before[0], now - before[1])
        if step is None:
            self._since.pop(tp, None)
        elif before is None or before[0] is not step:
            self._since[tp] = (step, now)
