"""Sends each consumer the changes that concern it, over the streams at this instance, from the group mirrors.

A stream's outbox holds the partitions that may look different to its consumer by now. When the stream is ready to send,
each is compared with what was last sent. So memory is bounded by the partitions that a consumer is involved in.

Not promised: that a consumer is sent every state in between; it is sent the last one, in the order of the fields of
`Commands`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack

from assigner.core import sessions
from assigner.core.consumer_view import EMPTY_VIEW, CommandBuilder, PartitionView, view_of
from assigner.core.group import Change
from assigner.errors import AssignerError
from assigner.model.commands import Commands
from assigner.model.keys import AssignmentKey, ConsumerKey, HandoffKey, StandbyKey, TopicKey, TopicPartition
from assigner.model.records import Consumer, HandoffMode
from assigner.storage.mirror import GroupMirror
from assigner.streams.outbox import Outbox
from assigner.streams.registry import GroupDispatcher, StreamRegistry

MOST_AT_ONCE = 5_000
"""Partitions in one set of commands."""


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
        self._outbox = Outbox(MOST_AT_ONCE)

    @property
    def exclusive(self) -> bool:
        return self._mirror.state.options.handoff_mode is HandoffMode.EXCLUSIVE

    @property
    def backlog(self) -> int:
        """How many partitions are in the outbox."""
        return len(self._outbox)

    def touch(self, tp: TopicPartition) -> None:
        """Put a partition into the outbox."""
        self._outbox.add(tp)

    def end(self, error: AssignerError) -> None:
        """End the stream with this error. The first one counts."""
        self._outbox.end(error)

    def drained(self) -> None:
        """End the stream with OK, once its outbox is empty."""
        self.is_drained = True
        self._outbox.notify()

    async def commands(self) -> AsyncIterator[Commands]:
        self._outbox.clear()
        state = self._mirror.state
        everything = state.touching(self.name) | state.copies.get(self.name, set())
        yield self._changes(sorted(everything), full=True) or Commands(full=True)
        while True:
            mark = self._outbox.look()
            if self._outbox:
                changes = self._changes(self._outbox.take())
                if changes:
                    yield changes
            elif self.is_drained:
                return
            else:
                await self._outbox.news(mark)

    async def leave(self) -> None:
        if self._left:
            return
        self._left = True
        self._remove(self)
        async with self._resources:
            if self.is_drained:
                await self._end_session()

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


class ConsumerDispatcher(GroupDispatcher[ConsumerStream]):
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


class ConsumerStreams(StreamRegistry[ConsumerStream]):
    def _dispatcher_of(self, mirror: GroupMirror) -> ConsumerDispatcher:
        return ConsumerDispatcher(mirror)

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

        def make() -> ConsumerStream:
            return ConsumerStream(mirror, consumer, resources.pop_all(), end_session, self.remove)

        superseded = sessions.superseded(mirror.group, current.record) if current else None
        return self.replace(mirror, name, session, superseded, make)
