"""What may be a name, and what may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assigner.errors import InvalidName
from assigner.model.names import MAX_NAME_BYTES, check_name, check_topic


@pytest.mark.parametrize(
    "name", ["a", "a..b", "...", "a.b", "Größe", "水", "a/b", "a b", "~", "%2F", "x" * MAX_NAME_BYTES]
)
def test_printable_text_is_a_name(name: str) -> None:
    assert check_name("consumer", name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("x" * (MAX_NAME_BYTES + 1), "longer than"),
        ("x" * 65_536, "longer than"),
        ("水" * 84, "longer than"),
        ("a\nb", "printed"),
        ("a\x00", "printed"),
        ("\x7f", "printed"),
        ("a\u202eb", "printed"),
        ("\ud800", "printed"),
        (".", "reserved"),
        ("..", "reserved"),
    ],
)
def test_a_name_that_breaks_a_rule_is_refused_with_the_kind_and_the_rule(name: str, why: str) -> None:
    with pytest.raises(InvalidName, match=why) as refused:
        check_name("consumer", name)
    assert str(refused.value).startswith("consumer ")


@given(st.text(max_size=300))
def test_every_text_is_either_a_name_or_refused(name: str) -> None:
    try:
        check_name("group", name)
    except InvalidName as refused:
        message = str(refused)
    else:
        message = ""
        assert 0 < len(name.encode()) <= MAX_NAME_BYTES
    assert len(message) < 2000


@pytest.mark.parametrize("topic", ["a", "a.b", "a_b-C.9", "x" * 249, "..."])
def test_what_kafka_calls_a_topic_is_one(topic: str) -> None:
    assert check_topic(topic) == topic


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a/b", "ä", "a:b", "x" * 250, "a\n"])
def test_what_kafka_refuses_is_no_topic(topic: str) -> None:
    with pytest.raises(InvalidName):
        check_topic(topic)
