"""Each version of the classic calls, from a client's bytes to what the groups are asked, and back."""

from __future__ import annotations

import datetime as dt
from typing import Any

import anyio
import pytest
from kio.static.primitive import i32Timedelta

from assigner.gateway.classic.handlers import ClassicHandlers
from assigner.gateway.codec import (
    decode_request,
    decode_response,
    encode,
    encode_answer,
    has_tagged_header,
    make,
    nested,
    request_class,
)
from assigner.gateway.requests import Client, Interruption, Request
from assigner.model.kafka_groups import (
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    KafkaError,
    LeaveAnswer,
    LeaveRequest,
    LeavingMember,
    LeftMember,
    SyncAnswer,
    SyncRequest,
)
from tests.support.gateway.modern_members import Everything

JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14


class Groups:
    """Stands in for the groups: notes what it is asked, and answers what it was given."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        async def call(org: str, request: Any, *, principal: str) -> Any:
            self.asked.append((org, request))
            if self._answer is None:
                await anyio.sleep_forever()
            return self._answer

        return call


def request_of(api: int, version: int, *denied: str) -> Request:
    client = Client(1, "test", "10.0.0.7", "acme", Everything(*denied))
    return Request(client, api, version, 5, "app", 0.0)


async def call(groups: Any, api: int, version: int, request: Request | None = None, **fields: Any) -> Any:
    """A call as it arrives: encoded and decoded on both ways."""
    schema = request_class(api, version)
    body = encode(make(schema, **fields))
    handled = ClassicHandlers(groups).handlers()[api]
    assert handled.first <= version <= handled.last
    entity = decode_request(api, version, body)
    answer = handled.handle(request or request_of(api, version), entity)
    if hasattr(answer, "__await__"):
        answer = await answer
    frame = encode_answer(api, version, 5, answer)
    return decode_response(api, version, frame[8 + has_tagged_header(api, version) :])


def time(seconds: int) -> i32Timedelta:
    return i32Timedelta.parse(dt.timedelta(seconds=seconds))


def joining(version: int, **fields: Any) -> dict[str, Any]:
    protocol = nested(request_class(JOIN, version), "JoinGroupRequestProtocol")
    return {
        "group_id": "g",
        "session_timeout": time(10),
        "rebalance_timeout": time(60),
        "member_id": "app-1",
        "group_instance_id": "pod-1",
        "protocol_type": "consumer",
        "protocols": (protocol(name="range", metadata=b"\1\2"),),
        "reason": "hungry",
        **fields,
    }


# --- JoinGroup -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
async def test_a_join_is_asked_as_its_version_says(version: int) -> None:
    members = (JoinedMember("app-1", "pod-1", b"\1"), JoinedMember("app-2", None, b""))
    groups = Groups(
        JoinAnswer(
            member_id="app-1",
            generation=3,
            protocol_type="consumer",
            protocol="range",
            leader="app-1",
            members=members,
            skip_assignment=True,
        )
    )
    answer = await call(groups, JOIN, version, **joining(version))
    assert groups.asked == [
        (
            "acme",
            JoinRequest(
                group="g",
                session_timeout=10_000,
                rebalance_timeout=60_000 if version >= 1 else 10_000,
                protocol_type="consumer",
                protocols=(("range", b"\1\2"),),
                member_id="app-1",
                instance_id="pod-1" if version >= 5 else None,
                client_id="app",
                client_host="/10.0.0.7",
                requires_known_member=version >= 4,
                can_skip_assignment=version >= 9,
                reason="hungry" if version >= 8 else "",
            ),
        )
    ]
    assert (answer.error_code.value, answer.generation_id, answer.protocol_name) == (0, 3, "range")
    assert (answer.leader, answer.member_id) == ("app-1", "app-1")
    assert [(one.member_id, one.metadata) for one in answer.members] == [("app-1", b"\1"), ("app-2", b"")]
    if version >= 5:
        assert [one.group_instance_id for one in answer.members] == ["pod-1", None]
    if version >= 7:
        assert answer.protocol_type == "consumer"
    if version >= 9:
        assert answer.skip_assignment


@pytest.mark.parametrize("version", range(10))
async def test_a_refused_join_has_the_form_of_its_version(version: int) -> None:
    groups = Groups(JoinAnswer(error=KafkaError.MEMBER_ID_REQUIRED, member_id="app-9"))
    answer = await call(groups, JOIN, version, **joining(version, group_instance_id=None, reason=None))
    assert (answer.error_code.value, answer.member_id, answer.generation_id) == (79, "app-9", -1)
    assert answer.protocol_name == (None if version >= 7 else "")


async def test_a_join_whose_client_has_gone_waits_no_longer() -> None:
    groups, request = Groups(None), request_of(JOIN, 9)
    answers: list[Any] = []

    async def join() -> None:
        answers.append(await call(groups, JOIN, 9, request, **joining(9)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(join)
        await anyio.wait_all_tasks_blocked()
        request.interrupt(Interruption.FOLLOWED)
        await anyio.wait_all_tasks_blocked()
        assert answers == []
        request.interrupt(Interruption.CLOSED)
    assert [one.error_code.value for one in answers] == [KafkaError.NOT_COORDINATOR]


async def test_a_join_is_told_to_look_elsewhere_when_the_gateway_ends() -> None:
    request = request_of(JOIN, 5)
    request.interrupt(Interruption.DRAINING)
    answer = await call(Groups(None), JOIN, 5, request, **joining(5))
    assert (answer.error_code.value, answer.member_id) == (KafkaError.NOT_COORDINATOR, "app-1")


# --- SyncGroup -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
async def test_a_sync_is_asked_as_its_version_says(version: int) -> None:
    groups = Groups(SyncAnswer(protocol_type="consumer", protocol="range", assignment=b"\7"))
    assignment = nested(request_class(SYNC, version), "SyncGroupRequestAssignment")
    answer = await call(
        groups,
        SYNC,
        version,
        group_id="g",
        generation_id=3,
        member_id="app-1",
        group_instance_id="pod-1",
        protocol_type="consumer",
        protocol_name="range",
        assignments=(assignment(member_id="app-2", assignment=b"\5"),),
    )
    named = version >= 5
    assert groups.asked == [
        (
            "acme",
            SyncRequest(
                group="g",
                member_id="app-1",
                generation=3,
                instance_id="pod-1" if version >= 3 else None,
                protocol_type="consumer" if named else None,
                protocol="range" if named else None,
                assignments=(("app-2", b"\5"),),
            ),
        )
    ]
    assert (answer.error_code.value, answer.assignment) == (0, b"\7")
    if named:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


# --- Heartbeat -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
async def test_a_heartbeat_is_asked_as_its_version_says(version: int) -> None:
    groups = Groups(HeartbeatAnswer(error=KafkaError.REBALANCE_IN_PROGRESS))
    fields: dict[str, Any] = {
        "group_id": "g",
        "generation_id": 3,
        "member_id": "app-1",
        "group_instance_id": "pod-1",
    }
    answer = await call(groups, HEARTBEAT, version, **fields)
    instance_id = "pod-1" if version >= 3 else None
    wanted = HeartbeatRequest(group="g", member_id="app-1", generation=3, instance_id=instance_id)
    assert groups.asked == [("acme", wanted)]
    assert answer.error_code.value == 27


# --- LeaveGroup ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_who_leaves_alone_is_told_its_own_error(version: int) -> None:
    groups = Groups(LeaveAnswer(members=(LeftMember("app-1", None, KafkaError.UNKNOWN_MEMBER_ID),)))
    answer = await call(groups, LEAVE, version, group_id="g", member_id="app-1")
    assert groups.asked == [("acme", LeaveRequest(group="g", members=(LeavingMember("app-1"),)))]
    assert answer.error_code.value == 25


@pytest.mark.parametrize("version", range(3, 6))
async def test_those_who_leave_together_have_an_error_each(version: int) -> None:
    left = (LeftMember("app-1", None), LeftMember("", "pod-2", KafkaError.UNKNOWN_MEMBER_ID))
    groups = Groups(LeaveAnswer(members=left))
    member = nested(request_class(LEAVE, version), "MemberIdentity")
    leaving = (
        make(member, member_id="app-1", group_instance_id=None, reason="done"),
        make(member, member_id="", group_instance_id="pod-2", reason=None),
    )
    answer = await call(groups, LEAVE, version, group_id="g", members=leaving)
    [(_, asked)] = groups.asked
    assert asked.members == (LeavingMember("app-1", None, "done" if version >= 5 else ""), LeavingMember("", "pod-2"))
    assert answer.error_code.value == 0
    assert [(one.member_id, one.group_instance_id, one.error_code.value) for one in answer.members] == [
        ("app-1", None, 0),
        ("", "pod-2", 25),
    ]


# --- who may -------------------------------------------------------------------------------------------------------


async def test_a_group_of_others_is_refused_before_anybody_is_asked() -> None:
    groups: Any = Groups(None)
    name = {"group_id": "g", "member_id": "app-1", "generation_id": 1, "group_instance_id": None}
    calls: dict[int, dict[str, Any]] = {
        JOIN: joining(2),
        SYNC: {**name, "assignments": ()},
        HEARTBEAT: name,
        LEAVE: name,
    }
    for api, fields in calls.items():
        answer = await call(groups, api, 2, request_of(api, 2, "g"), **fields)
        assert answer.error_code.value == KafkaError.GROUP_AUTHORIZATION_FAILED, api
    assert groups.asked == []


async def test_it_is_asked_for_the_action_and_by_the_name_that_tokens_have() -> None:
    seen: list[tuple[str, str | None, str | None]] = []

    class Watching(Everything):
        def reason(self, principal: Any, action: Any, org: str, **about: Any) -> str | None:
            seen.append((action.value, about["group"], about["name"]))
            return None

    client = Client(1, "test", "10.0.0.7", "acme", Watching())
    for version, fields in ((2, joining(2)), (5, joining(5)), (2, joining(2, member_id=""))):
        await call(Groups(JoinAnswer()), JOIN, version, Request(client, JOIN, version, 5, "app", 0.0), **fields)
    assert seen == [("register", "g", "app-1"), ("register", "g", "pod-1"), ("register", "g", "app")]
