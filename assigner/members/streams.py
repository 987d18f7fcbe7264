"""Sends each consumer the changes that concern it, over the streams at this instance, from the group mirrors.

A stream's outbox is the set of partitions that may look different to its consumer by now. When the stream is ready to
send, each is compared with what was last sent. So a slow consumer gets coalesced changes, no consumer waits for
another, and memory is bounded by the partitions that a consumer is involved in.

Not promised: that a consumer is sent every state in between; it is sent the last one, in the order of the fields of
`Commands`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack

import anyio

from assigner.core import sessions
from assigner.core.consumer_view import EMPTY_VIEW, CommandBuilder, PartitionView, view_of
from assigner.core.group import Change
from assigner.errors import AssignerError, LimitReached, StreamReplaced
from assigner.model.commands import Commands
from assigner.model.keys import AssignmentKey, ConsumerKey, HandoffKey, StandbyKey, TopicKey, TopicPartition
from assigner.model.records import Consumer, HandoffMode
from assigner.storage.mirror import GroupMirror

MOST_AT_ONCE = 5_000
"""Partitions in one set of commands."""
MAX_STREAMS = 50_000


class ConsumerStream:
    """One open stream; see `assigner.api.CommandStream`. The registry opens it; `leave` frees its resources."""

    def __init__(
        self,
        mirror: GroupMirror,
        consumer: Consumer,
        resources: AsyncExitStack,
        end_session: Callable[[], Awaitable[None]],
        remove: Callable[[ConsumerStream], None],
    ) -> None:
        """`resources`: what the stream needs while it is open, the group's mirror above all. `end_session` is awaited
        when the stream is left by a drained consumer, `remove` is called when it is left at all."""
        self.group = mirror.group
        self.name = consumer.consumer_name
        self.session = consumer.session
        self.ttl = consumer.ttl
        self.ever_targeted: set[TopicPartition] = set()
        """Partitions that a Warm was sent for, for clients that ack without a handoff id."""
        self.is_drained = False
        self._mirror = mirror
        self._resources = resources
        self._end_session = end_session
        self._remove = remove
        self._left = False
        self._sent: dict[TopicPartition, PartitionView] = {}
        self._dirty: set[TopicPartition] = set()
        self._wake = anyio.Event()
        self._ended: AssignerError | None = None

    @property
    def exclusive(self) -> bool:
        return self._mirror.state.options.handoff_mode is HandoffMode.EXCLUSIVE

    @property
    def backlog(self) -> int:
        """How many partitions are in the outbox."""
        return len(self._dirty)

    def touch(self, tp: TopicPartition) -> None:
        """Put a partition into the outbox."""
        self._dirty.add(tp)
        self._wake.set()

    def end(self, error: AssignerError) -> None:
        """End the stream with this error. The first one counts."""
        if self._ended is None:
            self._ended = error
            self._wake.set()

    def drained(self) -> None:
        """End the stream with OK, once its outbox is empty."""
        self.is_drained = True
        self._wake.set()

    async def commands(self) -> AsyncIterator[Commands]:
        self._dirty.clear()
        state = self._mirror.state
        everything = state.touching(self.name) | state.copies.get(self.name, set())
        yield self._changes(sorted(everything), full=True) or Commands(full=True)
        while True:
            self._wake = anyio.Event()
            if self._ended:
                raise self._ended
            if self._dirty:
                changes = self._changes(self._take())
                if changes:
                    yield changes
            elif self.is_drained:
                return
            else:
                await self._wake.wait()

    async def leave(self) -> None:
        if self._left:
            return
        self._left = True
        self._remove(self)
        async with self._resources:
            if self.is_drained:
                await self._end_session()

    def _take(self) -> list[TopicPartition]:
        if len(self._dirty) <= MOST_AT_ONCE:
            taken, self._dirty = self._dirty, set()
            return sorted(taken)
        part = sorted(self._dirty)[:MOST_AT_ONCE]
        self._dirty.difference_update(part)
        return part

    def _changes(self, tps: Iterable[TopicPartition], *, full: bool = False) -> Commands | None:
        """Build the commands that lead the consumer from what it was last sent to what is mirrored now."""
        builder = CommandBuilder(self._mirror.state, self.name)
        for tp in tps:
            before = self._sent.get(tp, EMPTY_VIEW)
            after = view_of(self._mirror.state, self.name, self.session, tp)
            if before == after:
                continue
            builder.add(tp, before, after)
            if after.target:
                self.ever_targeted.add(tp)
            if after == EMPTY_VIEW:
                del self._sent[tp]
            else:
                self._sent[tp] = after
        return builder.commands(full=full)


class GroupDispatcher:
    """Listens to one group's mirror, and puts each change into the outboxes of the streams it concerns."""

    def __init__(self, mirror: GroupMirror) -> None:
        self.mirror = mirror
        self.streams: dict[str, ConsumerStream] = {}
        """Consumer name -> its stream."""

    def changed(self, changes: Sequence[Change]) -> None:
        if not self.streams:
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
                    touched.update(self.streams)
                case _:
                    pass
        for name in touched:
            if name in self.streams:
                self.check_session(self.streams[name])

    def _touch(self, tp: TopicPartition, names: set[str]) -> set[str]:
        here = names & self.streams.keys()
        for name in here:
            self.streams[name].touch(tp)
        return here

    def check_session(self, stream: ConsumerStream) -> None:
        """End the stream if its session is over, or has nothing left to hand over."""
        error = sessions.ended(self.mirror.state, stream.name, stream.session)
        if error:
            stream.end(error)
        elif sessions.is_drained(self.mirror.state, stream.name):
            stream.drained()


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


class StreamRegistry:
    """The streams that are open at this instance: one per consumer name, for the session on record only.

    A newer stream replaces an older one of the same name, and the older one's end never touches the newer. Where both
    are of one session, the older ends with `StreamReplaced`, upon which a client connects again: the registry can't
    know which of the two the process still reads, because a call may arrive long after one that was sent later.
    """

    def __init__(self, *, max_streams: int = MAX_STREAMS) -> None:
        self._max_streams = max_streams
        self._dispatchers: dict[str, GroupDispatcher] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def streams(self) -> Iterable[ConsumerStream]:
        return [stream for dispatcher in self._dispatchers.values() for stream in dispatcher.streams.values()]

    def stream(self, group: str, name: str) -> ConsumerStream | None:
        dispatcher = self._dispatchers.get(group)
        return dispatcher.streams.get(name) if dispatcher else None

    @property
    def backlog(self) -> int:
        return sum(stream.backlog for stream in self.streams())

    def check_room(self) -> None:
        if self._count >= self._max_streams:
            raise LimitReached(f"this instance serves {self._max_streams} streams already; connect to another one")

    def open(
        self,
        mirror: GroupMirror,
        consumer: Consumer,
        resources: AsyncExitStack,
        end_session: Callable[[], Awaitable[None]],
    ) -> ConsumerStream:
        """Open the consumer's stream, which from then on owns what is in `resources` (see `ConsumerStream`).

        Raises `Superseded` if another session has the name by now; its stream is left alone."""
        name, session = consumer.consumer_name, consumer.session
        current = mirror.state.consumers.get(name)
        sessions.check_on_record(current, session, mirror.group)
        dispatcher = self._dispatchers.get(mirror.group)
        if dispatcher is None:
            dispatcher = self._dispatchers[mirror.group] = GroupDispatcher(mirror)
            mirror.listen(dispatcher)
        before = dispatcher.streams.get(name)
        if before:
            before.end(
                sessions.superseded(mirror.group, current.record)
                if current and before.session != session
                else StreamReplaced(f"a later stream of {name!r} took this one's place; connect again")
            )
        else:
            self._count += 1
        stream = ConsumerStream(mirror, consumer, resources.pop_all(), end_session, self._remove)
        dispatcher.streams[name] = stream
        dispatcher.check_session(stream)
        return stream

    def _remove(self, stream: ConsumerStream) -> None:
        if self.stream(stream.group, stream.name) is not stream:
            return
        dispatcher = self._dispatchers[stream.group]
        del dispatcher.streams[stream.name]
        self._count -= 1
        if not dispatcher.streams:
            dispatcher.mirror.unlisten(dispatcher)
            del self._dispatchers[stream.group]
