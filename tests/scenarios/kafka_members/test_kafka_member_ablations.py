"""Rules of Kafka 4's members, switched off one by one: a test notices each."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from assigner.api import Registration
from assigner.core.kafka_groups.modern.holds import hold_until
from assigner.core.kafka_groups.modern.member import ModernMember
from assigner.gateway.modern import heartbeats, members
from assigner.gateway.modern.member import registration
from assigner.gateway.modern.members import Members
from assigner.gateway.requests import Request
from assigner.model.keys import TopicPartition
from assigner.model.records import GroupOptions, HandoffMode
from tests.scenarios.kafka_members import test_kafka_members as scenarios
from tests.support.cluster import Cluster
from tests.unit.core.kafka_groups.modern import test_member as machine

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.cluster(options=GroupOptions(debounce=0.1, handoff_mode=HandoffMode.EXCLUSIVE)),
]
Patch = pytest.MonkeyPatch


def holds_outlast_other_requests(patch: Patch) -> None:
    patch.setattr(Request, "interrupt", lambda self, one: None)


def joins_are_answered_at_once(patch: Patch) -> None:
    def changed(request: Any, **how: Any) -> float:
        return 0.0 if request.joins else hold_until(request, **how)

    patch.setattr(heartbeats, "hold_until", changed)


def nobody_is_resumed(patch: Patch) -> None:
    async def changed(self: Members, group: str, member_id: str, request: Request) -> None:
        return None

    patch.setattr(Members, "_resume", changed)


def whoever_called_elsewhere_is_taken_as_it_was(patch: Patch) -> None:
    patch.setattr(Members, "_is_elsewhere", lambda self, member: False)


def resumed_members_get_an_epoch_of_their_own(patch: Patch) -> None:
    patch.setattr(ModernMember, "learn", lambda self, epoch: None)


def any_epoch_commits_what_is_owned(patch: Patch) -> None:
    def changed(self: ModernMember, tp: TopicPartition, member_epoch: int) -> int | None:
        return self.owned.get(tp) if member_epoch <= self.epoch else None

    patch.setattr(ModernMember, "commit_epoch", changed)


def who_lacks_a_partition_has_let_it_go(patch: Patch) -> None:
    patch.setattr(ModernMember, "_is_told", lambda self, tp: False)


def instance_ids_are_taken_over(patch: Patch) -> None:
    def changed(*arguments: Any) -> Registration:
        return msgspec.structs.replace(registration(*arguments), takeover=True)

    patch.setattr(members, "registration", changed)


ABLATIONS: tuple[tuple[Callable[[Patch], None], Callable[..., Awaitable[None] | None]], ...] = (
    (holds_outlast_other_requests, scenarios.test_another_request_on_the_connection_ends_the_hold),
    (joins_are_answered_at_once, scenarios.test_the_first_member_is_told_all_partitions_by_the_answer_to_its_join),
    (nobody_is_resumed, scenarios.test_a_gateway_that_does_not_know_a_member_resumes_it),
    (
        whoever_called_elsewhere_is_taken_as_it_was,
        scenarios.test_a_gateway_that_a_member_comes_back_to_knows_what_another_one_told_it,
    ),
    (
        resumed_members_get_an_epoch_of_their_own,
        machine.test_a_resumed_member_keeps_its_epoch_and_is_told_everything_under_it,
    ),
    (
        any_epoch_commits_what_is_owned,
        machine.test_a_commit_is_accepted_from_the_epoch_on_at_which_the_partition_was_given,
    ),
    (who_lacks_a_partition_has_let_it_go, machine.test_owned_smaller_than_assigned_is_not_a_revocation),
    (instance_ids_are_taken_over, scenarios.test_a_static_member_that_comes_back_has_its_partitions_at_once),
)


@pytest.mark.parametrize(("switch_off", "noticed_by"), ABLATIONS, ids=lambda one: one.__name__)
async def test_without_the_rule_the_test_fails(
    switch_off: Callable[[Patch], None],
    noticed_by: Callable[..., Awaitable[None] | None],
    cluster: Cluster,
    gateways: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch_off(monkeypatch)
    offered = {"cluster": cluster, "any_cluster": cluster, "gateways": gateways}
    arguments = {name: offered[name] for name in inspect.signature(noticed_by).parameters}
    with pytest.raises(AssertionError):
        await _run(noticed_by, arguments)


async def _run(test: Callable[..., Awaitable[None] | None], arguments: dict[str, Any]) -> None:
    result = test(**arguments)
    if result is not None:
        await result
