"""The rules by which answers of heartbeats are held back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from assigner.core.kafka_groups.modern.holds import hold_until, next_interval, renewal_is_due
from tests.unit.core.kafka_groups.modern.test_requests import JOIN, POLL

FULL = msgspec.structs.replace(JOIN, member_epoch=5)


@pytest.mark.parametrize(
    ("request_", "changes", "expected"),
    [
        pytest.param(POLL, {}, 4.5, id="nothing to tell: for most of the interval"),
        pytest.param(POLL, {"expects_more": True}, 4.5, id="something to come: as long"),
        pytest.param(POLL, {"told": 1.0}, 0.6, id="the client was told a short interval"),
        pytest.param(POLL, {"has_news": True}, 0.0, id="news"),
        pytest.param(FULL, {}, 0.0, id="a full request"),
        pytest.param(JOIN, {"has_news": True, "expects_more": True}, 1.5, id="a join waits for its plan"),
        pytest.param(JOIN, {"has_news": True}, 0.0, id="a join that has all it can get"),
        pytest.param(JOIN, {"expects_more": True, "debounce": 60.0}, 5.0, id="a long debounce"),
    ],
)
def test_how_long_an_answer_is_held(request_: Any, changes: dict[str, Any], expected: float) -> None:
    usual = {"has_news": False, "expects_more": False, "told": 5.0, "interval": 5.0, "debounce": 1.0}

    assert hold_until(request_, **{**usual, **changes}) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, 5.0, id="usually"),
        pytest.param({"is_talkative": True}, 1.0, id="another request ended a hold not long ago"),
        pytest.param({"is_newcomer": True, "expects_more": True}, 0.2, id="a newcomer that expects more"),
        pytest.param({"expects_more": True}, 5.0, id="for a few seconds only"),
        pytest.param({"is_newcomer": True}, 5.0, id="that has all it can get"),
    ],
)
def test_which_interval_an_answer_says(changes: dict[str, Any], expected: float) -> None:
    usual = {"interval": 5.0, "is_talkative": False, "is_newcomer": False, "expects_more": False}

    assert next_interval(**{**usual, **changes}) == expected


def test_a_lease_is_renewed_about_four_times_in_its_ttl() -> None:
    assert not renewal_is_due(3.0, 15.0)
    assert renewal_is_due(4.0, 15.0)
