"""A member says its subscription once, and later what has changed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from assigner.core.kafka_groups.modern.requests import Heartbeat
from assigner.core.kafka_groups.modern.subscription import Subscription, of_record, pattern_on_record
from assigner.model.records import Consumer

BEFORE = Subscription(names=("a", "b"), pattern="t.*", rack="r1", rebalance_timeout=60.0)


def heard(**said: Any) -> Heartbeat:
    return Heartbeat(**{"group": "g", "member_id": "m", "member_epoch": 5, **said})


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        pytest.param({}, {}, id="nothing said"),
        pytest.param({"names": ("c",)}, {"names": ("c",)}, id="other topics"),
        pytest.param({"names": ()}, {"names": ()}, id="no topics any more"),
        pytest.param({"pattern": ""}, {"pattern": ""}, id="no pattern any more"),
        pytest.param({"rack": "r2"}, {"rack": "r2"}, id="another rack"),
        pytest.param({"rebalance_timeout": 9.0}, {"rebalance_timeout": 9.0}, id="another timeout"),
        pytest.param({"member_epoch": -1, "names": (), "owned": frozenset()}, {}, id="a leave that says no topics"),
        pytest.param({"member_epoch": -1, "pattern": ""}, {}, id="a leave that says no pattern"),
    ],
)
def test_what_a_request_changes(said: dict[str, Any], changed: dict[str, Any]) -> None:
    expected = {"names": ("a", "b"), "pattern": "t.*", "rack": "r1", "rebalance_timeout": 60.0, **changed}
    after = BEFORE.after(heard(**said))

    assert {name: getattr(after, name) for name in expected} == expected


def test_a_resumed_member_goes_on_with_its_record_until_it_says_its_subscription() -> None:
    record = Consumer(consumer_name="c", topics=("t1", "t2"), pattern="t.*", rack="r1", release_timeout=7.0)
    resumed = of_record(record)

    assert (resumed.names, resumed.pattern, resumed.rack) == (("t1", "t2"), "t.*", "r1")
    assert resumed.after(heard()) == resumed
    stated = resumed.after(heard(names=("t9",)))
    assert (stated.names, stated.pattern, stated.rack, stated.rebalance_timeout) == (("t9",), "", "r1", 7.0)


def test_a_record_keeps_looking_for_topics_that_are_missing_yet() -> None:
    assert pattern_on_record(Subscription(names=("a",)), ()) == ""
    assert pattern_on_record(BEFORE, ()) == "t.*"
    kept = pattern_on_record(BEFORE, {"later.one"})
    assert [name for name in ("tx", "later.one", "laterXone", "a") if re.fullmatch(kept, name)] == ["tx", "later.one"]
