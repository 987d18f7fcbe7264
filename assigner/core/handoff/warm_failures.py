"""Counts which consumers failed to warm which partition, and decides what goes into quarantine.

Failures are counted per partition by distinct consumer. The count is the leader's own and is lost with it. The
quarantine that it leads to is stored in the plan record, so that it survives the leader and operators see it.
"""

from __future__ import annotations

from collections.abc import Callable

from assigner.core.group import GroupState
from assigner.model.keys import TopicPartition
from assigner.model.records import Plan, Quarantined


class WarmFailures:
    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._by_partition: dict[TopicPartition, dict[str, str]] = {}
        self._read_from: Plan | None = None
        self._quarantined: frozenset[TopicPartition] = frozenset()

    def add(self, tp: TopicPartition, consumer: str, reason: str) -> bool:
        """A consumer failed to warm the partition. Returns whether the partition is to be quarantined for it."""
        failed = self._by_partition.setdefault(tp, {})
        failed[consumer] = reason
        return len(failed) >= self._state.options.quarantine_after or tp in self.quarantined

    def of(self, tp: TopicPartition) -> dict[str, str]:
        """Consumer -> why it failed to warm the partition."""
        return self._by_partition.get(tp, {})

    def clear(self) -> None:
        self._by_partition.clear()

    def forget(self, settled: Callable[[TopicPartition], bool]) -> None:
        """Drop the counts of partitions that are `settled` and not in quarantine."""
        for tp in [tp for tp in self._by_partition if settled(tp) and tp not in self.quarantined]:
            del self._by_partition[tp]

    @property
    def quarantined(self) -> frozenset[TopicPartition]:
        """The partitions that the stored plan lists."""
        plan = self._state.plan
        if plan is not self._read_from:
            self._read_from = plan
            self._quarantined = frozenset(TopicPartition(q.topic, q.partition) for q in plan.quarantined)
        return self._quarantined

    def next_quarantine(self) -> tuple[Quarantined, ...]:
        """What the plan should list: what it lists already, unless an operator asked for a rebalance since, and what is
        new."""
        options, plan = self._state.options, self._state.plan
        kept = () if options.rebalance_requests > plan.forgiven else plan.quarantined
        known = {(q.topic, q.partition) for q in kept}
        fresh = tuple(
            Quarantined(topic=tp.topic, partition=tp.partition, failed=tuple(failed), reason=[*failed.values()][-1])
            for tp, failed in self._by_partition.items()
            if len(failed) >= options.quarantine_after and (tp.topic, tp.partition) not in known
        )
        return (*kept, *fresh)
