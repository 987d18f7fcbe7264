"""Two instances as processes on an etcd that is killed, restarted and frozen under them, and stopped meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.clients.threaded_consumers import Worker
from tests.support.servers.etcd import EtcdServer, EtcdUnavailableError
from tests.support.service_processes import CONSUMER_TTL, UP_WITHIN, Fleet, shown_on_failure, until

pytestmark = [pytest.mark.processes, pytest.mark.etcd, pytest.mark.xdist_group("processes-outages")]

PARTITIONS = 8
READY_AGAIN = 5.0


class OwnEtcd(Fleet):
    etcd: EtcdServer


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    try:
        server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    except EtcdUnavailableError as failure:
        pytest.skip(str(failure))
    if not server.fit_for_kill_tests:
        pytest.skip("this etcd release can lose writes when it is killed; run `make etcd` for a current one")
    with server:
        yield server


@pytest.fixture(scope="module")
def two_instances(etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEtcd]:
    fleet = OwnEtcd(etcd, tmp_path_factory.mktemp("fleet"))
    try:
        for name in "ab":
            fleet.add(name)
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def fleet(two_instances: OwnEtcd, request: pytest.FixtureRequest) -> Iterator[OwnEtcd]:
    with shown_on_failure(two_instances, request):
        try:
            two_instances.make_whole()
            yield two_instances
        finally:
            two_instances.etcd.thaw()


def _killed(etcd: EtcdServer, workers: list[Worker]) -> float:
    """Kill etcd, and start it again after every consumer has shut its gates; how long it was away."""
    etcd.kill()
    away = until(lambda: not any(worker.partitions for worker in workers), UP_WITHIN, "every gate is shut")
    etcd.restart()
    return away


def _frozen(etcd: EtcdServer, _workers: list[Worker]) -> float:
    """Freeze etcd for longer than any lease lives."""
    etcd.freeze()
    time.sleep(5)
    etcd.thaw()
    return 5.0


@pytest.mark.parametrize("outage", [_killed, _frozen], ids=["killed", "frozen"])
def test_an_outage_of_etcd_moves_nothing(fleet: OwnEtcd, outage: Callable[[EtcdServer, list[Worker]], float]) -> None:
    group = fleet.group(PARTITIONS, via="a")
    workers = [fleet.join(group, f"w{number}", at="ab"[number % 2]) for number in range(3)]
    fleet.wait_shared(group, *(worker.name for worker in workers), partitions=PARTITIONS)
    before = fleet.truth.assignments(group)

    away = outage(fleet.etcd, workers)

    ready = fleet.wait_ready(READY_AGAIN)
    led = until(lambda: fleet.truth.leader(group), READY_AGAIN, f"{group} is led again")
    began = time.monotonic()
    back = until(lambda: sum(len(one.partitions) for one in workers) == PARTITIONS, UP_WITHIN, "all gates are open")
    # A new leader counts the absent as dead one TTL after its term began: see beyond that.
    until(lambda: time.monotonic() > began + CONSUMER_TTL + 1, UP_WITHIN, "the leader has seen a whole TTL")
    print(f"away {away:.1f} s; after that ready in {ready:.2f} s, led in {led:.2f} s, at work in {back:.2f} s")
    assert fleet.truth.assignments(group) == before
    assert fleet.double_owners(group) == []
    # And the group works: what it is told next is done.
    fleet.join(group, "w3", at="a")
    fleet.wait_shared(group, "w0", "w1", "w2", "w3", partitions=PARTITIONS)


def test_an_instance_stopped_while_etcd_hangs_ends_in_time(fleet: OwnEtcd) -> None:
    group = fleet.group(PARTITIONS, via="a")
    leader = fleet.leader(group)
    fleet.join(group, "w", at=leader)
    fleet.wait_shared(group, "w", partitions=PARTITIONS)

    fleet.etcd.freeze()
    # The time that Kubernetes gives a pod.
    assert fleet[leader].process.terminate(30) == 0


def test_an_instance_signalled_twice_ends_at_once(fleet: OwnEtcd) -> None:
    leader = fleet.leader(fleet.group(PARTITIONS, via="a"))
    fleet.etcd.freeze()
    told = len(fleet[leader].lines("shutdown_requested"))
    fleet[leader].tell(signal.SIGTERM)
    until(lambda: len(fleet[leader].lines("shutdown_requested")) > told, UP_WITHIN, "the first signal is heard")
    assert fleet[leader].is_running

    # The status of one that did not wait for its farewells.
    assert fleet[leader].process.terminate(UP_WITHIN) == 130
