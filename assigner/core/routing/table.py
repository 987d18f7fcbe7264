"""Holds what a router knows: the owner, address and epoch of every partition, and which of them are frozen.

Each lookup is two lookups in dictionaries. Updates of the service come in order of its store's revision; one that is
older than what is held, from an instance that lags behind, changes nothing. What thaws a frozen partition is a higher
epoch, or another handoff that has not frozen it yet; that its handoff is gone says nothing, because somebody may have
deleted a record of a move that goes on.

Not promised: that the owner is still the owner. The gate at the owner decides, by the epoch that the request carries.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from assigner.errors import InvalidInput, LimitReached
from assigner.model.keys import TopicPartition
from assigner.model.routes import Route, TableChanges

MAX_PARTITIONS = 1_000_000
"""More than this in one group is a mistake, not a workload."""

_Rows = dict[str, dict[int, Route]]


class RowChange(msgspec.Struct, frozen=True, gc=False):
    """A row that has changed, or a frozen one that was shown again. None: the partition has no owner."""

    tp: TopicPartition
    before: Route | None
    after: Route | None


class Applied(msgspec.Struct, frozen=True):
    """What an update changed in the table."""

    rows: list[RowChange]
    completed: bool = False
    """A whole table has become the one in use."""


def succeeding(held: Route | None, shown: Route) -> Route:
    """The route in force when a later update shows this one."""
    if held is None or shown.epoch > held.epoch:
        return shown
    if shown.epoch < held.epoch:
        return held
    if not held.frozen or shown.frozen or shown.handoff_id not in ("", held.handoff_id):
        return shown
    return msgspec.structs.replace(shown, handoff_id=held.handoff_id, frozen=True)


class _Rebuild:
    """A whole table that is being received, or that is older than the one in use.

    It is compared with the one in use row by row as it arrives, so that little is left to do when it is complete."""

    def __init__(self, held: _Rows, unowned: dict[TopicPartition, Route], *, anew: bool) -> None:
        """`anew`: it is of another incarnation, whose epochs are not compared with those that are held."""
        self.complete = False
        self.routes: _Rows = {}
        self.topics: dict[str, int] = {}
        self.changed: dict[TopicPartition, RowChange] = {}
        self.size = 0
        self._held = held
        self._unowned = {} if anew else unowned
        self._back = 0
        """Of the rows, those of partitions that had no owner."""
        self._anew = anew

    @property
    def total(self) -> int:
        """How many partitions there are, with those that have no owner."""
        return self.size - self._back + len(self._unowned)

    def put(self, tp: TopicPartition, shown: Route) -> None:
        rows = self.routes.get(tp.topic)
        if rows is None:
            rows = self.routes[tp.topic] = {}
        if tp.partition not in rows:
            self.size += 1
            self._back += tp in self._unowned
        of_topic = self._held.get(tp.topic)
        held = of_topic.get(tp.partition) if of_topic is not None else None
        route = shown if self._anew else succeeding(held or self._unowned.get(tp), shown)
        rows[tp.partition] = route
        if route.frozen or route != held:
            self.changed[tp] = RowChange(tp, held, route)
        else:
            self.changed.pop(tp, None)

    def drop(self, tp: TopicPartition) -> None:
        self.changed.pop(tp, None)
        if self.routes.get(tp.topic, {}).pop(tp.partition, None) is not None:
            self.size -= 1
            self._back -= tp in self._unowned


class RoutingTable:
    """The routes of one group. Reading it never blocks; its router changes it, between any two steps of the program."""

    def __init__(self, *, max_partitions: int = MAX_PARTITIONS) -> None:
        self.revision = 0
        """The store's revision that the table shows; 0: no whole table has arrived yet."""
        self.generation = 0
        """The plan that was in force then."""
        self.incarnation = ""
        """Identity of the service's store; empty: not known."""
        self.stale = 0
        """Updates that were older than the table, and rows of epochs that were over."""
        self._max_partitions = max_partitions
        self._routes: _Rows = {}
        self._topics: dict[str, int] = {}
        self._size = 0
        # The last routes of partitions that have no owner: their epochs, and freezes, are not forgotten.
        self._unowned: dict[TopicPartition, Route] = {}
        self._rebuild: _Rebuild | None = None
        self._next_incarnation = ""
        self._opened = False

    # --- questions -----------------------------------------------------------------------------------------------

    def route(self, topic: str, partition: int) -> Route | None:
        """The owner of a partition; None: it has none, or is not known. Requests to a frozen one have to wait."""
        rows = self._routes.get(topic)
        return rows.get(partition) if rows is not None else None

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0: the topic is not known."""
        return self._topics.get(topic, 0)

    @property
    def topics(self) -> dict[str, int]:
        """The topics of the group, and how many partitions each has."""
        return dict(self._topics)

    def __len__(self) -> int:
        """How many partitions have an owner."""
        return self._size

    def __iter__(self) -> Iterator[tuple[TopicPartition, Route]]:
        for topic, rows in list(self._routes.items()):
            for partition, route in list(rows.items()):
                yield TopicPartition(topic, partition), route

    @property
    def is_behind(self) -> bool:
        """Whether the stream's instance shows an older state than the table."""
        return self._rebuild is not None and self._rebuild.complete

    # --- updates -------------------------------------------------------------------------------------------------

    def begin_stream(self) -> None:
        """Expect a whole table next, as the first update of a stream is one. What is held stays in use until then."""
        self._rebuild = None
        self._opened = False

    def apply(self, changes: TableChanges) -> Applied:
        """Apply one message of the stream. Raises `InvalidInput` if it can't be one, and `LimitReached` if the group
        has too many partitions."""
        if changes.full:
            self._begin_rebuild(changes)
        elif not self._opened:
            raise InvalidInput("the service sent changes before a whole table")
        if self._rebuild is not None:
            return self._apply_aside(changes, self._rebuild)
        if changes.revision < self.revision:
            self.stale += 1
            return Applied([])
        return Applied(self._apply_here(changes))

    def _begin_rebuild(self, changes: TableChanges) -> None:
        self._opened = True
        told = changes.opening.incarnation if changes.opening is not None else ""
        self._next_incarnation = told or self.incarnation
        self._rebuild = _Rebuild(self._routes, self._unowned, anew=self._begins_anew)

    @property
    def _begins_anew(self) -> bool:
        return self.incarnation not in ("", self._next_incarnation)

    def _apply_aside(self, changes: TableChanges, rebuild: _Rebuild) -> Applied:
        for topic, count in changes.topics:
            rebuild.topics[topic] = count
        for tp in changes.unowned:
            rebuild.drop(tp)
        for tp, route in changes.routes:
            rebuild.put(tp, route)
        self._check_size(rebuild.total)
        rebuild.complete = rebuild.complete or not changes.more
        if changes.more or not rebuild.complete:
            return Applied([])
        if changes.revision < self.revision and not self._begins_anew:
            self.stale += 1
            return Applied([])
        rows = self._adopt(rebuild)
        self.revision, self.generation = changes.revision, changes.generation
        return Applied(rows, completed=True)

    def _adopt(self, rebuild: _Rebuild) -> list[RowChange]:
        before, self._routes, self._size = self._routes, rebuild.routes, rebuild.size
        self._topics = {topic: count for topic, count in rebuild.topics.items() if count}
        rows = list(rebuild.changed.values())
        for topic, held in before.items():
            lost = held.keys() - rebuild.routes.get(topic, {}).keys()
            rows += [self._lost(TopicPartition(topic, partition), held[partition]) for partition in lost]
        if self._begins_anew:
            self._unowned.clear()
        self._forget()
        self.incarnation = self._next_incarnation
        self._rebuild = None
        return rows

    def _apply_here(self, changes: TableChanges) -> list[RowChange]:
        # Before anything is changed: what the table shows, the requests have to be told.
        routes, unowned = self._routes, self._unowned
        new = [tp for tp, _ in changes.routes if tp.partition not in routes.get(tp.topic, ()) and tp not in unowned]
        if new:
            self._check_size(self._size + len(unowned) + len(new))
        rows: list[RowChange] = []
        for topic, count in changes.topics:
            if count:
                self._topics[topic] = count
            else:
                self._topics.pop(topic, None)
                rows += [self._drop(TopicPartition(topic, one)) for one in list(self._routes.get(topic, ()))]
        for tp in changes.unowned:
            if self.route(tp.topic, tp.partition) is not None:
                rows.append(self._drop(tp))
        for tp, shown in changes.routes:
            rows += self._put(tp, shown)
        if any(not count for _, count in changes.topics):
            self._forget()
        if not changes.more:
            self.revision, self.generation = changes.revision, changes.generation
        return rows

    def _put(self, tp: TopicPartition, shown: Route) -> list[RowChange]:
        routes = self._routes.setdefault(tp.topic, {})
        held = routes.get(tp.partition)
        route = succeeding(held or self._unowned.get(tp), shown)
        if route.epoch > shown.epoch:
            self.stale += 1
        if held is None:
            self._size += 1
            self._unowned.pop(tp, None)
        elif route == held and not route.frozen:
            return []
        routes[tp.partition] = route
        return [RowChange(tp, held, route)]

    def _drop(self, tp: TopicPartition) -> RowChange:
        self._size -= 1
        return self._lost(tp, self._routes[tp.topic].pop(tp.partition))

    def _lost(self, tp: TopicPartition, held: Route) -> RowChange:
        self._unowned[tp] = held
        return RowChange(tp, held, None)

    def _forget(self) -> None:
        """Forget the partitions without an owner that are not partitions any more."""
        topics = self._topics
        self._unowned = {
            tp: held
            for tp, held in self._unowned.items()
            if tp.partition < topics.get(tp.topic, 0) and tp.partition not in self._routes.get(tp.topic, ())
        }

    def _check_size(self, size: int) -> None:
        if size > self._max_partitions:
            raise LimitReached(
                f"the group has more than {self._max_partitions} partitions, the most that a router keeps; split it"
            )
