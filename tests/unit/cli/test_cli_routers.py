"""What operators see of routers on the command line, and what they choose for an overdue freeze."""

from __future__ import annotations

import re

import click
import pytest
from rich.console import Console

from assigner.admin.group_options import check_options
from assigner.cli.commands import options
from assigner.cli.commands.group_view import view
from assigner.errors import InvalidInput
from assigner.model.records import FreezeOverdue, GroupOptions
from assigner.proto.kafka_assigner import v1
from assigner.server.services.requests import option_changes, options_message

ANSWER = v1.DescribeGroupResponse(
    summary=v1.GroupSummary(group="orders", partitions=3),
    routers=[
        v1.RouterInfo(name="edge-1", session="abc", unacked=2, silent_for=4.2),
        v1.RouterInfo(name="edge-2", session="", unacked=0),
    ],
    handoffs=[
        v1.HandoffInfo(topic="t", partition=0, old_owner="a", new_owner="b", step="freezing", unacked=["edge-1"])
    ],
    history=[v1.MoveInfo(at=1, topic="t", partition=2, old_owner="x", new_owner="c", cause="left", unacked=["r", "s"])],
)


def shown(answer: v1.DescribeGroupResponse) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(view(answer))
    return captured.get()


def test_a_description_shows_each_router_and_how_much_waits_for_it() -> None:
    text = shown(ANSWER)
    assert re.search(r"\nedge-1 +2 +4 s ago +abc", text)
    assert re.search(r"\nedge-2 +0 +unreadable, or lost its name", text)


def test_a_handoff_shows_the_routers_it_waits_for_and_a_move_those_it_did_not_wait_for() -> None:
    text = shown(ANSWER)
    assert re.search(r"t/0 +a +b +freezing +edge-1", text)
    assert re.search(r"t/2 +x +c +left +0 +0 +r, s", text)


def test_a_group_without_routers_shows_no_table_of_them() -> None:
    assert "routers" not in shown(v1.DescribeGroupResponse(summary=ANSWER.summary))


# --- freeze_overdue ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", list(FreezeOverdue))
def test_the_option_goes_from_the_command_line_to_the_record_and_back(choice: FreezeOverdue) -> None:
    asked = options.parse([f"freeze_overdue={choice.value}"])
    stored = check_options(GroupOptions(), option_changes(asked))
    assert stored.freeze_overdue is choice
    assert options.plain(options_message(stored))["freeze_overdue"] == choice.value


def test_another_value_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="use one of: abandon, proceed"):
        option_changes(v1.GroupOptions(freeze_overdue="wait"))
    with pytest.raises(InvalidInput):
        check_options(GroupOptions(), {"freeze_overdue": "wait"})
    with pytest.raises(click.UsageError, match="freeze_overdue"):
        options.parse(["freeze_overdu=wait"])
