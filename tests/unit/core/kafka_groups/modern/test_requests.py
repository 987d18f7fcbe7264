"""Heartbeats are checked in the broker's order, and answered with the codes that clients survive."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from assigner.core.kafka_groups.modern.requests import (
    Heartbeat,
    HeartbeatError,
    check_instance,
    check_names,
    check_request,
    instance_id_of,
    member_name,
    refusal_of,
)
from assigner.errors import (
    AssignerError,
    Evicted,
    FailedPrecondition,
    LimitReached,
    NotRegistered,
    OutcomeUnknown,
    PermissionDenied,
    SessionHeld,
    StoreUnavailable,
    Superseded,
    UnknownGroup,
    UnknownTopic,
)
from assigner.model.keys import TopicPartition
from assigner.model.names import check_name, session_digest
from assigner.model.records import Consumer, Stored

JOIN = Heartbeat(
    group="g", member_id="m", member_epoch=0, rebalance_timeout=300.0, names=("t",), pattern="", owned=frozenset()
)
POLL = Heartbeat(group="g", member_id="m", member_epoch=5)
ASSIGNORS = frozenset({"sticky_balanced"})
SOME = frozenset({TopicPartition("t", 0)})


def code(request: Heartbeat, version: int = 1) -> int:
    refused = check_request(request, version, ASSIGNORS)
    return refused.code if refused else 0


@pytest.mark.parametrize(
    ("request_", "changes", "expected"),
    [
        pytest.param(JOIN, {}, 0, id="a join"),
        pytest.param(JOIN, {"names": None}, 0, id="a join by an empty pattern"),
        pytest.param(JOIN, {"names": (), "pattern": None}, 0, id="a join that subscribes to nothing"),
        pytest.param(JOIN, {"assignor": "sticky_balanced"}, 0, id="the group's own strategy"),
        pytest.param(POLL, {}, 0, id="a partial request"),
        pytest.param(POLL, {"member_epoch": -1}, 0, id="a leave"),
        pytest.param(POLL, {"member_epoch": -2, "instance_id": "i"}, 0, id="a static member's leave"),
        pytest.param(JOIN, {"member_id": ""}, 42, id="no member id"),
        pytest.param(POLL, {"member_id": "", "member_epoch": -1}, 42, id="a leave without member id"),
        pytest.param(JOIN, {"group": ""}, 42, id="no group"),
        pytest.param(JOIN, {"instance_id": ""}, 42, id="an empty instance id"),
        pytest.param(POLL, {"rack": ""}, 42, id="an empty rack"),
        pytest.param(JOIN, {"rebalance_timeout": None}, 42, id="a join without rebalance timeout"),
        pytest.param(JOIN, {"owned": None}, 42, id="a join that does not say what it has"),
        pytest.param(JOIN, {"owned": SOME}, 42, id="a join with partitions"),
        pytest.param(JOIN, {"names": None, "pattern": None}, 42, id="a join without subscription"),
        pytest.param(POLL, {"member_epoch": -2}, 42, id="a static leave without instance id"),
        pytest.param(POLL, {"member_epoch": -3}, 42, id="an epoch that means nothing"),
        pytest.param(JOIN, {"assignor": "uniform"}, 112, id="an assignor of a broker"),
        pytest.param(JOIN, {"assignor": "uniform", "rack": ""}, 42, id="a wrong field comes before the assignor"),
    ],
)
def test_what_a_request_says_by_itself(request_: Heartbeat, changes: dict[str, Any], expected: int) -> None:
    assert code(msgspec.structs.replace(request_, **changes)) == expected


def test_in_version_0_a_member_joins_without_an_id() -> None:
    request = msgspec.structs.replace(JOIN, member_id="")

    assert code(request, version=0) == 0
    assert code(msgspec.structs.replace(POLL, member_id=""), version=0) == 42


@pytest.mark.parametrize(
    ("holder", "expected"),
    [(None, 25), ("m", 0), ("another", 82)],
    ids=["an instance nobody knows", "its own", "another process's"],
)
def test_a_static_member_is_checked_by_its_instance_id(holder: str | None, expected: int) -> None:
    request = msgspec.structs.replace(POLL, instance_id="i")
    record = Consumer(consumer_name="i", session=holder or "")
    refused = check_instance(request, Stored(record, "k", 1, 0, 0) if holder else None)

    assert (refused.code if refused else 0) == expected


def test_a_request_without_instance_id_is_not_a_static_members_check() -> None:
    assert check_instance(POLL, None) is None
    assert check_instance(msgspec.structs.replace(JOIN, instance_id="i"), None) is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotRegistered("x"), 25),
        (Superseded("x"), 25),
        (UnknownGroup("x"), 25),
        (Evicted("x"), 110),
        (SessionHeld("x"), 111),
        (PermissionDenied("x"), 30),
        (LimitReached("x"), 15),
        (FailedPrecondition("x"), 42),
        (StoreUnavailable("x"), 14),
        (OutcomeUnknown("x"), 14),
        (UnknownTopic("x"), 14),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_what_the_services_errors_are_for_a_client(error: AssignerError, expected: int) -> None:
    assert refusal_of(error).code == expected


def test_no_heartbeat_is_answered_with_a_code_that_ends_clients_for_nothing() -> None:
    assert {error.value for error in HeartbeatError} == {14, 15, 16, 25, 30, 42, 81, 82, 110, 111, 112, 128}


@pytest.mark.parametrize("member_id", [" m", "m\n", "x" * 101], ids=["blank", "newline", "long"])
def test_an_id_that_the_service_cannot_keep_is_refused(member_id: str) -> None:
    refused = check_names(msgspec.structs.replace(JOIN, member_id=member_id))

    assert refused is not None
    assert refused.code == 42


@pytest.mark.parametrize(
    ("client_id", "instance_id", "expected"),
    [
        ("app-1", None, f"app-1/{session_digest('m')}"),
        ("", None, f"kafka/{session_digest('m')}"),
        (" app\n1 ", None, f"app?1/{session_digest('m')}"),
        ("app-1", "pod-7", "pod-7"),
    ],
)
def test_a_member_has_a_name_in_the_group(client_id: str, instance_id: str | None, expected: str) -> None:
    assert member_name(client_id, "m", instance_id) == expected


def test_a_name_does_not_tell_the_member_id_which_is_its_session() -> None:
    member_id = "8Zl/3+Vxq0aUeJc1w2TnKg"
    name = member_name("app", member_id, None)
    assert member_id not in name
    dynamic = Consumer(consumer_name=name, session=member_id)
    static = Consumer(consumer_name="pod-7", session=member_id)
    assert [instance_id_of(one) for one in (dynamic, static)] == [None, "pod-7"]


def test_any_client_id_makes_a_name_that_the_service_takes() -> None:
    for client_id in ("ü" * 500, "x" * 500, "\x00" * 500, "  "):
        check_name("consumer", member_name(client_id, "m" * 100, None))
