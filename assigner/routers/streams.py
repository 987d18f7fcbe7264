"""Sends each router the routing table of its group, and then what changes, over the streams at this instance.

The table is read from the group's mirror, which shows the router's own registration already: a freeze that was decided
without the router is in it. It is sent in parts, so that a hundred thousand partitions hold nobody up; what changes
meanwhile is sent after it. All its parts carry the revision at which it was begun, because each row is at least that
new. After that the stream takes from the group's log which partitions have changed, and sends their present rows.

Not promised: that a router is sent every state in between. It is sent the last one, at least once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from typing import cast

import anyio.lowlevel

from assigner.core.group import Change
from assigner.core.routers import sessions
from assigner.core.routers.route_view import route_of, topic_count, touched, touched_topic
from assigner.errors import AssignerError
from assigner.model.keys import PlanKey, RouterKey, TopicPartition
from assigner.model.records import Router
from assigner.model.routes import PublishedLoads, Route, TableChanges
from assigner.routers.change_log import ChangeLog, LogReader
from assigner.routers.table_listing import TableListing, parts
from assigner.storage.mirror import GroupMirror
from assigner.streams.outbox import StreamWake
from assigner.streams.registry import GroupDispatcher, StreamRegistry

MOST_AT_ONCE = 1_000
"""Partitions that are looked at before other tasks get a turn; and those in one update."""
MOST_IN_TABLE = 5_000
"""Partitions in one part of a table. Each part names its owners, which may be a thousand."""

Rows = list[tuple[TopicPartition, Route]]


class RoutingStream:
    """One open stream; see `assigner.api.RouterStream`. The registry opens it; `leave` frees its resources."""

    def __init__(
        self,
        mirror: GroupMirror,
        router: Router,
        resources: AsyncExitStack,
        remove: Callable[[RoutingStream], None],
        listing: TableListing,
        changed: LogReader,
        *,
        wants_loads: bool,
    ) -> None:
        """`resources`: what the stream needs while it is open, the group's mirror above all. `remove` is called when it
        is left. `listing`: of the group, which its streams share. `changed`: its place among the group's changes."""
        self.group = mirror.group
        self.name = router.router_name
        self.session = router.session
        self.ttl = router.ttl
        self.wants_loads = wants_loads
        self._mirror = mirror
        self._resources = resources
        self._remove = remove
        self._listing = listing
        self._left = False
        self._changed = changed
        self._wake = StreamWake()
        self._topics: set[str] = set()
        """Topics whose partition count may have changed."""
        self._generation = -1
        """The plan that was named last."""
        self._loads: tuple[PublishedLoads, ...] | None = None
        """To be sent; None: nothing new."""
        self._loads_valid_for = 0.0

    @property
    def backlog(self) -> int:
        """How many partitions have changed that it has not been sent."""
        return len(self._changed)

    def look_again(self, topics: AbstractSet[str]) -> None:
        """Have the stream see what has changed: partitions, these topics' partition counts, or the plan."""
        self._topics |= topics
        self._wake.notify()

    def publish(self, loads: Sequence[PublishedLoads], valid_for: float) -> None:
        """Replace the loads that are to be sent."""
        self._loads, self._loads_valid_for = tuple(loads), valid_for
        self._wake.notify()

    def end(self, error: AssignerError) -> None:
        """End the stream with this error. The first one counts."""
        self._wake.end(error)
        self._changed.close()

    async def updates(self) -> AsyncIterator[TableChanges]:
        self._wake.look()
        async for part in self._table():
            yield part
            self._wake.look()
        while True:
            mark = self._wake.look()
            changes = self._changes()
            if changes:
                yield changes
            else:
                await self._wake.news(mark)

    async def leave(self) -> None:
        if self._left:
            return
        self._left = True
        self._changed.close()
        self._remove(self)
        await self._resources.aclose()

    # --- the table -----------------------------------------------------------------------------------------------

    async def _table(self) -> AsyncIterator[TableChanges]:
        state = self._mirror.state
        self._changed.skip()
        self._topics.clear()
        revision, self._generation = state.revision, state.plan.generation
        topics = tuple((topic, config.record.partition_count) for topic, config in state.topics.items())
        runs = await self._listing.runs()
        left = sum(len(numbers) for _, numbers in runs)
        yield TableChanges(full=True, more=left > 0, revision=revision, generation=self._generation, topics=topics)
        rows: Rows = []
        for tps in parts(runs, MOST_AT_ONCE):
            rows += [(tp, route) for tp in tps if (route := route_of(state, tp))]
            left -= len(tps)
            if len(rows) >= MOST_IN_TABLE or not left:
                yield TableChanges(more=left > 0, revision=revision, generation=self._generation, routes=tuple(rows))
                rows = []
            await anyio.lowlevel.checkpoint()

    # --- changes -------------------------------------------------------------------------------------------------

    def _changes(self) -> TableChanges | None:
        """Take what is new; None: nothing is."""
        state = self._mirror.state
        generation = state.plan.generation
        if not (self._changed or self._topics or self._loads is not None or generation != self._generation):
            return None
        rows: Rows = []
        unowned: list[TopicPartition] = []
        for tp in self._changed.take(MOST_AT_ONCE):
            route = route_of(state, tp)
            if route:
                rows.append((tp, route))
            else:
                unowned.append(tp)
        counts = [(topic, topic_count(state, topic)) for topic in sorted(self._topics)]
        self._topics.clear()
        loads, self._loads = self._loads or (), None
        self._generation = generation
        return TableChanges(
            revision=state.revision,
            generation=generation,
            routes=tuple(rows),
            unowned=tuple(unowned),
            topics=tuple((topic, count) for topic, count in counts if count is not None),
            loads=loads,
            loads_valid_for=self._loads_valid_for if loads else 0.0,
        )


# --- the streams of an instance ----------------------------------------------------------------------------------


class RouterDispatcher(GroupDispatcher[RoutingStream]):
    def __init__(self, mirror: GroupMirror) -> None:
        super().__init__(mirror)
        self.listing = TableListing(mirror.state)
        self.log = ChangeLog()

    def changed(self, changes: Sequence[Change]) -> None:
        tps: dict[TopicPartition, None] = {}
        topics: set[str] = set()
        is_news = False
        for change in changes:
            match change.key:
                case RouterKey(name):
                    if name in self.streams:
                        self.check_session(self.streams[name])
                case PlanKey():
                    is_news = True
                case _:
                    tps.update(dict.fromkeys(touched(self.mirror.state, change)))
                    if topic := touched_topic(change):
                        topics.add(topic)
        self.log.add(tps)
        for stream in self.streams.values() if is_news or tps or topics else ():
            stream.look_again(topics)

    def check_session(self, stream: RoutingStream) -> None:
        error = sessions.ended(self.mirror.state, stream.name, stream.session)
        if error:
            stream.end(error)


class RouterStreams(StreamRegistry[RoutingStream]):
    def _dispatcher_of(self, mirror: GroupMirror) -> RouterDispatcher:
        return RouterDispatcher(mirror)

    def open(
        self, mirror: GroupMirror, router: Router, resources: AsyncExitStack, *, wants_loads: bool
    ) -> RoutingStream:
        """Open the router's stream, which from then on owns what is in `resources` (see `RoutingStream`). Raises if its
        session is over by now; the stream of the one that has the name is left alone."""
        name, session = router.router_name, router.session
        sessions.check_on_record(mirror.state, name, session)

        def make() -> RoutingStream:
            of_group = cast(RouterDispatcher, self._dispatchers[mirror.group])
            listing, changed = of_group.listing, of_group.log.reader()
            return RoutingStream(
                mirror, router, resources.pop_all(), self.remove, listing, changed, wants_loads=wants_loads
            )

        return self.replace(mirror, name, session, sessions.superseded(mirror.group, router), make)

    def wanting_loads(self) -> dict[str, list[RoutingStream]]:
        """The streams that asked for loads, by group."""
        found: dict[str, list[RoutingStream]] = {}
        for stream in self.streams():
            if stream.wants_loads:
                found.setdefault(stream.group, []).append(stream)
        return found
