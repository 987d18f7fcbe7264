"""Three instances as processes, leading a hundred groups: killed, frozen and told to stop.

What moved is read from etcd's own history. An assignment that is equal here has not even been rewritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from assigner.model.keys import AssignmentKey, HandoffKey, PlanKey
from tests.support.network.holding_proxy import HoldingProxy
from tests.support.servers.etcd import RunningEtcd
from tests.support.service_processes import LEADER_TTL, UP_WITHIN, Fleet, at, shown_on_failure, until

pytestmark = [pytest.mark.processes, pytest.mark.etcd, pytest.mark.xdist_group("processes-leaders")]

GROUPS = 100
PARTITIONS = 12
TAKEOVER = LEADER_TTL + 2


class HeldUp(Fleet):
    """Instance `a` reaches etcd by a proxy that can hold up what it sends."""

    proxy: HoldingProxy


@pytest.fixture(scope="module")
def hundred_groups(etcd_server: RunningEtcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldUp]:
    """Three instances, started one by one; the first one led every group for a while."""
    topics = [f"--topic=idle-{number}/events=1" for number in range(GROUPS)]
    fleet = HeldUp(etcd_server, tmp_path_factory.mktemp("fleet"), topics)
    fleet.proxy = HoldingProxy(etcd_server.endpoint)
    try:
        fleet.crew.run(fleet.proxy.start())
        for name, endpoint in (("a", fleet.proxy.endpoint), ("b", ""), ("c", "")):
            fleet.add(name, endpoint).start()
            until(lambda: name in fleet.truth.leaders().values(), UP_WITHIN, f"{name} leads a group")  # noqa: B023
        yield fleet
    finally:
        fleet.crew.run(fleet.proxy.stop())
        fleet.close()


@pytest.fixture
def fleet(hundred_groups: HeldUp, request: pytest.FixtureRequest) -> Iterator[HeldUp]:
    with shown_on_failure(hundred_groups, request):
        hundred_groups.make_whole()
        yield hundred_groups


def _led(fleet: Fleet) -> Counter[str]:
    return Counter(leader for group, leader in fleet.truth.leaders().items() if group.startswith("idle-"))


def _led_by(fleet: Fleet, leader: str) -> str:
    """A new group that this instance leads."""
    while True:
        group = fleet.group(PARTITIONS, via="b")
        if fleet.leader(group) == leader:
            return group


def test_a_hundred_groups_spread_over_three_instances_started_one_by_one(fleet: HeldUp) -> None:
    def is_spread() -> bool:
        led = _led(fleet)
        return led.total() == GROUPS and all(25 <= led[name] <= 42 for name in "abc")

    until(is_spread, 20, f"each of three leads 25 to 42 of {GROUPS} groups; they lead {_led(fleet)}")
    print(f"groups led: {dict(_led(fleet))}")


def test_when_a_leader_is_killed_others_lead_in_time_and_nothing_moves(fleet: HeldUp) -> None:
    group = fleet.group(PARTITIONS, via="a")
    victim = fleet.leader(group)
    workers = [fleet.join(group, f"w-{name}", at=name) for name in fleet.others(victim)]
    fleet.wait_shared(group, *(worker.name for worker in workers), partitions=PARTITIONS)
    before, everything = fleet.truth.assignments(group), set(fleet.truth.leaders())
    orphans = _led(fleet)[victim]

    fleet[victim].kill()

    def all_led() -> bool:
        leaders = fleet.truth.leaders()
        return set(leaders) == everything and victim not in leaders.values()

    took = until(all_led, TAKEOVER, f"all of {len(everything)} groups are led by others than {victim}")
    print(f"{orphans} orphaned groups led again after {took:.2f} s")
    # The new leader has begun to work, and finds nothing to do.
    new = fleet.leader(group)
    until(lambda: fleet[new].lines("coordination_started", group=group), UP_WITHIN, f"{new} coordinates {group}")
    assert fleet.truth.assignments(group) == before
    assert not any(worker.called("revoked") for worker in workers)
    assert fleet.double_owners(group) == []


def test_a_leader_frozen_past_its_ttl_writes_nothing_more(fleet: HeldUp) -> None:
    group = _led_by(fleet, "a")
    fleet.join(group, "there", at="b")
    here = fleet.join(group, "here", at="a")
    fleet.wait_shared(group, "there", "here", partitions=PARTITIONS)
    before, old = fleet.truth.assignments(group), fleet.truth.leader(group)

    # Its decisions are on their way to etcd, and it is frozen before they arrive.
    fleet.crew.run(fleet.proxy.hold())
    fleet.join(group, "newcomer", at="b")
    until(lambda: fleet.proxy.holds(f"/{group}/handoffs/"), UP_WITHIN, "handoffs to the newcomer are on their way")
    fleet["a"].freeze()
    # The next leader is to leave everything as it was. Nothing but the leader itself has changed when they arrive, so
    # nothing but their fence can stop them.
    fleet.crew.set_options(fleet["b"].address, group, paused=True)
    took = fleet.wait_led_by_another(group, "a", TAKEOVER)
    new = fleet.leader(group)
    until(lambda: fleet[new].lines("coordination_started", group=group), UP_WITHIN, f"{new} coordinates {group}")
    until(lambda: fleet.name_of(here.address) not in ("", "a"), UP_WITHIN, "the frozen one's consumer is elsewhere")
    assert fleet.truth.assignments(group) == before

    since, answered = fleet.truth.revision + 1, fleet.proxy.answered
    late = fleet.crew.run(fleet.proxy.release())
    until(lambda: fleet.proxy.answered > answered, UP_WITHIN, "etcd answers what came so late")
    fleet["a"].thaw()
    assert old is not None
    until(
        lambda: fleet["a"].lines("term_ended", group=group, term=old.term), UP_WITHIN, "the revived leader steps down"
    )
    fleet.wait_ready(UP_WITHIN)
    print(f"led by another after {took:.2f} s; {late} bytes came late and changed nothing")

    keys = fleet.truth.keys.group(group)
    changes = fleet.truth.history(group, since)
    assert not [one for one in changes if isinstance(keys.parse(one.key), AssignmentKey | HandoffKey | PlanKey)]
    # And the new leader's writes go through.
    fleet.crew.set_options(fleet["b"].address, group, paused=False)
    fleet.wait_shared(group, "there", "here", "newcomer", partitions=PARTITIONS)
    assert fleet.double_owners(group) == []


def test_a_leader_that_is_stopped_hands_over_at_once_and_nothing_moves(fleet: HeldUp) -> None:
    group = fleet.group(PARTITIONS, via="a")
    old = fleet.leader(group)
    workers = [fleet.join(group, f"w-{name}", at=name) for name in fleet.instances]
    fleet.wait_shared(group, *(worker.name for worker in workers), partitions=PARTITIONS)
    listener = fleet.crew.last_words(fleet[old].address, fleet.group(1, via=old, mode="overlap"), "listener")
    before, held = fleet.truth.assignments(group), [worker.partitions for worker in workers]
    orphans = _led(fleet)[old]

    status = fleet[old].process.terminate(15)

    assert status == 0
    fleet.wait_led_by_another(group, old, UP_WITHIN)
    new = fleet.leader(group)
    until(lambda: fleet[new].lines("term_started", group=group), UP_WITHIN, f"{new} says that it leads")
    gap = at(fleet[new].lines("term_started", group=group)[-1]) - at(fleet[old].lines("term_ended", group=group)[-1])
    print(f"{orphans + 1} groups handed over, {group} without a leader for {gap:.3f} s")
    assert gap < LEADER_TTL, "handed over, not found expired"
    told, why = listener.result(UP_WITHIN)
    assert told == "UNAVAILABLE", why
    until(lambda: not {worker.address for worker in workers} & {"", fleet[old].address}, UP_WITHIN, "all are elsewhere")
    until(lambda: [worker.partitions for worker in workers] == held, UP_WITHIN, "all own what they owned")
    assert fleet.truth.assignments(group) == before
    assert all(worker.statistics.links >= 2 for worker in workers if worker.name == f"w-{old}")
    assert not any(worker.called("revoked") for worker in workers)
