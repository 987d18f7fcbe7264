"""Principals, and the patterns that say which groups and names are theirs."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assigner.auth.identity import MOST_PATTERNS, Role, matches, matches_any, principal
from assigner.errors import AssignerError

# Few letters, so that parts repeat and overlap.
PATTERNS = st.text("ab*", min_size=1, max_size=12)
TEXTS = st.text("ab", max_size=16)


@given(PATTERNS, TEXTS)
@example("a*a", "a")
@example("ab*ba", "aba")
@example("*", "")
@example("**", "a")
@example("a*ab*b", "aabb")
def test_a_pattern_matches_what_its_regular_expression_matches(pattern: str, text: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, text) == bool(re.fullmatch(expression, text, re.DOTALL))


@given(st.text(max_size=20))
def test_a_text_without_a_star_matches_itself_alone(text: str) -> None:
    plain = text.replace("*", "")
    assert matches(plain, plain)
    assert not matches(plain, f"{plain}x")


@pytest.mark.parametrize("special", ["?", "[a]", ".", "a|b", "\\*", "%", "_"])
def test_nothing_but_a_star_is_special(special: str) -> None:
    assert not matches(special, "a")


def test_names_are_compared_by_case_and_as_a_whole() -> None:
    assert not matches("billing", "Billing")
    assert not matches("billing", "billing-1")
    assert not matches("billing-*", "my-billing-1")


def test_a_pattern_that_tries_regular_expressions_hard_takes_no_time() -> None:
    began = time.process_time()
    assert not matches("*a" * 100 + "b", "a" * 10_000)
    assert time.process_time() - began < 1


def test_no_pattern_matches_nothing() -> None:
    assert not matches_any((), "billing")
    assert matches_any(("x", "bill*"), "billing")


# --- principals --------------------------------------------------------------------------------------------------


def test_a_principal_is_identified_by_organization_and_name() -> None:
    made = principal("worker", organization="acme", roles=["consumer"], groups=["g", "g"])
    assert made.identity == "acme/worker"
    assert made.groups == ("g",)
    assert made.roles == {Role.CONSUMER}


def test_two_principals_never_share_an_identity() -> None:
    assert principal("b/c", organization="a").identity == "a/b/c"
    with pytest.raises(AssignerError, match="slash"):
        principal("c", organization="a/b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 250},
        {"name": "w", "organization": " acme"},
        {"name": "w", "groups": [""]},
        {"name": "w", "names": ["a\x00"]},
        {"name": "w", "roles": ["root"]},
        {"name": "w", "groups": [f"g{number}" for number in range(MOST_PATTERNS + 1)]},
    ],
    ids=str,
)
def test_malformed_claims_make_no_principal(wrong: dict[str, object]) -> None:
    with pytest.raises(AssignerError):
        principal(**wrong)  # type: ignore[arg-type]


def test_an_unknown_role_is_told_the_known_ones() -> None:
    with pytest.raises(AssignerError, match=r"'root'.*admin.*consumer|'root'.*consumer.*admin"):
        principal("w", roles=["root"])
