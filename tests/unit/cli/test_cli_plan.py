"""`assigner plan` against files and against a real gRPC server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from assigner.cli import main
from assigner.cli.commands.spec_from_description import spec_of, with_weights
from assigner.proto.kafka_assigner.v1 import (
    ConsumerInfo,
    DescribeGroupResponse,
    DescribeLoadsResponse,
    GroupOptions,
    PartitionLoadInfo,
    Topic,
    TopicOwnership,
    TopicStandbys,
)
from tests.support.fakes.cli_service import ScriptedAdministration, serving

GROUP = {
    "topics": [{"name": "orders", "partitions": 10}],
    "members": [
        {"name": "A", "owned": {"orders": [0, 1, 2, 3]}},
        {"name": "B", "owned": {"orders": [4, 5, 6]}},
        {"name": "C", "owned": {"orders": [7, 8, 9]}},
    ],
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "group.json"
    path.write_text(json.dumps(GROUP))
    return str(path)


def plan(*arguments: str, **environment: str) -> Result:
    return CliRunner(env={"COLUMNS": "160", **environment}).invoke(main, ["plan", *arguments])


def planned(*arguments: str) -> dict[str, Any]:
    result = plan(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_without_a_change_nothing_moves(file: str) -> None:
    assert plan("--file", file).stdout.startswith("sticky_balanced: nothing moves")


def test_a_leave_is_shown_with_its_reasons(file: str) -> None:
    out = plan("--file", file, "--leave", "C", "--explain").stdout
    assert "0 of 10 partitions move" in out
    assert [line.strip().split(maxsplit=3) for line in out.splitlines() if line.startswith("orders/")] == [
        ["orders/7", "C", "A", "its owner C is gone"],
        ["orders/8", "C", "B", "its owner C is gone"],
        ["orders/9", "C", "B", "its owner C is gone"],
    ]


def test_a_join_takes_the_fewest_moves(file: str) -> None:
    found = planned("--file", file, "--join", "D")
    assert found["moves"] == found["lower_bound"] == 2
    assert {move["new"] for move in found["planned"]} == {"D"}
    assert {move["reason"] for move in found["planned"]} == {"topic_share"}


def test_a_newcomer_may_have_a_capacity_a_cap_and_topics(file: str) -> None:
    after = {share["member"]: share["after"] for share in planned("--file", file, "--join", "D,capacity=7")["shares"]}
    assert after["D"] == 7
    after = {share["member"]: share["after"] for share in planned("--file", file, "--join", "D,cap=1")["shares"]}
    assert after["D"] == 1
    assert planned("--file", file, "--join", "D,topics=bills", "--topic", "bills=4")["placed"] == 4


def test_a_heavy_partition_relieves_its_owner_of_others(file: str) -> None:
    found = planned("--file", file, "--weight", "orders/0=20")
    weight = {share["member"]: share["weight"] for share in found["shares"]}
    assert found["moves"] > 0
    assert weight["A"] == 20.0
    assert {move["reason"] for move in found["planned"]} == {"load"}


def test_another_strategy_has_its_own_reasons(file: str) -> None:
    found = planned("--file", file, "--strategy", "rendezvous")
    assert found["strategy"] == "rendezvous"
    assert {move["reason"] for move in found["planned"]} == {"rule"}


def test_standbys_are_counted(file: str) -> None:
    found = planned("--file", file, "--standbys", "1")
    assert sum(share["standbys"] for share in found["shares"]) == 10


def test_a_saved_plan_is_where_the_next_one_starts(file: str, tmp_path: Path) -> None:
    saved = str(tmp_path / "after.json")
    assert plan("--file", file, "--leave", "C", "--save", saved).exit_code == 0
    found = planned("--file", saved)
    assert found["planned"] == []
    assert [(share["member"], share["after"]) for share in found["shares"]] == [("A", 5), ("B", 5)]


def test_long_plans_are_cut_and_said_to_be(file: str) -> None:
    assert "... and 60 more; --explain lists all" in plan("--file", file, "--topic", "big=100").stdout


def test_what_was_dropped_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    path.write_text(json.dumps({**GROUP, "members": [{"name": "A", "owned": {"gone": [0]}}]}))
    assert "ignored: A owns gone, which does not exist" in plan("--file", str(path)).stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--leave", "X"], "no member X; members: A, B, C"),
        (["--join", "A"], "member A is in the group already"),
        (["--join", "D,size=3"], "'size=3' is not one of capacity, rack, cap, deployment, topics with a value"),
        (["--join", "D,capacity=much"], "'much' is not a number"),
        (["--join", "D,capacity=-1"], "the capacity of D is -1.0; it must be finite and more than 0"),
        (["--capacity", "A=nan"], "the capacity of A is nan"),
        (["--weight", "orders=3"], "'orders' is not TOPIC/PARTITION"),
        (["--weight", "orders/99=3"], "there is no partition orders/99"),
        (["--weight", "orders/1=0"], "the weight of orders/1 is 0.0; it must be finite and more than 0"),
        (["--topic", "orders=-3"], "topic orders has -3 partitions"),
        (["--topic", "orders"], "--topic 'orders' is not NAME=VALUE"),
        (["--strategy", "nope"], "no strategy named 'nope'; installed: "),
        (["--option", "balanse=both"], "'balanse'"),
    ],
)
def test_a_wrong_question_is_refused_with_the_remedy(file: str, arguments: list[str], says: str) -> None:
    result = plan("--file", file, *arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_a_group_or_a_file_is_needed(file: str) -> None:
    assert "name a GROUP of the running service, or a --file; not both" in plan().output
    assert plan("orders", "--file", file).exit_code == 2


def test_a_file_that_is_no_group_is_named(tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    path.write_text("[]")
    result = plan("--file", str(path))
    assert result.exit_code == 2
    assert f"{path}: not a group's description" in result.output


@pytest.fixture
def address() -> Iterator[str]:
    with serving(ScriptedAdministration()) as found:
        yield found


def test_a_live_group_is_read_with_what_is_in_flight(address: str) -> None:
    """`b` drains, so it is no member; what goes to `a` counts there already."""
    found = planned("orders", "--address", address, "--strategy", "sticky_balanced")
    assert [(share["member"], share["after"]) for share in found["shares"]] == [("a", 6)]
    assert {move["partition"] for move in found["planned"]} == {"t/3", "t/5"}


# --- rollouts ----------------------------------------------------------------------------------------------------


def homes(found: dict[str, Any]) -> dict[str, list[str]]:
    """Who gets what."""
    return {
        share["member"]: [move["partition"] for move in found["planned"] if move["new"] == share["member"]]
        for share in found["shares"]
        if share["gains"]
    }


def test_a_newcomer_of_a_rollout_waits_until_a_member_leaves(file: str) -> None:
    newcomer = ("--file", file, "--join", "N,deployment=v2")
    assert planned(*newcomer)["moves"] == 2
    rolling = (*newcomer, "--rollout", "v2")
    assert (planned(*rolling)["rollout"], planned(*rolling)["moves"]) == ("v2", 0)
    assert homes(planned(*rolling, "--leave", "C")) == {"N": ["orders/7", "orders/8", "orders/9"]}
    assert "a rollout is on: deployment 'v2' takes over what others leave" in plan(*rolling).stdout


def test_by_auto_the_deployment_of_the_newcomer_takes_over(file: str) -> None:
    found = planned("--file", file, "--rollout", "auto", "--join", "N,deployment=v2", "--leave", "C")
    assert found["rollout"] == "v2"
    assert homes(found) == {"N": ["orders/7", "orders/8", "orders/9"]}


def test_a_members_own_cap_is_kept_in_a_rollout(file: str) -> None:
    found = planned("--file", file, "--rollout", "v2", "--join", "N,deployment=v2,cap=1", "--leave", "C")
    assert {name: len(got) for name, got in homes(found).items()} == {"A": 1, "B": 1, "N": 1}


def test_a_cap_of_a_rollout_below_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    path.write_text(json.dumps({**GROUP, "rollout": "v2", "rollout_cap": -1}))
    result = plan("--file", str(path))
    assert result.exit_code == 2
    assert "rollout_cap is -1; it must be 0 (a fair share) or more" in result.stderr


def test_the_rollout_of_a_live_group_arrives() -> None:
    described = DescribeGroupResponse(
        options=GroupOptions(rollout="auto", rollout_cap=7),
        consumers=[ConsumerInfo(name="a", status="Ready", generation="v1", registered_at=5)],
    )
    spec = spec_of(described)
    assert (spec.rollout, spec.rollout_cap) == ("auto", 7)
    assert (spec.members[0].deployment, spec.members[0].registered_at) == ("v1", 5)


def test_a_consumer_that_wants_no_topic_is_no_member_of_the_plan() -> None:
    kafka = ConsumerInfo(name="k", status="Ready", kind="kafka", explicit_topics=True)
    everything = ConsumerInfo(name="a", status="Ready")
    some = ConsumerInfo(name="b", status="Ready", topics=["t"], explicit_topics=True)
    spec = spec_of(DescribeGroupResponse(consumers=[kafka, everything, some]))
    assert [member.name for member in spec.members] == ["a", "b"]


def test_racks_standbys_and_weights_of_a_live_group_arrive() -> None:
    described = DescribeGroupResponse(
        options=GroupOptions(strategy="sticky_balanced", standby_count=1),
        consumers=[ConsumerInfo(name="a", status="Ready", capacity=1.0, rack="r1")],
        topics=[Topic(name="t", partitions=3, racks=["r1", "r2"], replica_racks=[2, 0, 1, 1, 1, 0])],
        owners=["a"],
        ownership=[TopicOwnership(topic="t", partitions=[0], owners=[0], epochs=[1])],
        standbys=[TopicStandbys(topic="t", partitions=[1], holders=[0])],
    )
    heavy = PartitionLoadInfo(topic="t", partition=0, weight=8.0)
    spec = with_weights(spec_of(described), DescribeLoadsResponse(partitions=3, total=12.0, heaviest=[heavy]))
    assert spec.topics[0].replica_racks == (("r1", "r2"), ("r2",), ())
    assert spec.topics[0].weights == (8.0, 2.0, 2.0)
    assert spec.members[0].owned == {"t": (0,)}
    assert spec.members[0].standbys == {"t": (1,)}
    assert spec.standby_count == 1


def test_loads_of_nothing_weigh_the_same() -> None:
    described = DescribeGroupResponse(topics=[Topic(name="t", partitions=2)])
    spec = with_weights(spec_of(described), DescribeLoadsResponse(partitions=2))
    assert spec.topics[0].weights == (1.0, 1.0)
