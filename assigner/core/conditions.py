"""Conditions of a group: what an operator should know, because the group can't repair it by itself.

Most conditions are derived from the records by every instance. What only the leader finds out, it puts into the plan
record, so that every instance can report it and a new leader finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from assigner.core.group import GroupState
from assigner.core.planning.copartitions import copartition_sets, largest_set, slots
from assigner.core.writes import Write
from assigner.model.keys import TopicPartition
from assigner.model.records import Condition, HandoffMode, Step

NOT_EXCLUSIVE_YET = "not_exclusive_yet"
NOT_RENEWING = "not_renewing"
SET_TOO_LARGE = "set_too_large"
SET_UNEVEN = "set_uneven"
TOPIC_MISSING = "topic_missing"
WRITE_TOO_LARGE = "write_too_large"
NAMED = 5
"""Consumers or partitions that a condition names; the rest is counted."""
MOST = 20
"""Conditions of one kind that are listed; the rest is counted."""


def conditions(state: GroupState) -> tuple[Condition, ...]:
    """All conditions of the group, in a fixed order, so that they can be compared."""
    derived = (
        _not_exclusive_yet(state),
        _not_renewing(state),
        _too_large(state),
        _uneven(state),
        _missing_topics(state),
    )
    return (*(condition for found in derived for condition in _bounded(found)), *state.plan.conditions)


def _not_exclusive_yet(state: GroupState) -> Iterator[Condition]:
    """In an exclusive group, only handoffs from before the switch to exclusive are ever complete."""
    if state.options.handoff_mode is not HandoffMode.EXCLUSIVE:
        return
    left = sorted(tp for tp, handoff in state.handoffs.items() if handoff.record.at is Step.COMPLETE)
    if left:
        owners = sorted({repr(state.handoffs[tp].record.old_owner) for tp in left})
        yield Condition(
            kind=NOT_EXCLUSIVE_YET,
            message=f"{len(left)} handoffs were complete when the group became exclusive, and their old owners have "
            f"not released yet: {_some(map(str, left))} by {_some(owners)}; the group is exclusive when they are gone",
        )


def _not_renewing(state: GroupState) -> Iterator[Condition]:
    names = not_renewing(state)
    if names and state.options.handoff_mode is HandoffMode.EXCLUSIVE:
        yield Condition(
            kind=NOT_RENEWING,
            message=f"consumers of this exclusive group do not renew a session of their own: {_some(names)}; nothing "
            "makes them stop in time. Stop them, or set handoff_mode to overlap",
        )


def not_renewing(state: GroupState) -> list[str]:
    """Consumers that must not be in an exclusive group, by name, quoted; with those that can't be read."""
    known = (name for name, consumer in state.consumers.items() if not consumer.record.keeps_a_session)
    return [repr(name) for name in sorted({*known, *state.unreadable_consumers})]


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more


def _too_large(state: GroupState) -> Iterator[Condition]:
    most = largest_set(state.limits)
    for topics in state.options.copartitioned:
        if len(topics) > most:
            yield Condition(
                kind=SET_TOO_LARGE,
                message=f"the co-partition set of {min(topics)!r} has {len(topics)} topics; a transaction of this "
                f"store can move {most} as one, so it is cut into sets of {most} in name order; name smaller sets",
            )


def _uneven(state: GroupState) -> Iterator[Condition]:
    for topics in copartition_sets(state):
        counts = {state.topics[topic].record.partition_count for topic in topics}
        if len(counts) > 1:
            together = slots(state, topics)
            yield Condition(
                kind=SET_UNEVEN,
                message=f"topics of the co-partition set of {topics[0]!r} have {together} to {max(counts)} partitions; "
                f"partitions from {together} on move by themselves until the counts are equal",
            )


def _missing_topics(state: GroupState) -> Iterator[Condition]:
    names = sorted(repr(topic) for topic, config in state.topics.items() if config.record.missing)
    if names:
        yield Condition(
            kind=TOPIC_MISSING,
            message=f"Kafka does not have these topics any more: {_some(names)}; their committed offsets count for "
            "nothing until they are back. If they were deleted, delete them here, too",
        )


def _bounded(found: Iterable[Condition]) -> list[Condition]:
    listed = list(found)
    if len(listed) > MOST:
        more = Condition(kind=listed[MOST].kind, message=f"and {len(listed) - MOST} more like these")
        return [*listed[:MOST], more]
    return listed


class OversizedWrites:
    """Writes that do not fit into a transaction although they are alone in it, by the topics they are about.

    Kept in the leader's memory; the conditions made of them are in the plan record too."""

    def __init__(self) -> None:
        self._conditions: dict[tuple[str, ...], Condition] = {}
        self._held: dict[tuple[str, ...], set[TopicPartition]] = {}

    def __len__(self) -> int:
        return len(self._conditions)

    def add(self, write: Write, why: str) -> None:
        topics = _topics(write)
        about = f"co-partition set of {topics[0]!r} ({len(topics)} topics)" if len(topics) > 1 else _one(write)
        self._held.setdefault(topics, set()).update(write.partitions)
        self._conditions[topics] = Condition(
            kind=WRITE_TOO_LARGE,
            message=f"a write ({write.purpose.value}) about the {about} is too large for the store: {why}; it is tried "
            "again now and then. Name smaller co-partition sets, or let the store take larger transactions",
        )

    def committed(self, write: Write) -> None:
        """A write about these topics fitted, so those before it would fit now."""
        if self._conditions and write.partitions:
            topics = _topics(write)
            self._conditions.pop(topics, None)
            self._held.pop(topics, None)

    def forget(self) -> set[TopicPartition]:
        """Topics or sets have changed. Returns the partitions that were held back."""
        held = set().union(*self._held.values())
        self._conditions.clear()
        self._held.clear()
        return held

    def conditions(self) -> tuple[Condition, ...]:
        return tuple(_bounded(self._conditions[topics] for topics in sorted(self._conditions)))


def _topics(write: Write) -> tuple[str, ...]:
    return tuple(sorted({tp.topic for tp in write.partitions}))


def _one(write: Write) -> str:
    return f"partition {write.partitions[0]}" if write.partitions else "group itself"
