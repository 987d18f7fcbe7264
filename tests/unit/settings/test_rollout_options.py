"""What rollouts are asked for with: on the command line, on the wire, and what is refused there."""

from __future__ import annotations

import click
import pytest

from assigner.admin.group_options import check_options
from assigner.cli.commands.options import parse
from assigner.errors import InvalidInput
from assigner.model.records import GroupOptions
from assigner.proto.kafka_assigner import v1
from assigner.server.services.requests import Requests, option_changes, options_message


def test_a_command_line_becomes_options_of_the_group() -> None:
    wanted = option_changes(parse(["rollout=auto", "rollout_cap=4", "use_loads=yes"]))
    assert wanted == {"rollout": "auto", "rollout_cap": 4, "use_loads": True}
    options = check_options(GroupOptions(), wanted)
    assert (options.rollout, options.rollout_cap, options.use_loads) == ("auto", 4, True)
    told = options_message(options)
    assert (told.rollout, told.rollout_cap, told.use_loads) == ("auto", 4, True)
    assert option_changes(parse(["rollout="])) == {"rollout": ""}


@pytest.mark.parametrize(
    ("text", "says"),
    [("rollout_cap=-1", "rollout_cap='-1' is not a number"), ("use_loads=2", "use_loads='2' is not true or false")],
)
def test_a_command_line_that_makes_no_sense_is_refused(text: str, says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        parse([text])


@pytest.mark.parametrize("capacity", [-1.0, float("nan"), float("inf"), 1e300])
def test_a_capacity_that_is_no_share_is_refused_at_registration(capacity: float) -> None:
    read = Requests("default", lambda group: group)
    with pytest.raises(InvalidInput, match=r"capacity is .*it must be above 0"):
        read.registration(v1.RegisterRequest(consumer_name="c", capacity=capacity))


def test_no_capacity_is_the_ordinary_one() -> None:
    read = Requests("default", lambda group: group)
    assert read.registration(v1.RegisterRequest(consumer_name="c", generation="v2")).capacity == 1.0


def test_options_that_a_strategy_refuses_are_refused_when_they_are_set() -> None:
    """Not when a plan is due: then nobody listens."""
    with pytest.raises(InvalidInput, match="tipo"):
        check_options(GroupOptions(), {"strategy_options": {"tipo": 1}})


def test_options_that_were_invalid_before_do_not_prevent_changes_of_others() -> None:
    stored = GroupOptions(strategy="gone", strategy_options={"tipo": 1})
    assert check_options(stored, {"paused": True}).paused
