"""Metrics: the names are pinned, labels are bounded, and a scrape leaves the event loop alone."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from assigner.model.records import Cause, Status, Step
from assigner.observability.gateway_metrics import GatewaySnapshot
from assigner.observability.identity_metrics import IdentityFiles, IdentitySnapshot
from assigner.observability.instance_metrics import InstanceSnapshot
from assigner.observability.metrics import OTHER, BoundedNames, GroupSnapshot, Metrics, gather

PAGE = Path(__file__).parents[3] / "docs/reference/metrics.md"

NAMES = {
    "assigner_auth_denied": {"kind", "claim"},
    "assigner_auth_files_age_seconds": {"files"},
    "assigner_auth_reload_failures": {"files"},
    "assigner_auth_reloads": {"files"},
    "assigner_auth_tokens": {"outcome"},
    "assigner_build_info": {"version"},
    "assigner_connections": set(),
    "assigner_consumer_partitions": {"group", "consumer"},
    "assigner_evictions": {"group"},
    "assigner_gateway_brokers_up": set(),
    "assigner_gateway_buffered_bytes": set(),
    "assigner_gateway_connections": set(),
    "assigner_gateway_denied": {"kind", "claim"},
    "assigner_gateway_logins": {"outcome"},
    "assigner_gateway_members": set(),
    "assigner_gateway_parked_requests": set(),
    "assigner_gateway_received_bytes": set(),
    "assigner_gateway_refused": {"reason"},
    "assigner_gateway_requests": {"api"},
    "assigner_gateway_sent_bytes": set(),
    "assigner_gateway_upstream_connections": set(),
    "assigner_gateway_upstream_failures": set(),
    "assigner_group_consumers": {"group", "status"},
    "assigner_group_generation": {"group"},
    "assigner_group_handoffs": {"group", "step"},
    "assigner_group_imbalance": {"group"},
    "assigner_group_leader": {"group"},
    "assigner_group_partitions_owned_max": {"group"},
    "assigner_group_partitions_owned_min": {"group"},
    "assigner_group_partitions": {"group"},
    "assigner_group_partitions_quarantined": {"group"},
    "assigner_group_partitions_unowned": {"group"},
    "assigner_group_records_unreadable": {"group"},
    "assigner_handoff_step_seconds": {"step"},
    "assigner_load_reports": {"group"},
    "assigner_offset_commits": {"group", "outcome"},
    "assigner_topic_lookups": {"group", "outcome"},
    "assigner_topic_changes": {"group"},
    "assigner_ownership_events": {"outcome"},
    "assigner_event_segments": {"outcome"},
    "assigner_load_writes": {"outcome"},
    "assigner_loop_lag_seconds": set(),
    "assigner_moves": {"group", "cause"},
    "assigner_plan_seconds": set(),
    "assigner_queue_depth": {"queue"},
    "assigner_rebalance_seconds": set(),
    "assigner_classic_rebalance_seconds": set(),
    "assigner_classic_members_removed": {"group"},
    "assigner_refusals": {"reason"},
    "assigner_store_request_seconds": {"kind", "outcome"},
    "assigner_streams": set(),
    "assigner_records_unreadable": {"group"},
    "assigner_warm_failures": {"group"},
    "assigner_warm_actives": {"group"},
    "assigner_cold_actives": {"group"},
    "assigner_group_standbys": {"group"},
    "assigner_group_routers": {"group"},
    "assigner_group_partitions_frozen": {"group"},
    "assigner_freeze_acks": {"group", "outcome"},
    "assigner_freeze_seconds": set(),
    "assigner_freezes_overdue": {"group", "outcome"},
    "assigner_router_streams": set(),
    "assigner_groups": set(),
    "assigner_groups_led": set(),
    "assigner_groups_misplaced": set(),
    "assigner_store_read_only": set(),
    "assigner_handovers": set(),
    "assigner_instances": set(),
    "assigner_loop_restarts": {"loop"},
    "assigner_tasks": set(),
    "assigner_terms_failed": set(),
    "assigner_terms_lost": set(),
    "assigner_terms_won": set(),
}


def led(group: str, **fields: object) -> GroupSnapshot:
    return GroupSnapshot(group=group, is_leader=True, **fields)  # type: ignore[arg-type]


def busy(metrics: Metrics) -> Metrics:
    """One of everything."""
    metrics.moved("g", Cause.JOINED, 3)
    metrics.evicted("g")
    metrics.warm_failed("g")
    metrics.took_over("g", warm=True, cold=False)
    metrics.took_over("g", warm=False, cold=True)
    metrics.unreadable("g")
    metrics.load_reported("g")
    metrics.loads_written("ok")
    metrics.offsets_committed("g", "fenced", 2)
    metrics.topics_looked_up("g", "partial", 2)
    metrics.events_logged("written", 5)
    metrics.event_segment("complete")
    metrics.refused("NotRegistered")
    metrics.handoff_step(Step.WARMING, 1.5)
    metrics.rebalanced(0.2)
    metrics.classic_rebalanced(0.2)
    metrics.classic_member_removed("g")
    metrics.planned(0.01)
    metrics.observe("transact", 0.003, "conflict")
    metrics.loop_lag(0.001)
    metrics.streams(2)
    metrics.router_streams(2)
    metrics.freezes_acked("g", accepted=2, rejected=1)
    metrics.freeze_overdue("g", "abandon")
    metrics.thawed(0.1)
    metrics.connections(1)
    metrics.watch_depth("outbox", lambda: 7)
    metrics.instance = lambda: InstanceSnapshot(tasks=3, restarts={"mirror": 1})
    metrics.identity = lambda: IdentitySnapshot(
        denied={("denied", "groups"): 2}, files={"keys": IdentityFiles(1.5, 3, 1)}, tokens={"forged": 4}
    )
    metrics.gateway = lambda: GatewaySnapshot(
        requests={1: 5, 9_999: 2, 9_998: 1}, refused={"idle": 1}, logins={"ok": 1}, denied={("denied", "groups"): 1}
    )
    return metrics


def series(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render_here().decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return series(metrics).get((name, frozenset(labels.items())))


def test_names_and_labels_are_pinned() -> None:
    metrics = busy(Metrics(lambda: [led("g", owned={"a": 1})], per_consumer=True))
    found = {
        family.name: {label for sample in family.samples for label in sample.labels} - {"le"}
        for family in text_string_to_metric_families(metrics.render_here().decode())
        if family.name.startswith("assigner_")
    }
    assert found == NAMES


def test_the_reference_page_lists_exactly_these_names() -> None:
    listed = set(re.findall(r"^\| `(assigner_\w+)`", PAGE.read_text(), re.MULTILINE))
    assert {name.removesuffix("_total") for name in listed} == set(NAMES)


def test_what_is_reported_is_what_is_scraped() -> None:
    metrics = busy(Metrics())
    assert value(metrics, "assigner_moves_total", group="g", cause="joined") == 3
    assert value(metrics, "assigner_refusals_total", reason="NotRegistered") == 1
    assert value(metrics, "assigner_store_request_seconds_count", kind="transact", outcome="conflict") == 1
    assert value(metrics, "assigner_handoff_step_seconds_sum", step="warming") == 1.5
    assert value(metrics, "assigner_queue_depth", queue="outbox") == 7
    assert value(metrics, "assigner_streams") == 2


def test_a_groups_state_is_read_at_scrape_time() -> None:
    snapshot = [led("g", partitions=1)]
    metrics = Metrics(lambda: snapshot)
    assert value(metrics, "assigner_group_partitions", group="g") == 1
    snapshot[0] = led("g", partitions=2, consumers={Status.READY: 4}, handoffs={Step.WARMING: 5})
    assert value(metrics, "assigner_group_partitions", group="g") == 2
    assert value(metrics, "assigner_group_consumers", group="g", status="Ready") == 4
    assert value(metrics, "assigner_group_consumers", group="g", status="Draining") == 0
    assert value(metrics, "assigner_group_handoffs", group="g", step="warming") == 5


def test_a_follower_publishes_no_state_so_that_sums_over_instances_are_true() -> None:
    metrics = Metrics(lambda: [GroupSnapshot(group="g", partitions=9)])
    assert value(metrics, "assigner_group_leader", group="g") == 0
    assert value(metrics, "assigner_group_partitions", group="g") is None


def test_series_per_consumer_only_come_on_request() -> None:
    def snapshots() -> list[GroupSnapshot]:
        return [led("g", owned={"a": 1})]

    assert value(Metrics(snapshots), "assigner_consumer_partitions", group="g", consumer="a") is None
    assert value(Metrics(snapshots, per_consumer=True), "assigner_consumer_partitions", group="g", consumer="a") == 1


def test_groups_past_the_bound_are_counted_together() -> None:
    groups = [led(f"g{number}", partitions=10, owned_max=number) for number in range(5)]
    metrics = Metrics(lambda: groups, max_groups=2)
    assert value(metrics, "assigner_group_partitions", group="g1") == 10
    assert value(metrics, "assigner_group_partitions", group="g2") is None
    assert value(metrics, "assigner_group_partitions", group=OTHER) == 30
    assert value(metrics, "assigner_group_partitions_owned_max", group=OTHER) == 4
    metrics.moved("g4", Cause.LEFT)
    assert value(metrics, "assigner_moves_total", group=OTHER, cause="left") == 1


def test_ten_thousand_groups_make_no_more_series_than_the_bound() -> None:
    metrics = Metrics(max_groups=10)
    for number in range(10_000):
        metrics.moved(f"g{number}", Cause.LEFT)
    names = {labels for name, labels in series(metrics) if name == "assigner_moves_total"}
    assert len(names) == 11


def test_reasons_are_bounded_too() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.refused(f"reason{number}")
    reasons = [labels for name, labels in series(metrics) if name == "assigner_refusals_total"]
    assert len(reasons) == 51


def test_an_unled_group_among_the_others_does_not_hide_the_led_ones() -> None:
    groups = [GroupSnapshot(group="a"), led("b", partitions=3), GroupSnapshot(group="c")]
    gathered = gather(groups, BoundedNames(0))
    assert gathered[OTHER].is_leader
    assert gathered[OTHER].partitions == 3


def test_two_services_in_one_process_keep_their_metrics_apart() -> None:
    one, other = Metrics(), Metrics()
    one.moved("g", Cause.LEFT)
    assert value(other, "assigner_moves_total", group="g", cause="left") is None


async def test_snapshots_are_taken_on_the_loop_and_encoded_off_it() -> None:
    threads: list[int] = []

    class Watched(dict[str, int]):
        def items(self):  # type: ignore[no-untyped-def]
            threads.append(threading.get_ident())
            return super().items()

    def snapshots() -> list[GroupSnapshot]:
        threads.append(threading.get_ident())
        return [led("g", owned=Watched(a=1))]

    metrics = Metrics(snapshots, per_consumer=True)
    assert b"assigner_consumer_partitions" in await metrics.render()
    here = threading.get_ident()
    assert threads[0] == here
    assert threads[1] != here


def test_requests_of_kafka_clients_are_counted_by_the_apis_name_and_unknown_ones_together() -> None:
    metrics = busy(Metrics())
    assert value(metrics, "assigner_gateway_requests_total", api="Fetch") == 5
    assert value(metrics, "assigner_gateway_requests_total", api="_other") == 3


def test_an_instance_without_a_gateway_has_no_figures_of_one() -> None:
    assert not [name for name, _ in series(Metrics()) if name.startswith("assigner_gateway_")]
