"""From the mirror to the streams: each consumer's outbox is a set of partitions that may look different to it now.

The set is compared with what was last sent when the stream is ready to send, so a slow consumer is coalesced by
construction, none waits for another, and memory is bounded by the partitions a consumer has to do with.

Not promised: that a consumer hears of every state in between, only of the last one, and that the order is right.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack

import anyio

from assigner.core.consumer_view import EMPTY_VIEW, CommandBuilder, PartitionView, view_of
from assigner.core.group import Change
from assigner.errors import AssignerError, Evicted, LimitReached, NotRegistered, StreamReplaced, Superseded
from assigner.logs import get_logger
from assigner.model.commands import Commands
from assigner.model.keys import AssignmentKey, ConsumerKey, HandoffKey, StandbyKey, TopicKey, TopicPartition
from assigner.model.names import session_digest
from assigner.model.records import Consumer, HandoffMode, Status, Stored
from assigner.storage.mirror import GroupMirror, Mirrors

MOST_AT_ONCE = 5_000
"""Partitions told about in one go."""

log = get_logger("assigner.members.streams")


class ConsumerStream:
    """One open stream. See `assigner.api.Seat`."""

    def __init__(
        self, mirror: GroupMirror, name: str, session: str, ttl: float, left: Callable[[ConsumerStream], None]
    ) -> None:
        self.group = mirror.group
        self.name = name
        self.session = session
        self.ttl = ttl
        self.ever_targeted: set[TopicPartition] = set()
        """Partitions it was told to warm, for clients that answer without a handoff id."""
        self.hold: AsyncExitStack | None = None
        """What the seat keeps alive: the group's mirror, its renewals."""
        self._mirror = mirror
        self._left = left
        self._sent: dict[TopicPartition, PartitionView] = {}
        self._dirty: set[TopicPartition] = set()
        self._wake = anyio.Event()
        self._ended: AssignerError | None = None
        self.is_drained = False

    @property
    def exclusive(self) -> bool:
        return self._mirror.state.options.handoff_mode is HandoffMode.EXCLUSIVE

    @property
    def backlog(self) -> int:
        return len(self._dirty)

    def touch(self, tp: TopicPartition) -> None:
        self._dirty.add(tp)
        self._wake.set()

    def end(self, error: AssignerError) -> None:
        """The session is over: the stream ends with this."""
        if self._ended is None:
            self._ended = error
            self._wake.set()

    def drained(self) -> None:
        """Nothing is left to do: the stream ends well."""
        self.is_drained = True
        self._wake.set()

    async def commands(self) -> AsyncIterator[Commands]:
        self._dirty.clear()
        state = self._mirror.state
        everything = state.touching(self.name) | state.copies.get(self.name, set())
        yield self._news(sorted(everything), full=True) or Commands(full=True)
        while True:
            self._wake = anyio.Event()
            if self._ended:
                raise self._ended
            if self._dirty:
                news = self._news(self._take())
                if news:
                    yield news
            elif self.is_drained:
                return
            else:
                await self._wake.wait()

    async def leave(self) -> None:
        self._left(self)
        if self.hold:
            hold, self.hold = self.hold, None
            await hold.aclose()

    def _take(self) -> list[TopicPartition]:
        if len(self._dirty) <= MOST_AT_ONCE:
            taken, self._dirty = self._dirty, set()
            return sorted(taken)
        part = sorted(self._dirty)[:MOST_AT_ONCE]
        self._dirty.difference_update(part)
        return part

    def _news(self, tps: Iterable[TopicPartition], *, full: bool = False) -> Commands | None:
        news = CommandBuilder(self._mirror.state, self.name)
        for tp in tps:
            before = self._sent.get(tp, EMPTY_VIEW)
            after = view_of(self._mirror.state, self.name, self.session, tp)
            if before == after:
                continue
            news.add(tp, before, after)
            if after.target:
                self.ever_targeted.add(tp)
            if after == EMPTY_VIEW:
                del self._sent[tp]
            else:
                self._sent[tp] = after
        return news.commands(full=full)


class GroupDispatcher:
    """Tells the streams of one group at this instance what changes mean for them."""

    def __init__(self, mirror: GroupMirror) -> None:
        self._mirror = mirror
        self.seats: dict[str, ConsumerStream] = {}

    def changed(self, changes: Sequence[Change]) -> None:
        if not self.seats:
            return
        touched: set[str] = set()
        for change in changes:
            match change.key:
                case AssignmentKey(tp):
                    touched.update(self._touch(tp, _owners(change)))
                case HandoffKey(tp):
                    touched.update(self._touch(tp, _ends(change)))
                case StandbyKey(tp):
                    self._touch(tp, _holders(change))
                case ConsumerKey(name):
                    touched.add(name)
                case TopicKey():
                    # Whether there is anything to hand over depends on whether its topic can be read.
                    touched.update(self.seats)
                case _:
                    pass
        for name in touched:
            if name in self.seats:
                self.judge(self.seats[name])

    def _touch(self, tp: TopicPartition, names: set[str]) -> set[str]:
        here = names & self.seats.keys()
        for name in here:
            self.seats[name].touch(tp)
        return here

    def judge(self, seat: ConsumerStream) -> None:
        """Whether the session behind the stream is over, or has nothing left to do."""
        consumer = self._mirror.state.consumers.get(seat.name)
        if consumer is None:
            if seat.name not in self._mirror.state.unreadable_consumers:
                seat.end(NotRegistered(f"consumer {seat.name!r} is not registered any more; register again"))
        elif consumer.record.session != seat.session:
            seat.end(superseded(seat.group, consumer.record))
        elif consumer.record.evicted:
            seat.end(evicted(consumer.record))
        elif consumer.record.status is Status.DRAINING and not self._mirror.state.to_hand_over(seat.name):
            seat.drained()


def superseded(group: str, by: Consumer) -> Superseded:
    where = f" at {by.address}" if by.address else ""
    return Superseded(
        f"another process{where} registered as {by.consumer_name!r} in group {group!r} "
        f"(session {session_digest(by.session)}); "
        "give each process a name of its own"
    )


def evicted(consumer: Consumer) -> Evicted:
    return Evicted(
        f"consumer {consumer.consumer_name!r} was evicted: it {consumer.evicted}; register anew, with another session"
    )


def _owners(change: Change) -> set[str]:
    return {record.record.owner for record in (change.before, change.after) if record}


def _holders(change: Change) -> set[str]:
    return {name for record in (change.before, change.after) if record for name in record.record.holders}


def _ends(change: Change) -> set[str]:
    names: set[str] = set()
    for record in (change.before, change.after):
        if record:
            names.update((record.record.old_owner, record.record.new_owner))
    return names


# The streams at this instance: which consumer sits where, and the group mirrors they need.
#
# A seat is taken by name, and only by the session on record. A newer stream takes it over, and the older one's end
# never touches the newer. Where both are of one session, the older is told to connect again: which of the two its
# process still listens to, nobody here can know, because a call may arrive long after the one that followed it.


MAX_SEATS = 50_000


class StreamRegistry:
    def __init__(self, mirrors: Mirrors, *, max_seats: int = MAX_SEATS) -> None:
        self._mirrors = mirrors
        self._max_seats = max_seats
        self._relays: dict[str, GroupDispatcher] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def seats(self) -> Iterable[ConsumerStream]:
        return [seat for relay in self._relays.values() for seat in relay.seats.values()]

    def seat(self, group: str, name: str) -> ConsumerStream | None:
        relay = self._relays.get(group)
        return relay.seats.get(name) if relay else None

    @property
    def backlog(self) -> int:
        return sum(seat.backlog for seat in self.seats())

    def check_room(self) -> None:
        if self._count >= self._max_seats:
            raise LimitReached(f"this instance serves {self._max_seats} streams already; connect to another one")

    def take(self, mirror: GroupMirror, name: str, session: str, ttl: float, hold: AsyncExitStack) -> ConsumerStream:
        """Seat a consumer. What `hold` keeps is the seat's from then on, and is let go when it is left. Raises
        `Superseded` if another session has the name by now, whose seat is left alone."""
        current = mirror.state.consumers.get(name)
        _check_on_record(current, session, mirror.group)
        relay = self._relays.get(mirror.group)
        if relay is None:
            relay = self._relays[mirror.group] = GroupDispatcher(mirror)
            mirror.listen(relay)
        before = relay.seats.get(name)
        if before:
            before.end(
                superseded(mirror.group, current.record)
                if current and before.session != session
                else StreamReplaced(f"a later stream of {name!r} took this one's place; connect again")
            )
        else:
            self._count += 1
        seat = ConsumerStream(mirror, name, session, ttl, lambda left: self._left(mirror, relay, left))
        seat.hold = hold.pop_all()
        relay.seats[name] = seat
        relay.judge(seat)
        return seat

    def _left(self, mirror: GroupMirror, relay: GroupDispatcher, seat: ConsumerStream) -> None:
        if relay.seats.get(seat.name) is not seat:
            return
        del relay.seats[seat.name]
        self._count -= 1
        if not relay.seats:
            mirror.unlisten(relay)
            del self._relays[mirror.group]


def _check_on_record(current: Stored[Consumer] | None, session: str, group: str) -> None:
    if current and current.record.session != session:
        raise superseded(group, current.record)
