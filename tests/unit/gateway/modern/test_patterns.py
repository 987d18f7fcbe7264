"""Patterns of topics in RE2's syntax."""

from __future__ import annotations

import time

import pytest

from assigner.gateway.modern.patterns import MOST_CHARACTERS, InvalidPattern, check_pattern, matching

NAMES = frozenset({"t1", "t2", "xt1", "t1x", "events.a", "events-a"})


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", set()),
        ("t[0-9]", {"t1", "t2"}),
        ("(^t[12]$)", {"t1", "t2"}),
        ("t1|t2", {"t1", "t2"}),
        (r"events\..*", {"events.a"}),
        (".*", set(NAMES)),
        ("nothing", set()),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, expected: set[str]) -> None:
    assert matching(pattern, NAMES) == expected


@pytest.mark.parametrize(
    "pattern",
    ["(", "[", "a{1,2000}", "(?=ahead)", r"(a)\1", "a" * (MOST_CHARACTERS + 1), "\ud800"],
    ids=["unbalanced", "open", "repetition", "look-ahead", "back-reference", "long", "surrogate"],
)
def test_what_re2_does_not_take_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        check_pattern(pattern)


def test_no_pattern_takes_long() -> None:
    """The classic case of catastrophic backtracking; it would take longer than the universe has lasted."""
    check_pattern("(a*)*b")
    began = time.process_time()
    assert not matching("(a*)*b", frozenset({"a" * 249}))
    assert time.process_time() - began < 1
