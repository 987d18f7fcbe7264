"""What operators see of standbys on the command line."""

from __future__ import annotations

import re

import click
import pytest
from rich.console import Console

from assigner.admin.group_options import check_options
from assigner.cli.commands import options
from assigner.cli.commands.group_view import view
from assigner.cli.output import description_fields
from assigner.errors import InvalidInput
from assigner.model.records import GroupOptions
from assigner.proto.kafka_assigner.v1 import (
    ConsumerInfo,
    DescribeGroupResponse,
    GroupSummary,
    HandoffInfo,
    MoveInfo,
    Topic,
    TopicOwnership,
    TopicStandbys,
)

ANSWER = DescribeGroupResponse(
    summary=GroupSummary(group="orders", partitions=3),
    consumers=[ConsumerInfo(name="a", owned=3), ConsumerInfo(name="b", standbys=2), ConsumerInfo(name="c", standbys=1)],
    topics=[Topic(name="t", partitions=3)],
    owners=["a", "b", "c"],
    ownership=[TopicOwnership(topic="t", partitions=[0, 1, 2], owners=[0, 0, 0], epochs=[1, 1, 1])],
    standbys=[TopicStandbys(topic="t", partitions=[0, 1, 2], holders=[1, 1, 2])],
    handoffs=[HandoffInfo(topic="t", partition=0, old_owner="a", new_owner="b", step="warming", warm=True)],
    history=[MoveInfo(at=1, topic="t", partition=2, old_owner="x", new_owner="c", cause="left", warm=True)],
)


def shown(answer: DescribeGroupResponse) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(view(answer))
    return captured.get()


def test_a_description_shows_who_holds_copies_of_what() -> None:
    text = shown(ANSWER)
    assert re.search(r"standbys\ntopic +holder +count +partitions *\nt +b +2 +0-1 *\nt +c +1 +2", text)
    assert re.search(r"\nb +0 +2 ", text.replace("Ready", ""))


def test_moves_to_a_holder_are_marked() -> None:
    text = shown(ANSWER)
    assert re.search(r"t/0 +a +b \(standby\) +warming", text)
    assert re.search(r"t/2 +x +c \(standby\) +left", text)


def test_a_group_without_standbys_shows_no_table_of_them() -> None:
    plain = DescribeGroupResponse(summary=ANSWER.summary, consumers=ANSWER.consumers)
    assert "holder" not in shown(plain)


def test_programs_get_one_entry_for_each_copy() -> None:
    assert description_fields(ANSWER)["standbys"] == [
        {"topic": "t", "partition": 0, "holder": "b"},
        {"topic": "t", "partition": 1, "holder": "b"},
        {"topic": "t", "partition": 2, "holder": "c"},
    ]


def test_the_count_is_an_option() -> None:
    assert options.parse(["standby_count=2"]).standby_count == 2
    with pytest.raises(click.UsageError, match="standby_count='-1' is not a number"):
        options.parse(["standby_count=-1"])


@pytest.mark.parametrize("count", [0, 1, 10])
def test_a_sensible_count_is_taken(count: int) -> None:
    assert check_options(GroupOptions(), {"standby_count": count}).standby_count == count


@pytest.mark.parametrize("count", [-1, 11, 1_000_000])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(InvalidInput, match="standby_count must be 0 to 10"):
        check_options(GroupOptions(), {"standby_count": count})
