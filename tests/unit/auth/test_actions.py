"""Every call has an action, and every action says what it asks for."""

from __future__ import annotations

import pytest

from assigner.auth.actions import ACTIONS, OF_KAFKA_CLIENTS, REQUIREMENTS, Action, action_of
from assigner.auth.identity import Role

OPEN = {Action.CHECK_HEALTH, Action.REFLECT}


def test_every_action_says_what_it_asks_for() -> None:
    assert REQUIREMENTS.keys() == set(Action)


def test_every_action_is_that_of_a_call_or_of_a_kafka_client() -> None:
    assert set(ACTIONS.values()) | OF_KAFKA_CLIENTS == set(Action)
    assert not OF_KAFKA_CLIENTS & set(ACTIONS.values())


def test_only_admins_change_the_cluster_behind_a_gateway() -> None:
    assert REQUIREMENTS[Action.CHANGE_CLUSTER].roles == {Role.ADMIN}


def test_only_health_and_reflection_are_open_to_everybody() -> None:
    assert {action for action, needs in REQUIREMENTS.items() if needs.is_open} == OPEN


def test_a_call_that_is_not_listed_has_no_action() -> None:
    assert action_of("/kafka_assigner.v1.KafkaAssigner/Brew") is None
    assert action_of("/kafka_assigner.v1.KafkaAssigner/register") is None


@pytest.mark.parametrize("role", [Role.READER, Role.OPERATOR, Role.ADMIN], ids=lambda role: role.value)
def test_an_operators_role_makes_nobody_a_member(role: Role) -> None:
    assert not [action for action, needs in REQUIREMENTS.items() if needs.name and role in needs.roles]


def test_whoever_may_change_may_look_and_whoever_may_administer_may_operate() -> None:
    def allowed(role: Role) -> set[Action]:
        return {action for action, needs in REQUIREMENTS.items() if role in needs.roles}

    assert allowed(Role.READER) < allowed(Role.OPERATOR) < allowed(Role.ADMIN)


def test_what_changes_a_group_is_for_operators_and_admins() -> None:
    for needs in REQUIREMENTS.values():
        assert not needs.changes or needs.roles <= {Role.OPERATOR, Role.ADMIN}
