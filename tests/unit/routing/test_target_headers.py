"""A target that a router writes into headers is read from them again; whatever else they say is refused."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assigner.errors import InvalidName
from assigner.model.names import check_name
from assigner.routing import Target
from assigner.routing.headers import (
    EPOCH,
    GROUP,
    OWNER,
    PARTITION,
    TOPIC,
    MalformedTarget,
    RequestTarget,
    headers_of,
    target_of,
)

HEADERS = {GROUP: "billing", OWNER: "worker-1", TOPIC: "orders", PARTITION: "3", EPOCH: "7"}


def is_name(text: str) -> bool:
    try:
        check_name("name", text)
    except InvalidName:
        return False
    return True


names = st.text(min_size=1, max_size=60).filter(is_name)
topics = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=249).filter(is_name)


@given(
    owner=names,
    group=names | st.just(""),
    topic=topics,
    partition=st.integers(0, 2**31 - 1),
    epoch=st.integers(0, 2**63 - 1),
)
def test_what_is_written_is_read_again(owner: str, group: str, topic: str, partition: int, epoch: int) -> None:
    headers = headers_of(Target(topic, partition, owner, "h:1", epoch), group)
    assert all(value.isascii() and value.isprintable() and value == value.strip() for value in headers.values())
    assert target_of(headers.items()) == RequestTarget(group, owner, topic, partition, epoch)


def test_names_of_headers_may_be_in_any_case_and_others_do_not_matter() -> None:
    headers: list[tuple[str, str | bytes]] = [("Host", "h:1"), ("x-bin", b"\xff")]
    headers += [(name.title(), value) for name, value in HEADERS.items()]
    assert target_of(headers) == RequestTarget("billing", "worker-1", "orders", 3, 7)


def test_a_request_without_these_headers_has_no_target() -> None:
    assert target_of([("host", "h:1"), ("assigner-error", "x")]) is None


@pytest.mark.parametrize("name", [OWNER, TOPIC, PARTITION, EPOCH])
def test_a_missing_header_is_named(name: str) -> None:
    with pytest.raises(MalformedTarget, match=f"{name} is missing"):
        target_of((one, value) for one, value in HEADERS.items() if one != name)


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_comes_twice_is_refused_even_with_the_same_value(name: str) -> None:
    with pytest.raises(MalformedTarget, match=f"{name} comes twice"):
        target_of([*HEADERS.items(), (name.upper(), HEADERS[name])])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in (PARTITION, EPOCH)
            for value in ("", "-1", "+1", " 1", "01", "1.0", "1e3", "x", "٣", "²")
        ),
        (PARTITION, str(2**31)),
        (EPOCH, str(2**63)),
        (EPOCH, "9" * 5_000),
        (TOPIC, ""),
        (TOPIC, "a b"),
        (TOPIC, ".."),
        (OWNER, ""),
        (OWNER, "%20"),
        (OWNER, "%ff"),
        (OWNER, "a" * 250),
        (OWNER, "a%00"),
        (GROUP, ""),
    ],
)
def test_a_header_that_breaks_its_rule_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(MalformedTarget, match=name) as refused:
        target_of((HEADERS | {name: value}).items())
    assert len(str(refused.value)) < 500
