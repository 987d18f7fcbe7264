"""The log of ownership events says what happened to a group, and what it says of a run can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assigner.errors import InvalidInput
from assigner.model.names import session_digest
from assigner.model.records import GroupOptions, HandoffMode, Status
from assigner.observability.event_log import EventLog, EventSettings
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES, Cluster, tp

pytestmark = pytest.mark.virtual_time
EXCLUSIVE = GroupOptions(debounce=0.1, handoff_mode=HandoffMode.EXCLUSIVE)


async def start(cluster: Cluster, directory: Path, name: str = "i1", **settings: Any) -> None:
    await cluster.start_instance(name, events=EventSettings(directory=str(directory), **settings))


async def logged(cluster: Cluster, directory: Path, *names: str) -> list[dict[str, Any]]:
    """What the instances logged, once they have stopped, in order."""
    for name in names or ("i1",):
        if name in cluster.instances:
            await cluster.stop_instance(name)
    await eventually(lambda: not list(directory.glob(".*.open")) and bool(list(directory.glob("*.jsonl"))))
    return read(directory)


def read(directory: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: (line["term"], line["part"], line["seq"]))


def told(lines: list[dict[str, Any]], partition: int) -> list[str]:
    return [
        f"{line['event']} {line['member']}@{line['epoch']} {line['cause']}".strip()
        for line in lines
        if line["partition"] == partition
    ]


async def test_a_handover_is_recorded_as_an_overlap_of_two_epochs(any_cluster: Cluster, tmp_path: Path) -> None:
    await any_cluster.add_topic(partitions=2)
    await start(any_cluster, tmp_path)
    a = await any_cluster.join("a", answers_release=False)
    await any_cluster.until_counts(a=2)
    await any_cluster.join("b")
    await a.until("told to release", lambda c: bool(c.to_release))
    (moving,) = a.to_release
    await a.release(moving)
    await any_cluster.until_counts(a=1, b=1)
    lines = await logged(any_cluster, tmp_path)
    assert told(lines, moving.partition) == [
        "unowned @0", "assigned a@1 joined", "assigned b@2 joined", "released a@1 joined",
    ]  # fmt: skip
    assert told(lines, 1 - moving.partition) == ["unowned @0", "assigned a@1 joined"]
    assert {line["mode"] for line in lines} == {"overlap"}
    assert {line["instance"] for line in lines} == {"i1"}
    assert [line["seq"] for line in lines] == sorted(line["seq"] for line in lines)


@pytest.mark.cluster(options=EXCLUSIVE)
async def test_in_an_exclusive_group_the_release_comes_first(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.add_topic(partitions=2)
    await start(cluster, tmp_path)
    await cluster.join("a")
    await cluster.until_counts(a=2)
    await cluster.join("b")
    await cluster.until_counts(a=1, b=1)
    state = await cluster.state()
    (moved,) = state.owned["b"]
    lines = await logged(cluster, tmp_path)
    assert told(lines, moved.partition) == [
        "unowned @0", "assigned a@1 joined", "released a@1 joined", "assigned b@2 joined",
    ]  # fmt: skip
    assert {line["mode"] for line in lines} == {"exclusive"}


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_crash_is_recorded_when_the_lease_is_over_and_then_who_took_over(
    any_cluster: Cluster, tmp_path: Path
) -> None:
    await any_cluster.add_topic(partitions=1)
    await start(any_cluster, tmp_path)
    a = await any_cluster.join("a")
    await any_cluster.until_counts(a=1)
    await any_cluster.join("b", answers_warm=False)
    a.crash()
    await any_cluster.until_counts(within=90, b=1)
    assert told(await logged(any_cluster, tmp_path), 0) == [
        "unowned @0", "assigned a@1 joined", "away a@1 left", "assigned b@2 left",
    ]  # fmt: skip


async def test_a_new_session_of_the_same_name_is_a_loss_and_a_grant(any_cluster: Cluster, tmp_path: Path) -> None:
    await any_cluster.add_topic(partitions=1)
    await start(any_cluster, tmp_path)
    await any_cluster.join("a", session="first")
    await any_cluster.until_counts(a=1)
    await any_cluster.join("a", session="second")
    await any_cluster.until("restamped", lambda state: state.assignments[tp(0)].record.epoch == 2)
    lines = await logged(any_cluster, tmp_path)
    assert told(lines, 0) == ["unowned @0", "assigned a@1 joined", "lost a@1 takeover", "assigned a@2 takeover"]
    first, second = session_digest("first"), session_digest("second")
    assert [line["session"] for line in lines] == ["", first, first, second]


async def test_a_new_leader_begins_with_all_that_is_held(any_cluster: Cluster, tmp_path: Path) -> None:
    await any_cluster.add_topic(partitions=2)
    await start(any_cluster, tmp_path, "i1")
    await start(any_cluster, tmp_path, "i2")
    leader = await led_by(any_cluster)
    other = "i2" if leader == "i1" else "i1"
    await any_cluster.join("a", any_cluster.instances[other])
    await any_cluster.until_counts(a=2)
    await any_cluster.stop_instance(leader)
    await eventually(lambda: bool(any_cluster.instances[other].coordinators.active), within=30)
    lines = await logged(any_cluster, tmp_path, other)
    terms = sorted({line["term"] for line in lines})
    assert len(terms) == 2
    assert told([line for line in lines if line["term"] == terms[1]], 0) == ["held a@1"]
    assert {line["instance"] for line in lines if line["term"] == terms[1]} == {other}


async def led_by(cluster: Cluster) -> str:
    await eventually(lambda: any(one.coordinators.leading for one in cluster.instances.values()), within=30)
    return next(name for name, one in cluster.instances.items() if one.coordinators.leading)


async def test_what_can_not_be_read_did_not_end(any_cluster: Cluster, tmp_path: Path) -> None:
    await any_cluster.add_topic(partitions=1)
    await start(any_cluster, tmp_path)
    await any_cluster.join("a")
    await any_cluster.until_counts(a=1)
    await any_cluster.store.put(any_cluster.group.assignment(tp(0)), b"not JSON")
    await eventually(lambda: bool(any_cluster.instances["i1"].coordinators.active["g"]._mirror.state.unreadable))
    assert told(await logged(any_cluster, tmp_path), 0) == ["unowned @0", "assigned a@1 joined"]


async def test_after_events_were_dropped_the_log_begins_anew(
    any_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await any_cluster.add_topic(partitions=1)
    await start(any_cluster, tmp_path)
    # Somebody who takes nothing, so that the group is coordinated and its log begun.
    await any_cluster.put_consumer("leaving", lease_ttl=60.0, status=Status.DRAINING)
    await eventually(lambda: bool(any_cluster.instances["i1"].coordinators.active), within=30)
    taken, append = True, EventLog.append
    monkeypatch.setattr(EventLog, "append", lambda *arguments: taken and append(*arguments))
    taken = False
    await any_cluster.join("a")
    await any_cluster.until_counts(a=1)
    counted = any_cluster.instances["i1"].metrics.registry.get_sample_value
    await eventually(lambda: bool(counted("assigner_ownership_events_total", {"outcome": "dropped"})))
    taken = True
    await any_cluster.join("b")
    await any_cluster.instances["i1"].coordinators.active["g"]._mirror.resync()
    dropped = any_cluster.instances["i1"].metrics.registry.get_sample_value(
        "assigner_ownership_events_total", {"outcome": "dropped"}
    )
    lines = await logged(any_cluster, tmp_path)
    assert told(lines, 0) == ["unowned @0", "held a@1"]
    first, second = lines
    assert first["part"] < second["part"]
    assert dropped == 1


async def test_without_a_directory_nothing_is_logged(any_cluster: Cluster) -> None:
    await any_cluster.start_instance()
    assert any_cluster.instances["i1"].events is None


async def test_a_directory_that_can_not_be_written_is_refused_with_the_remedy(
    any_cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"events\.directory .* can't be written: .*; give a directory"):
        async with instance_logging_to(any_cluster, tmp_path / "file"):
            pass


def instance_logging_to(cluster: Cluster, directory: Path) -> Any:
    from assigner.instance import Instance

    return Instance(
        cluster._settings("i9", events=EventSettings(directory=str(directory))),
        clock=cluster.clock,
        backend=cluster.backend,
    )
