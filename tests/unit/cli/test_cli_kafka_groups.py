"""Groups of Kafka clients at the command line: both kinds, their members, and what strangers call themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from assigner.api import GroupDescription, GroupSummary, Member
from assigner.cli import main
from assigner.core.kafka_groups.classic.consumer_protocol import (
    ConsumerAssignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from assigner.model.kafka_groups import ClassicGroupDescription, ClassicMemberDescription, ClassicState
from assigner.model.records import Consumer
from tests.support.fakes.cli_service import ScriptedAdministration, description, serving
from tests.support.fakes.fake_service import FakeOffsets

Run = Callable[..., Result]
ESCAPE = "\x1b[2J"


class Described(ScriptedAdministration):
    """Answers with one description."""

    def __init__(self) -> None:
        super().__init__()
        self.description = description()

    async def describe(self, group: str) -> GroupDescription:
        return self.description

    async def groups(self) -> list[GroupSummary]:
        return [self.description.summary, msgspec.structs.replace(description().summary, group="other")]


@pytest.fixture
def service() -> Described:
    return Described()


@pytest.fixture
def run(service: Described) -> Iterator[Run]:
    with serving(service, offsets=FakeOffsets()) as address:

        def invoke(*arguments: str) -> Result:
            result = CliRunner(env={"ASSIGNER_ADDRESS": address, "COLUMNS": "250"}).invoke(main, arguments)
            assert "\x1b" not in result.output, "a terminal would act upon it"
            return result

        yield invoke


def consumer(name: str, **fields: Any) -> Member:
    return Member(Consumer(consumer_name=name, session=f"s-{name}", **fields), owned=1, warming=0, releasing=0)


def classic(**changes: Any) -> GroupDescription:
    member = ClassicMemberDescription(
        member_id="reader-1",
        client_id=f"app{ESCAPE}",
        client_host="10.0.0.7",
        metadata=encode_subscription(Subscription(topics=("orders",))),
        assignment=encode_assignment(ConsumerAssignment(partitions=(("orders", (0, 1, 2)),))),
    )
    group = ClassicGroupDescription(
        group="orders",
        state=ClassicState.STABLE,
        protocol_type="consumer",
        protocol="range",
        generation=4,
        leader="reader-1",
        members=(member, msgspec.structs.replace(member, member_id="other-1", instance_id="i-2", assignment=b"")),
    )
    changed = msgspec.structs.replace(group, **changes)
    plain = description()
    summary = msgspec.structs.replace(plain.summary, kind="classic", state=changed.state.value, consumers=2)
    return msgspec.structs.replace(plain, summary=summary, classic=changed, members=(), ownership=(), history=())


def section(output: str, title: str) -> list[list[str]]:
    """The words of the lines below a title, without the header."""
    lines = output[output.index(f"\n{title}") :].split("\n\n")[0].strip().splitlines()
    return [line.split() for line in lines[2:]]


# --- groups that Kafka 4 members share with others -----------------------------------------------------------------


def test_members_of_kinds_are_told_apart(run: Run, service: Described) -> None:
    kafka = consumer("app/m-1", kind="kafka", client_id=f"app{ESCAPE}", host="10.0.0.7", explicit_topics=True)
    service.description = msgspec.structs.replace(
        service.description, members=(kafka, consumer("grpc-1"), consumer("spark-1", kind="spark"))
    )
    result = run("describe", "orders")
    rows = {row[0]: row for row in section(result.stdout, "consumers")}
    assert [rows[name][1] for name in ("app/m-1", "grpc-1", "spark-1")] == ["kafka", "grpc", "spark"]
    assert rows["app/m-1"][-2:] == ["app\\x1b[2J", "10.0.0.7"]
    assert "none" in rows["app/m-1"], "a Kafka client that names no topic wants none"
    assert "all" in rows["grpc-1"]


def test_a_group_without_foreign_members_looks_as_before(run: Run) -> None:
    header = run("describe", "orders").stdout.split("\nconsumers\n")[1].splitlines()[0]
    assert header.split()[:2] == ["name", "status"]
    assert "host" not in header
    assert "kind" not in run("groups").stdout


def test_a_member_that_stepped_out_and_a_pattern_are_shown(run: Run, service: Described) -> None:
    away = consumer("i-1", kind="kafka", away=True, pattern="^o.*", topics=("orders",))
    service.description = msgspec.structs.replace(service.description, members=(away,))
    result = run("describe", "orders")
    assert "away" in section(result.stdout, "consumers")[0]
    assert "orders by ^o.*" in result.stdout
    (one,) = json.loads(run("describe", "orders", "-o", "json").stdout)["consumers"]
    assert (one["kind"], one["away"], one["pattern"]) == ("kafka", True, "^o.*")


# --- classic groups ------------------------------------------------------------------------------------------------


def test_groups_of_both_kinds_are_listed(run: Run, service: Described) -> None:
    service.description = classic()
    header, *rows = run("groups").stdout.splitlines()
    assert header.split()[-1] == "kind"
    assert [row.split()[8:] for row in rows] == [["classic,", "Stable"], ["assigner"]]


def test_a_classic_group_is_shown_with_its_members_and_what_they_agreed_upon(run: Run, service: Described) -> None:
    service.description = classic()
    result = run("describe", "orders")
    assert (
        "classic group, Stable; generation 4; consumer protocol range; coordinator at 10.0.0.1:50051" in result.stdout
    )
    rows = section(result.stdout, "members, as on record")
    assert rows == [
        ["other-1", "app\\x1b[2J", "10.0.0.7", "i-2", "orders", "0"],
        ["reader-1", "app\\x1b[2J", "10.0.0.7", "leader", "orders", "3"],
    ]
    assert section(result.stdout, "ownership") == [["orders", "reader-1", "3", "0-2"]]


def test_a_classic_group_as_json(run: Run, service: Described) -> None:
    service.description = classic()
    group = json.loads(run("describe", "orders", "-o", "json").stdout)["classic"]
    assert (group["state"], group["generation"], group["leader"]) == ("Stable", 4, "reader-1")
    assert group["members"][1] == {
        "member_id": "reader-1",
        "instance_id": None,
        "client_id": f"app{ESCAPE}",
        "host": "10.0.0.7",
        "topics": ["orders"],
        "assigned": {"orders": [0, 1, 2]},
    }


@pytest.mark.parametrize("garbage", [b"\x00", b"\xff" * 40, b"\x00\x01\x7f\xff\xff\xff"])
def test_what_members_hide_in_their_bytes_is_shown_by_its_size_if_it_can_not_be_read(
    run: Run, service: Described, garbage: bytes
) -> None:
    member = ClassicMemberDescription(member_id="m", metadata=garbage, assignment=garbage)
    service.description = classic(members=(member,))
    assert section(run("describe", "orders").stdout, "members, as on record")[0][-2:] == [str(len(garbage)), "bytes"]


def test_members_of_another_protocol_are_not_taken_for_consumers(run: Run, service: Described) -> None:
    service.description = classic(protocol_type="connect")
    result = run("describe", "orders")
    assert "bytes" in result.stdout
    assert "nothing is assigned" in result.stdout


# --- history -------------------------------------------------------------------------------------------------------


def test_the_last_moves_are_listed_and_can_be_picked(run: Run, service: Described) -> None:
    assert len(service.description.history) >= 1
    move = service.description.history[0]
    service.description = msgspec.structs.replace(
        service.description, history=(msgspec.structs.replace(move, topic="u"), move, move)
    )
    assert len(json.loads(run("history", "orders", "-o", "json").stdout)["history"]) == 3
    picked = run("history", "orders", "--partition", f"{move.topic}/{move.partition}", "--limit", "1")
    assert len(picked.stdout.splitlines()) == 2
    assert "no moves are on record" in run("history", "orders", "--partition", "v/0").stdout


def test_a_classic_group_has_no_history(run: Run, service: Described) -> None:
    service.description = classic()
    assert "no moves are kept" in run("history", "orders").stdout
