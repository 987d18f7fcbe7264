"""In any order of updates, freezes, acks, drains, ends of leases and requests, no request goes to a stale owner.

The service here is a model of what a leader does around one router: it flips a partition once the router has
acknowledged the freeze, or once the router's lease is over. The rest is real: table, permit, cutovers, executor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.aio.wakeup import Wakeup
from assigner.core.routing.permit import RoutingPermit
from assigner.core.routing.table import RoutingTable
from assigner.model.keys import TopicPartition
from assigner.model.routes import Route, TableChanges
from assigner.routing import CutoverExecutor, Target
from assigner.routing.cutovers import CutoverTasks

TTL = 30.0
PARTITIONS = 2
OPERATIONS = [
    "begin",
    "freeze",
    "flip",
    "abandon",
    "succeed",
    "delete",
    "tell",
    "tell",
    "tell",
    "ack",
    "ack",
    "request",
    "request",
    "end",
    "cancel",
    "renew",
    "pass a third",
    "pass a lease",
    "register",
]


class Move:
    """A handoff as the service has it."""

    def __init__(self, handoff_id: str) -> None:
        self.handoff_id = handoff_id
        self.frozen = False
        self.acked = False


class Course:
    """A service, a router and its requests."""

    def __init__(self) -> None:
        self.now = 0.0
        self.table, self.permit, self.changes = RoutingTable(), RoutingPermit(), Wakeup()
        self.executor = CutoverExecutor(self.table, lambda: self.permit.holds(self.now), lambda: self.now)
        self.cutovers = CutoverTasks(self.executor, self.changes, 1000.0)
        # The service.
        self.revision = 1
        self.epochs = [1] * PARTITIONS
        self.owners = [0] * PARTITIONS
        self.flipped = [0] * PARTITIONS
        """The epochs up to which another owner took over."""
        self.moves: list[Move | None] = [None] * PARTITIONS
        self.repairs = [False] * PARTITIONS
        self.handoffs = 0
        self.registered_until = -1.0
        # Requests.
        self.asked = [0] * PARTITIONS
        self.sent: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.tasks: list[asyncio.Task[None]] = []
        self.gates: list[tuple[int, Target, asyncio.Event]] = []
        self.lengthy: set[asyncio.Event] = set()
        """Requests in flight that outlive the lease under which they were sent: the owner's gate answers for these."""

    # --- the service ---

    def row(self, partition: int) -> Route:
        epoch, move = self.epochs[partition], self.moves[partition]
        handoff_id, frozen = (move.handoff_id, move.frozen) if move else ("", False)
        return Route(f"pod-{self.owners[partition]}", "", epoch, handoff_id, frozen)

    @property
    def is_registered(self) -> bool:
        return self.now < self.registered_until

    def begin(self, partition: int) -> None:
        if self.moves[partition] is None and not self.repairs[partition]:
            self.moves[partition] = self._move()

    def _move(self) -> Move:
        self.handoffs += 1
        return Move(f"h{self.handoffs}")

    def freeze(self, partition: int) -> None:
        if move := self.moves[partition]:
            move.frozen = True

    def flip(self, partition: int) -> None:
        """The new owner takes over, if nobody has to be waited for."""
        move = self.moves[partition]
        if move is None or not move.frozen or (self.is_registered and not move.acked):
            return
        if not self.is_registered:
            self.lengthy |= {gate for _, _, gate in self.gates}
        stale = [target for at, target, gate in self.gates if at == partition and gate not in self.lengthy]
        assert not stale, f"{stale} in flight at the flip from epoch {self.epochs[partition]}"
        self.flipped[partition] = self.epochs[partition]
        self.owners[partition] += 1
        self._raise_epoch(partition)

    def abandon(self, partition: int) -> None:
        """The owner stays, with a new epoch; after a deletion too."""
        if self.moves[partition] or self.repairs[partition]:
            # The owner is the same process: what is in flight to it ends there.
            self.lengthy |= {gate for at, _, gate in self.gates if at == partition}
            self._raise_epoch(partition)

    def _raise_epoch(self, partition: int) -> None:
        self.epochs[partition] += 1
        self.moves[partition], self.repairs[partition] = None, False

    def succeed(self, partition: int) -> None:
        """Another handoff replaces this one, at the same epoch, and begins with the warm-up of its new owner."""
        if self.moves[partition]:
            self.moves[partition] = self._move()

    def delete(self, partition: int) -> None:
        """Somebody deletes the handoff. The leader repairs it by a new epoch, sooner or later."""
        if self.moves[partition]:
            self.moves[partition], self.repairs[partition] = None, True

    # --- the router ---

    async def tell(self, _: int) -> None:
        """The stream sends what is newest; older states are never seen."""
        if not self.table.revision:
            return
        self.revision += 1
        await self._apply(TableChanges(revision=self.revision, routes=self._rows()))

    async def register(self, _: int) -> None:
        self.table.begin_stream()
        self.permit.registering(self.now)
        self.registered_until = max(self.registered_until, self.now + TTL)
        self.revision += 1
        await self._apply(TableChanges(full=True, revision=self.revision, routes=self._rows(), topics=(("t", 2),)))
        self.permit.completed()
        self.cutovers.reassert()
        self.executor.resume()

    def _rows(self) -> tuple[tuple[TopicPartition, Route], ...]:
        return tuple((TopicPartition("t", partition), self.row(partition)) for partition in range(PARTITIONS))

    async def _apply(self, changes: TableChanges) -> None:
        await self.cutovers.perform(self.table.apply(changes).rows)

    def renew(self, _: int) -> None:
        if self.is_registered:
            self.registered_until = self.now + TTL
            self.permit.renewed(self.now, TTL, self.now)
        else:
            self.permit.end(self.now)
        self.cutovers.reassert()
        self.executor.resume()

    def ack(self, _: int) -> None:
        acks = self.cutovers.core.pending_acks(100)
        self.cutovers.acknowledged(acks, frozenset())
        for ack in acks if self.is_registered else ():
            move = self.moves[ack.tp.partition]
            if move is not None and move.handoff_id == ack.handoff_id:
                move.acked = True

    # --- requests and time ---

    def request(self, partition: int) -> None:
        self.asked[partition] += 1
        self.tasks.append(asyncio.create_task(self._request(partition, self.asked[partition])))

    async def _request(self, partition: int, number: int) -> None:
        async with self.executor.route_partition("t", partition) as target:
            assert target.epoch > self.flipped[partition]
            self.sent[partition].append(number)
            gate = asyncio.Event()
            entry = partition, target, gate
            self.gates.append(entry)
            try:
                await gate.wait()
            finally:
                self.gates.remove(entry)

    def end(self, partition: int) -> None:
        for at, _, gate in self.gates:
            if at == partition:
                gate.set()
                return

    def cancel(self, partition: int) -> None:
        waiting = [task for task in self.tasks if not task.done()]
        if waiting:
            waiting[partition % len(waiting)].cancel()

    def pass_a_third(self, _: int) -> None:
        self.now += TTL / 3

    def pass_a_lease(self, _: int) -> None:
        self.now += TTL

    # --- the course ---

    async def run(self, operations: list[tuple[str, int]]) -> None:
        async with anyio.create_task_group() as group:
            self.cutovers.begin(group)
            for name, partition in operations:
                step: Callable[[int], object] = getattr(self, name.replace(" ", "_"))
                done = step(partition)
                if asyncio.iscoroutine(done):
                    await done
                for _ in range(4):
                    await asyncio.sleep(0)
                self.check()
            for task in self.tasks:
                task.cancel()
            results = await asyncio.gather(*self.tasks, return_exceptions=True)
            group.cancel_scope.cancel()
        failures = [one for one in results if isinstance(one, BaseException)]
        assert [one for one in failures if not isinstance(one, asyncio.CancelledError)] == []
        counts = self.executor.counts()
        assert (counts.stashed, counts.stashed_bytes, counts.in_flight) == (0, 0, 0)

    def check(self) -> None:
        for sent in self.sent:
            assert sent == sorted(sent), "out of order"
        for task in self.tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error


PHRASES = [
    ["begin", "freeze", "tell"],
    ["request", "begin", "freeze", "tell", "request"],
    ["ack", "flip", "tell"],
    ["end", "ack", "flip", "request", "tell"],
    ["pass a lease", "renew", "register", "renew"],
    ["begin", "freeze", "pass a lease", "flip", "request"],
]
"""What random operations alone would seldom say."""


def spoken(words: list[tuple[list[str], int]]) -> list[tuple[str, int]]:
    return [(word, partition) for phrase, partition in words for word in phrase]


phrases = st.sampled_from([*PHRASES, *([one] for one in OPERATIONS)])
courses = st.lists(st.tuples(phrases, st.integers(0, PARTITIONS - 1)), max_size=30).map(spoken)
ROUTABLE = [("register", 0), ("renew", 0)]


@settings(max_examples=400)
@given(courses)
def test_no_request_begins_under_an_epoch_that_is_over_nor_out_of_order(operations: list[tuple[str, int]]) -> None:
    asyncio.run(Course().run(ROUTABLE + operations))


async def test_the_course_of_a_move_is_one_that_the_model_can_tell() -> None:
    """Lest the test above passes because nothing ever moves."""
    course = Course()
    words = ["request", "begin", "freeze", "tell", "request", "ack", "flip"]
    await course.run(ROUTABLE + [(word, 0) for word in words])
    assert course.epochs[0] == 1, "it was acknowledged while a request was in flight"
    course = Course()
    words = ["request", "begin", "freeze", "tell", "request", "end", "ack", "flip", "tell", "end"]
    await course.run(ROUTABLE + [(word, 0) for word in words])
    assert course.epochs[0] == 2
    assert course.sent[0] == [1, 2]


@pytest.mark.parametrize("late", ["pass a lease"])
async def test_a_request_waits_once_the_lease_may_be_over(late: str) -> None:
    course = Course()
    await course.run([*ROUTABLE, (late, 0), ("request", 0)])
    assert course.sent[0] == []
