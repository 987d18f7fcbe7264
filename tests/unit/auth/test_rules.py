"""The rule that decides: who may do what, and which claim a denial names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from assigner.auth.actions import REQUIREMENTS, Action
from assigner.auth.identity import Principal, Role, principal
from assigner.auth.rules import Denial, DenialKind, Resource, decide, decide_role, may_see

NOW = 1_000.0
MINE = Resource("billing-eu", "worker-1")
ALLOWED = None


def who(
    *roles: str,
    groups: Sequence[str] = ("billing-*",),
    names: Sequence[str] = ("worker-*",),
    expires: float | None = NOW + 60,
) -> Principal:
    return principal("w", organization="acme", roles=roles, groups=groups, names=names, expires=expires)


DECISIONS: Mapping[str, tuple[Principal | None, Action | None, Resource, str | None]] = {
    "a consumer registers": (who("consumer"), Action.REGISTER, MINE, ALLOWED),
    "a consumer fetches offsets without a name": (
        who("consumer"),
        Action.FETCH_OFFSETS,
        Resource("billing-eu"),
        ALLOWED,
    ),
    "a router registers": (who("router"), Action.REGISTER_ROUTER, MINE, ALLOWED),
    "a reader describes": (who("reader", names=[]), Action.DESCRIBE_GROUP, Resource("billing-eu"), ALLOWED),
    "an operator drains": (who("operator", names=[]), Action.DRAIN, Resource("billing-eu"), ALLOWED),
    "an admin deletes": (who("admin", names=[]), Action.DELETE_GROUP, Resource("billing-eu"), ALLOWED),
    "one role of two is enough": (who("reader", "consumer"), Action.REGISTER, MINE, ALLOWED),
    "nobody checks the health": (None, Action.CHECK_HEALTH, Resource(), ALLOWED),
    "an expired one checks the health": (who("reader", expires=1), Action.CHECK_HEALTH, Resource(), ALLOWED),
    "a reader lists groups": (who("reader"), Action.LIST_GROUPS, Resource(), ALLOWED),
    "nobody": (None, Action.REGISTER, MINE, "unauthenticated"),
    "at its end": (who("consumer", expires=NOW), Action.REGISTER, MINE, "unauthenticated exp"),
    "a certificate without an end": (who("consumer", expires=None), Action.REGISTER, MINE, ALLOWED),
    "another group": (who("consumer"), Action.REGISTER, Resource("orders", "worker-1"), "denied groups"),
    "no group": (who("consumer"), Action.REGISTER, Resource(None, "worker-1"), "denied groups"),
    "the empty group": (who("consumer"), Action.REGISTER, Resource("", "worker-1"), "denied groups"),
    "no patterns of groups": (who("consumer", groups=[]), Action.REGISTER, MINE, "denied groups"),
    "another name": (who("consumer"), Action.REGISTER, Resource("billing-eu", "boss"), "denied names"),
    "no name": (who("consumer"), Action.REGISTER, Resource("billing-eu"), "denied names"),
    "a router's call by a consumer": (who("consumer"), Action.REGISTER_ROUTER, MINE, "denied roles"),
    "a consumer's call by an admin": (who("admin"), Action.REGISTER, MINE, "denied roles"),
    "an operator's call by a reader": (who("reader"), Action.PAUSE, MINE, "denied roles"),
    "an admin's call by an operator": (who("operator"), Action.SET_OFFSETS, MINE, "denied roles"),
    "no role at all": (who(), Action.LIST_GROUPS, Resource(), "denied roles"),
    "a call without an action": (who("admin"), None, MINE, "denied"),
    "a call without an action, by nobody": (None, None, MINE, "denied"),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_decisions(case: str) -> None:
    caller, action, resource, wanted = DECISIONS[case]
    found = decide(caller, action, resource, NOW)
    assert (found and f"{found.kind.value} {found.claim}".strip()) == wanted


@pytest.mark.parametrize("action", Action, ids=lambda action: action.value)
@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
def test_each_role_may_do_what_its_row_says_and_nothing_else(action: Action, role: Role) -> None:
    needs = REQUIREMENTS[action]
    found = decide(who(role.value), action, MINE, NOW)
    assert (found is None) == (needs.is_open or role in needs.roles)


@pytest.mark.parametrize("action", Action, ids=lambda action: action.value)
def test_what_is_denied_before_the_request_is_read_stays_denied(action: Action) -> None:
    for caller in (None, who(), who("consumer", expires=1), who("reader")):
        early = decide_role(caller, action, NOW)
        assert early is None or decide(caller, action, MINE, NOW) == early


def test_a_denial_shows_what_the_claim_holds_and_what_was_wanted() -> None:
    found = decide(who("consumer"), Action.REGISTER, Resource("orders", "worker-1"), NOW)
    wrong = "claim `groups` [billing-*] does not match group 'orders'; use another group, or add a pattern"
    assert found == Denial(DenialKind.DENIED, "groups", wrong)
    found = decide(who("reader"), Action.PAUSE, MINE, NOW)
    assert found is not None
    assert found.message == "claim `roles` [reader] of 'acme/w' does not allow pause: add admin or operator"


def test_a_denial_lists_a_few_of_many_patterns() -> None:
    found = decide(who("consumer", groups=[f"g{n}" for n in range(9)]), Action.REGISTER, MINE, NOW)
    assert found is not None
    assert "[g0, g1, g2, g3, g4, and 4 more]" in found.message
    found = decide(who("consumer", groups=[f"g{n}" for n in range(5)]), Action.REGISTER, MINE, NOW)
    assert found is not None
    assert "[g0, g1, g2, g3, g4]" in found.message


def test_a_denial_says_that_a_call_names_nothing_that_a_claim_could_match() -> None:
    found = decide(who("consumer"), Action.REGISTER, Resource("billing-eu"), NOW)
    wrong = "the call names no name, which claim `names` could match; name one"
    assert found == Denial(DenialKind.DENIED, "names", wrong)


def test_lists_show_the_groups_of_the_principal() -> None:
    assert may_see(who("reader"), "billing-eu")
    assert not may_see(who("reader"), "orders")
