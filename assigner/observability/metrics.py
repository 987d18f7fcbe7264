"""Exports Prometheus metrics of one service, on a registry of its own, so that several services fit in one process.

Series are aggregated: by group up to a bound, by cause, by step, and by consumer only if configured. The state of
groups is read at each scrape: the event loop takes the snapshots, and a thread formats them, so a scrape of many series
does not block the loop. Only the instance that leads a group publishes its state, so a sum over instances is correct.

Not promised: separate counters for groups beyond the bound. They are summed up as `_other`.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import TypeVar

import anyio.to_thread
import msgspec
from anyio import CapacityLimiter
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from assigner import __version__
from assigner.core.group import GroupState
from assigner.core.routers.quorum import required
from assigner.model.records import Cause, Status, Step
from assigner.observability.gateway_metrics import GatewaySnapshot, gateway_families
from assigner.observability.identity_metrics import IdentitySnapshot, identity_families
from assigner.observability.instance_metrics import InstanceSnapshot, instance_families

CONTENT_TYPE = CONTENT_TYPE_LATEST
OTHER = "_other"
MAX_REASONS = 50

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_LAG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class GroupSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of a group at this instance. A follower only fills `group` and leaves `is_leader` False."""

    group: str
    is_leader: bool = False
    generation: int = 0
    consumers: Mapping[Status, int] = {}
    partitions: int = 0
    unowned: int = 0
    quarantined: int = 0
    owned_min: int = 0
    owned_max: int = 0
    imbalance: int = 0
    handoffs: Mapping[Step, int] = {}
    unreadable: int = 0
    standbys: int = 0
    routers: int = 0
    frozen: int = 0
    owned: Mapping[str, int] = {}
    """Partitions per consumer; read only with `per_consumer`."""


class BoundedNames:
    """Bounds the values of a label: the first `limit` names as they are, the rest as `_other`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: set[str] = set()

    def label(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= self._limit:
            return OTHER
        self._names.add(name)
        return name


class Metrics:
    """The metrics that drivers report to. Every method is cheap and safe to call from the event loop."""

    def __init__(
        self,
        snapshots: Callable[[], Iterable[GroupSnapshot]] = tuple,
        *,
        max_groups: int = 200,
        per_consumer: bool = False,
    ) -> None:
        """`snapshots` is called on the event loop at each scrape."""
        self.registry = CollectorRegistry(auto_describe=False)
        self.snapshots = snapshots
        self.instance: Callable[[], InstanceSnapshot] = InstanceSnapshot
        """Called on the event loop at each scrape, as `snapshots` is."""
        self.identity: Callable[[], IdentitySnapshot] = IdentitySnapshot
        """Called in the same way."""
        self.gateway: Callable[[], GatewaySnapshot | None] = lambda: None
        """Called in the same way; None: this instance has no gateway."""
        self.per_consumer = per_consumer
        self._groups = BoundedNames(max_groups)
        self._reasons = BoundedNames(MAX_REASONS)
        self._depths: dict[str, Callable[[], int]] = {}
        # One scrape at a time, so that concurrent scrapes do not use up the thread pool.
        self._scraping = CapacityLimiter(1)
        self._declare_counters()
        self._declare_durations()
        self._declare_gauges()

    def _declare_counters(self) -> None:
        registry = self.registry
        self._moves = Counter(
            "assigner_moves", "Partitions given to another owner.", ["group", "cause"], registry=registry
        )
        self._evictions = Counter(
            "assigner_evictions",
            "Sessions ended because a handoff step passed its deadline.",
            ["group"],
            registry=registry,
        )
        self._classic_removals = Counter(
            "assigner_classic_members_removed",
            "Members of classic Kafka groups that left, were too late, or whose session was over.",
            ["group"],
            registry=registry,
        )
        self._warm_failures = Counter(
            "assigner_warm_failures", "Partitions a new owner could not warm.", ["group"], registry=registry
        )
        self._warm_actives = Counter(
            "assigner_warm_actives", "Partitions given to a holder of a standby copy.", ["group"], registry=registry
        )
        self._cold_actives = Counter(
            "assigner_cold_actives",
            "Partitions given to a consumer without a copy while another one held one.",
            ["group"],
            registry=registry,
        )
        self._freeze_acks = Counter(
            "assigner_freeze_acks", "Acks of freezes taken from routers.", ["group", "outcome"], registry=registry
        )
        self._freezes_overdue = Counter(
            "assigner_freezes_overdue",
            "Freezes that routers did not ack in time, by what became of them.",
            ["group", "outcome"],
            registry=registry,
        )
        self._load_reports = Counter(
            "assigner_load_reports", "Reports of load taken from consumers.", ["group"], registry=registry
        )
        self._load_writes = Counter("assigner_load_writes", "Records of loads written.", ["outcome"], registry=registry)
        self._offset_commits = Counter(
            "assigner_offset_commits",
            "Offsets of partitions, by how their commit ended.",
            ["group", "outcome"],
            registry=registry,
        )
        self._topic_lookups = Counter(
            "assigner_topic_lookups",
            "Looks at Kafka for a group's topics, by how they ended.",
            ["group", "outcome"],
            registry=registry,
        )
        self._topic_changes = Counter(
            "assigner_topic_changes", "Changes of topics that Kafka reported.", ["group"], registry=registry
        )
        self._events = Counter(
            "assigner_ownership_events", "Lines of the ownership event log.", ["outcome"], registry=registry
        )
        self._segments = Counter(
            "assigner_event_segments", "Segments of the ownership event log.", ["outcome"], registry=registry
        )
        self._refusals = Counter("assigner_refusals", "Requests refused.", ["reason"], registry=registry)
        self._unreadable = Counter(
            "assigner_records_unreadable", "Stored values met that could not be read.", ["group"], registry=registry
        )

    def _declare_durations(self) -> None:
        def histogram(
            name: str, says: str, labels: Iterable[str] = (), buckets: tuple[float, ...] = _SLOW
        ) -> Histogram:
            return Histogram(name, says, list(labels), buckets=buckets, registry=self.registry)

        self._steps = histogram("assigner_handoff_step_seconds", "Time a handoff spent in a step.", ["step"])
        self._frozen = histogram("assigner_freeze_seconds", "Time a partition was frozen at routers.", buckets=_FAST)
        self._rebalances = histogram("assigner_rebalance_seconds", "From the first change to the plan's last write.")
        self._classic_rebalances = histogram(
            "assigner_classic_rebalance_seconds",
            "From the first change of a classic group to its new assignment.",
        )
        self._plans = histogram("assigner_plan_seconds", "Time the strategy took.", buckets=_FAST)
        self._store = histogram(
            "assigner_store_request_seconds", "Time the store took to answer.", ["kind", "outcome"], _FAST
        )
        self._lag = histogram("assigner_loop_lag_seconds", "How late the event loop's ticker woke up.", buckets=_LAG)

    def _declare_gauges(self) -> None:
        self._streams = Gauge("assigner_streams", "Open consumer streams.", registry=self.registry)
        self._router_streams = Gauge("assigner_router_streams", "Open router streams.", registry=self.registry)
        self._connections = Gauge("assigner_connections", "Open gRPC connections.", registry=self.registry)
        self._depth = Gauge("assigner_queue_depth", "Items waiting.", ["queue"], registry=self.registry)
        build = Gauge("assigner_build_info", "The running version; always 1.", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        ProcessCollector(registry=self.registry)

    # What happened. ----------------------------------------------------------------------------------------------

    def moved(self, group: str, cause: Cause, count: int = 1) -> None:
        self._moves.labels(self._groups.label(group), cause.value).inc(count)

    def took_over(self, group: str, *, warm: bool, cold: bool) -> None:
        """Count a partition whose new owner held a standby copy (`warm`), or held none although another did
        (`cold`)."""
        if warm:
            self._warm_actives.labels(self._groups.label(group)).inc()
        if cold:
            self._cold_actives.labels(self._groups.label(group)).inc()

    def evicted(self, group: str) -> None:
        self._evictions.labels(self._groups.label(group)).inc()

    def classic_member_removed(self, group: str) -> None:
        self._classic_removals.labels(self._groups.label(group)).inc()

    def warm_failed(self, group: str) -> None:
        self._warm_failures.labels(self._groups.label(group)).inc()

    def freezes_acked(self, group: str, *, accepted: int, rejected: int) -> None:
        for outcome, count in (("accepted", accepted), ("rejected", rejected)):
            self._freeze_acks.labels(self._groups.label(group), outcome).inc(count)

    def freeze_overdue(self, group: str, outcome: str) -> None:
        """Count a freeze past its deadline. `outcome`: abandon or proceed."""
        self._freezes_overdue.labels(self._groups.label(group), outcome).inc()

    def unreadable(self, group: str) -> None:
        self._unreadable.labels(self._groups.label(group)).inc()

    def load_reported(self, group: str) -> None:
        self._load_reports.labels(self._groups.label(group)).inc()

    def loads_written(self, outcome: str) -> None:
        """Count a write of loads. `outcome`: ok, failed or unreadable."""
        self._load_writes.labels(outcome).inc()

    def offsets_committed(self, group: str, outcome: str, count: int) -> None:
        """Count commits of offsets. `outcome`: committed, fenced, unknown_partition or failed."""
        self._offset_commits.labels(self._groups.label(group), outcome).inc(count)

    def topics_looked_up(self, group: str, outcome: str, changed: int) -> None:
        """Count a lookup of topics. `outcome`: ok, partial (Kafka did not describe all topics) or failed."""
        label = self._groups.label(group)
        self._topic_lookups.labels(label, outcome).inc()
        self._topic_changes.labels(label).inc(changed)

    def events_logged(self, outcome: str, count: int) -> None:
        """Count ownership events. `outcome`: written or dropped."""
        self._events.labels(outcome).inc(count)

    def event_segment(self, outcome: str) -> None:
        """Count a segment of the event log. `outcome`: complete, failed (left unfinished) or deleted (there were too
        many)."""
        self._segments.labels(outcome).inc()

    def refused(self, reason: str, count: int = 1) -> None:
        """Count refusals. `reason` is a constant of the program, such as an error's class name, never a client's
        text."""
        self._refusals.labels(self._reasons.label(reason)).inc(count)

    # How long it took. -------------------------------------------------------------------------------------------

    def handoff_step(self, step: Step, seconds: float) -> None:
        self._steps.labels(step.value).observe(seconds)

    def thawed(self, seconds: float) -> None:
        """Observe how long a partition was frozen at routers."""
        self._frozen.observe(seconds)

    def rebalanced(self, seconds: float) -> None:
        self._rebalances.observe(seconds)

    def classic_rebalanced(self, seconds: float) -> None:
        """Observe how long the members of a classic Kafka group took to agree on a generation."""
        self._classic_rebalances.observe(seconds)

    def planned(self, seconds: float) -> None:
        self._plans.observe(seconds)

    def observe(self, kind: str, seconds: float, outcome: str) -> None:
        """Observe a request to the store: `kind` such as `transact`, `outcome` such as `ok`, `conflict`,
        `unavailable`."""
        self._store.labels(kind, outcome).observe(seconds)

    def loop_lag(self, seconds: float) -> None:
        self._lag.observe(seconds)

    # How much there is. ------------------------------------------------------------------------------------------

    def streams(self, count: int) -> None:
        self._streams.set(count)

    def router_streams(self, count: int) -> None:
        self._router_streams.set(count)

    def connections(self, count: int) -> None:
        self._connections.set(count)

    def watch_depth(self, queue: str, read: Callable[[], int]) -> None:
        """Export the depth of a queue; `read` is called on the event loop at each scrape."""
        self._depths[queue] = read

    # Scraping. ---------------------------------------------------------------------------------------------------

    async def render(self) -> bytes:
        """Render all series as text. Only the snapshots are taken on the event loop."""
        async with self._scraping:
            scrape = self._snap()
            return await anyio.to_thread.run_sync(scrape.encode)

    def render_here(self) -> bytes:
        """Render all series as text, synchronously, for programs without an event loop."""
        return self._snap().encode()

    def _snap(self) -> _Scrape:
        for queue, read in self._depths.items():
            self._depth.labels(queue).set(read())
        gathered = gather(self.snapshots(), self._groups)
        return _Scrape(self.registry, gathered, self.instance(), self.identity(), self.gateway(), self.per_consumer)


class _Scrape(Collector):
    """One scrape: the registry's own series, and snapshots of the instance and its groups from when it began."""

    def __init__(
        self,
        registry: CollectorRegistry,
        groups: Mapping[str, GroupSnapshot],
        instance: InstanceSnapshot,
        identity: IdentitySnapshot,
        gateway: GatewaySnapshot | None,
        per_consumer: bool,
    ) -> None:
        self._registry = registry
        self._groups = groups
        self._instance = instance
        self._identity = identity
        self._gateway = gateway
        self._per_consumer = per_consumer

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            # The client library adds a `_created` series to each counter; these are left out.
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
        yield from instance_families(self._instance)
        yield from identity_families(self._identity)
        yield from gateway_families(self._gateway)
        yield from group_families(self._groups, per_consumer=self._per_consumer)

    def encode(self) -> bytes:
        return generate_latest(self)


# --- groups ------------------------------------------------------------------------------------------------------


def gather(snapshots: Iterable[GroupSnapshot], names: BoundedNames) -> dict[str, GroupSnapshot]:
    """Collect snapshots by label; those beyond the bound are summed up."""
    found: dict[str, GroupSnapshot] = {}
    for snapshot in snapshots:
        label = names.label(snapshot.group)
        before = found.get(label)
        found[label] = snapshot if before is None else _added(before, snapshot)
    return found


def _added(one: GroupSnapshot, other: GroupSnapshot) -> GroupSnapshot:
    if not (one.is_leader and other.is_leader):
        return one if one.is_leader else other
    return GroupSnapshot(
        group=OTHER,
        is_leader=True,
        generation=max(one.generation, other.generation),
        consumers=_summed(one.consumers, other.consumers),
        partitions=one.partitions + other.partitions,
        unowned=one.unowned + other.unowned,
        quarantined=one.quarantined + other.quarantined,
        owned_min=min(one.owned_min, other.owned_min),
        owned_max=max(one.owned_max, other.owned_max),
        imbalance=max(one.imbalance, other.imbalance),
        handoffs=_summed(one.handoffs, other.handoffs),
        unreadable=one.unreadable + other.unreadable,
        standbys=one.standbys + other.standbys,
        routers=one.routers + other.routers,
        frozen=one.frozen + other.frozen,
    )


_E = TypeVar("_E", bound=Enum)


def _summed(one: Mapping[_E, int], other: Mapping[_E, int]) -> dict[_E, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {*one, *other}}


_PLAIN: tuple[tuple[str, str, Callable[[GroupSnapshot], int]], ...] = (
    ("assigner_group_generation", "Generation of the published plan.", lambda group: group.generation),
    ("assigner_group_partitions", "Partitions of the group's topics.", lambda group: group.partitions),
    ("assigner_group_partitions_unowned", "Partitions without an owner.", lambda group: group.unowned),
    ("assigner_group_partitions_quarantined", "Partitions nobody could warm.", lambda group: group.quarantined),
    (
        "assigner_group_partitions_owned_min",
        "Of the consumer with the fewest.",
        lambda group: group.owned_min,
    ),
    ("assigner_group_partitions_owned_max", "Of the consumer with the most.", lambda group: group.owned_max),
    ("assigner_group_imbalance", "Most minus fewest, as the strategy counts it.", lambda group: group.imbalance),
    ("assigner_group_standbys", "Standby copies on registered consumers.", lambda group: group.standbys),
    ("assigner_group_routers", "Routers that freezes wait for.", lambda group: group.routers),
    ("assigner_group_partitions_frozen", "Partitions whose requests routers hold back.", lambda group: group.frozen),
    (
        "assigner_group_records_unreadable",
        "Records that can't be decoded.",
        lambda group: group.unreadable,
    ),
)


def group_families(groups: Mapping[str, GroupSnapshot], *, per_consumer: bool) -> Iterator[Metric]:
    leader = GaugeMetricFamily("assigner_group_leader", "Whether this instance leads the group.", labels=["group"])
    for label, group in groups.items():
        leader.add_metric([label], int(group.is_leader))
    yield leader
    led = {label: group for label, group in groups.items() if group.is_leader}
    for name, says, read in _PLAIN:
        family = GaugeMetricFamily(name, says, labels=["group"])
        for label, group in led.items():
            family.add_metric([label], read(group))
        yield family
    yield _by_kind("assigner_group_consumers", "Registered consumers.", "status", led, Status, lambda g: g.consumers)
    yield _by_kind("assigner_group_handoffs", "Handoffs in flight.", "step", led, Step, lambda g: g.handoffs)
    if per_consumer:
        yield _consumers(led)


def _by_kind(
    name: str,
    says: str,
    label: str,
    led: Mapping[str, GroupSnapshot],
    kinds: type[_E],
    read: Callable[[GroupSnapshot], Mapping[_E, int]],
) -> Metric:
    """Make one series per kind, also at zero: an absent series looks like a missing exporter."""
    family = GaugeMetricFamily(name, says, labels=["group", label])
    for group, snapshot in led.items():
        counts = read(snapshot)
        for kind in kinds:
            family.add_metric([group, kind.value], counts.get(kind, 0))
    return family


def _consumers(led: Mapping[str, GroupSnapshot]) -> Metric:
    family = GaugeMetricFamily("assigner_consumer_partitions", "Partitions owned.", labels=["group", "consumer"])
    for label, snapshot in led.items():
        for consumer, count in snapshot.owned.items():
            family.add_metric([label, consumer], count)
    return family


# A group's state as the few numbers that metrics show.


def snapshot(state: GroupState, is_leader: bool) -> GroupSnapshot:
    if not is_leader:
        return GroupSnapshot(group=state.keys.group)
    partitions = state.partitions()
    ready = [name for name, consumer in state.consumers.items() if consumer.record.status is Status.READY]
    owned = {name: len(state.owned.get(name, ())) for name in state.consumers}
    counts = [owned[name] for name in ready] or [0]
    return GroupSnapshot(
        group=state.keys.group,
        is_leader=True,
        generation=state.plan.generation,
        consumers=collections.Counter(consumer.record.status for consumer in state.consumers.values()),
        partitions=partitions,
        unowned=state.unowned(),
        quarantined=len(state.plan.quarantined),
        owned_min=min(counts),
        owned_max=max(counts),
        imbalance=max(counts) - min(counts),
        handoffs=collections.Counter(handoff.record.at for handoff in state.handoffs.values()),
        unreadable=len(state.unreadable),
        standbys=sum(len(state.copies.get(name, ())) for name in state.consumers),
        routers=len(required(state)),
        frozen=sum(handoff.record.freezes for handoff in state.handoffs.values()) if state.has_routers else 0,
        owned=owned,
    )
