"""Two instances as processes and consumers on both: some on a thread, some in processes that are frozen or doubled.

All consumers write what they do into one file. Its order is the proof: nothing appears in it under an epoch that
somebody else has gone beyond.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.clients.worker_process import SUPERSEDED
from tests.support.servers.etcd import RunningEtcd
from tests.support.service_processes import CONSUMER_TTL, UP_WITHIN, Child, Fleet, at, shown_on_failure, until

pytestmark = [pytest.mark.processes, pytest.mark.etcd, pytest.mark.xdist_group("processes-consumers")]

PARTITIONS = 8


@pytest.fixture(scope="module")
def two_instances(etcd_server: RunningEtcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(etcd_server, tmp_path_factory.mktemp("fleet"))
    try:
        for name in "ab":
            fleet.add(name)
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def fleet(two_instances: Fleet, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with shown_on_failure(two_instances, request):
        two_instances.make_whole()
        yield two_instances


def _works(fleet: Fleet, group: str, name: str, partitions: int) -> None:
    """Wait until the consumer has worked on that many partitions, from now on."""
    since = fleet.sink_size()

    def worked() -> bool:
        return len({one.tp for one in fleet.effects(group, since) if one.name == name}) >= partitions

    until(worked, UP_WITHIN, f"{name} works on {partitions} partitions of {group}")


# --- sharing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["overlap", "exclusive"])
def test_consumers_on_different_instances_share_a_group_and_hand_over(fleet: Fleet, mode: str) -> None:
    group = fleet.group(PARTITIONS, via="a", mode=mode)
    first = fleet.join(group, "first", at="a")
    fleet.wait_shared(group, "first", partitions=PARTITIONS)
    since = fleet.truth.revision + 1

    second = fleet.join(group, "second", at="b")
    took = fleet.wait_shared(group, "first", "second", partitions=PARTITIONS)
    print(f"{mode}: {PARTITIONS // 2} handoffs across instances in {took:.2f} s")

    assert (fleet.name_of(first.address), fleet.name_of(second.address)) == ("a", "b")
    steps = fleet.truth.handoff_steps(group, since)
    assert len(steps) == PARTITIONS // 2
    assert all(each[0] == "warming" and each[-1] == "deleted" for each in steps.values())
    until(lambda: len(second.partitions) == PARTITIONS // 2, UP_WITHIN, "the second one's gates are open")
    assert first.called("release") == second.called("warm") == PARTITIONS // 2
    assert first.partitions.keys().isdisjoint(second.partitions)
    # Both instances tell the same.
    told = [fleet.crew.describe(fleet[name].address, group) for name in "ab"]
    assert told[0].ownership == told[1].ownership

    first.drain()
    fleet.wait_shared(group, "second", partitions=PARTITIONS)
    until(lambda: len(second.partitions) == PARTITIONS, UP_WITHIN, "the second one works on everything")
    assert not first.called("revoked")
    assert not second.called("revoked")
    if mode == "exclusive":
        assert fleet.double_owners(group) == []


# --- instances that fail -----------------------------------------------------------------------------------------


def test_when_a_follower_is_killed_its_consumers_go_elsewhere_and_nothing_moves(fleet: Fleet) -> None:
    group = fleet.group(PARTITIONS, via="a")
    leader = fleet.leader(group)
    [follower] = fleet.others(leader)
    workers = [fleet.join(group, f"w{number}", at=follower) for number in range(3)]
    fleet.wait_shared(group, *(worker.name for worker in workers), partitions=PARTITIONS)
    before = fleet.truth.assignments(group)
    assert {fleet.name_of(worker.address) for worker in workers} == {follower}

    fleet[follower].kill()

    def elsewhere() -> bool:
        return all(fleet.name_of(worker.address) == leader for worker in workers)

    took = until(elsewhere, CONSUMER_TTL, "all consumers are served by the other instance")
    print(f"3 consumers served by the other instance after {took:.2f} s")
    until(lambda: sum(len(worker.partitions) for worker in workers) == PARTITIONS, UP_WITHIN, "all gates are open")
    assert fleet.truth.assignments(group) == before
    assert all(worker.statistics.links >= 2 for worker in workers)
    assert not any(worker.called("revoked") for worker in workers)


def test_when_all_instances_are_away_for_longer_than_the_ttl_nothing_moves(fleet: Fleet) -> None:
    group = fleet.group(PARTITIONS, via="a")
    workers = [fleet.join(group, f"w-{name}", at=name) for name in "ab"]
    fleet.spawn("child", [group], at="b")
    names = ("w-a", "w-b", "child")
    fleet.wait_shared(group, *names, partitions=PARTITIONS, within=UP_WITHIN)
    before, sessions = fleet.truth.assignments(group), {worker.session for worker in workers}

    for instance in fleet.instances.values():
        instance.kill()
    away = until(lambda: not fleet.truth.consumers(group), UP_WITHIN, "every registration has ended")
    assert all(not worker.partitions for worker in workers), "gates are shut before the leases end"
    for instance in fleet.instances.values():
        instance.start()
    fleet.wait_ready(UP_WITHIN)

    back = until(lambda: len(fleet.truth.consumers(group)) == 3, UP_WITHIN, "every consumer is registered again")
    until(lambda: sum(len(worker.partitions) for worker in workers) > 0, UP_WITHIN, "gates open again")
    _works(fleet, group, "child", 2)
    # A new leader counts the absent as dead one TTL after its term began: see beyond that.
    began = at(fleet[fleet.leader(group)].lines("term_started", group=group)[-1])
    until(lambda: time.time() > began + CONSUMER_TTL + 1, UP_WITHIN, "the new leader has seen a whole TTL")
    print(f"registrations gone after {away:.2f} s, back {back:.2f} s after the instances were ready")
    assert fleet.truth.assignments(group) == before
    assert {worker.session for worker in workers} == sessions
    assert fleet.double_owners(group) == []


# --- consumers that fail -----------------------------------------------------------------------------------------


def _lines(child: Child, event: str, group: str) -> list[str]:
    return [line["what"] for line in child.lines(event, group=group)]


def test_a_consumer_frozen_past_its_ttl_finds_its_gates_shut_and_joins_again(fleet: Fleet) -> None:
    exclusive, overlap = (fleet.group(PARTITIONS, via="a", mode=mode) for mode in ("exclusive", "overlap"))
    for group in (exclusive, overlap):
        fleet.join(group, "awake", at="a")
    sleeper = fleet.spawn("sleeper", [exclusive, overlap], at="b")
    for group in (exclusive, overlap):
        fleet.wait_shared(group, "awake", "sleeper", partitions=PARTITIONS, within=UP_WITHIN)
        _works(fleet, group, "sleeper", PARTITIONS // 2)
    had = {group: fleet.truth.assignments(group) for group in (exclusive, overlap)}

    # It stops in the middle of a piece of work: past the gate, before the effect.
    sleeper.tell(signal.SIGUSR1)
    sleeper.wait_frozen()
    began = time.monotonic()
    for group in (exclusive, overlap):
        fleet.wait_shared(group, "awake", partitions=PARTITIONS)
    print(f"its partitions moved after {time.monotonic() - began:.2f} s")
    for group in (exclusive, overlap):
        _works(fleet, group, "awake", PARTITIONS)
    revived = fleet.sink_size()
    sleeper.thaw()

    until(lambda: sleeper.lines("refused"), UP_WITHIN, "the work it was frozen in is refused")
    [refused] = sleeper.lines("refused")
    assert refused["reason"] == "GateClosed"
    for group in (exclusive, overlap):
        fleet.wait_shared(group, "awake", "sleeper", partitions=PARTITIONS)
        _works(fleet, group, "sleeper", PARTITIONS // 2)
        late = [one for one in fleet.effects(group, revived) if one.name == "sleeper"]
        superseded = [one for one in late if one.tp in had[group] and one.epoch <= had[group][one.tp].epoch]
        assert [str(one) for one in superseded] == []
        assert len(_lines(sleeper, "revoked", group)) == PARTITIONS // 2
    assert fleet.double_owners(exclusive) == []


@pytest.mark.parametrize("older_is", ["awake", "frozen"])
def test_a_second_process_of_the_same_name_wins_and_the_first_is_notified(fleet: Fleet, older_is: str) -> None:
    group = fleet.group(PARTITIONS, via="a")
    other = fleet.join(group, "other", at="a")
    older = fleet.spawn("twin", [group], at="a")
    fleet.wait_shared(group, "other", "twin", partitions=PARTITIONS, within=UP_WITHIN)
    _works(fleet, group, "twin", PARTITIONS // 2)
    before, released = fleet.truth.assignments(group), other.called("release")
    if older_is == "frozen":
        older.tell(signal.SIGUSR1)
        older.wait_frozen()

    newer = fleet.spawn("twin", [group], at="b")

    until(lambda: newer.lines("registered"), UP_WITHIN, "the newer one is registered")
    session = newer.lines("registered")[0]["session"]

    def taken_over() -> bool:
        twins = [one for one in fleet.truth.assignments(group).values() if one.owner == "twin"]
        return len(twins) == PARTITIONS // 2 and {one.session for one in twins} == {session}

    took = until(taken_over, 2 * CONSUMER_TTL, "the newer one owns what the older one owned")
    print(f"older one {older_is}: taken over {took:.2f} s after the newer one was registered")
    _works(fleet, group, "twin", PARTITIONS // 2)
    if older_is == "frozen":
        older.thaw()
    assert older.ended(within=10) == SUPERSEDED
    [ending] = older.lines("ended")
    assert ending["how"] == "Superseded"
    assert "twin" in ending["why"]
    assert newer.is_running
    assert len(older.lines("refused")) == (older_is == "frozen")

    after = fleet.truth.assignments(group)
    for tp, one in before.items():
        if one.owner == "other":
            assert after[tp] == one
        else:
            assert after[tp].epoch > one.epoch
    assert not other.called("revoked")
    assert other.called("release") == released
    assert fleet.double_owners(group) == []
