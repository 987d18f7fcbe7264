"""Every call of every service, over real gRPC: what no token, a false one or one of too few rights gets from it.

The calls are found in the descriptors, so a new one is tested by being there, and one without an action fails.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assigner.auth.actions import ACTIONS, REQUIREMENTS, Requirement
from assigner.auth.identity import Role
from assigner.clock import SystemClock
from assigner.errors import FailedPrecondition
from assigner.model.keys import Keys
from assigner.server import GrpcServer, ServerSettings
from assigner.server.settings import AuthSettings, Reflection
from tests.support.every_call import Answer, every_call
from tests.support.signed_tokens import Signer, base64url, encoded

CALLS = every_call()
OWN = {"group": "billing-1", "consumer_name": "worker-1", "router_name": "worker-1"}


class Behind:
    """What is behind the server: it notes each call that gets there and refuses it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*_: object, **__: object) -> None:
            self.reached.append(name)
            raise FailedPrecondition("it got there")

        return call


class Guarded(msgspec.Struct, frozen=True):
    port: int
    behind: Behind
    server: GrpcServer


SIGNER, STRANGER = Signer(), Signer()


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    """A server that requires an identity."""
    behind: Any = Behind()
    server = GrpcServer(
        ServerSettings(port=0, reflection=Reflection.ON),
        behind,
        behind,
        behind,
        behind,
        default_group="default",
        clock=SystemClock(),
        ready=lambda: True,
        check_group=Keys().check_group,
        auth=AuthSettings(required=True, keys=(SIGNER.publish(tmp_path / "key.pem"),)),
        kafka_groups=behind,
    )
    await server.start()
    try:
        yield Guarded(server.port, behind, server)
    finally:
        await server.close()


def needs(path: str) -> Requirement:
    return REQUIREMENTS[ACTIONS[path]]


def good(path: str, **claims: Any) -> str:
    """A token that is enough for the call, but for what the claims say."""
    roles = sorted(role.value for role in needs(path).roles)[:1]
    return SIGNER.token(time.time(), **{"roles": roles} | claims)


def wrong_roles(path: str) -> list[str]:
    return sorted(role.value for role in set(Role) - needs(path).roles)


def forged(path: str) -> str:
    """Signed by a key of somebody else's, under the name of the live one."""
    return STRANGER.token(time.time(), header={"kid": SIGNER.kid}, roles=[role.value for role in Role])


def unsigned(path: str) -> str:
    claims = {"sub": "worker-1", "aud": "kafka-assigner", "exp": time.time() + 3600, "groups": ["*"], "names": ["*"]}
    header = {"alg": "none", "kid": SIGNER.kid}
    return f"{encoded(header)}.{encoded(claims | {'roles': [role.value for role in Role]})}.{base64url(b'x')}"


CLOSED = [path for path in CALLS if needs(path).roles]
UNAUTHENTICATED: dict[str, tuple[Callable[[str], str | None], str]] = {
    "no token": (lambda path: None, "needs an identity"),
    "expired": (lambda path: good(path, exp=time.time() - 3600), "expired"),
    "not yet": (lambda path: good(path, nbf=time.time() + 3600), "nbf"),
    "without an end": (lambda path: good(path, exp=...), "exp"),
    "for centuries": (lambda path: good(path, exp=1e12), "at most 400 days"),
    "another audience": (lambda path: good(path, aud="another-service"), "aud"),
    "forged by another key": (forged, "signature"),
    "of an unknown key": (lambda path: STRANGER.token(time.time()), "no live key"),
    "alg none": (unsigned, "algorithm"),
    "truncated": (lambda path: good(path)[:-10], "signature"),
    "no token at all": (lambda path: "opensesame", "parts"),
}


# --- tests -------------------------------------------------------------------------------------------------------


def test_every_call_has_an_action() -> None:
    assert set(CALLS) == set(ACTIONS)


def test_a_call_asks_for_the_group_and_the_name_that_its_request_has() -> None:
    """By the descriptors, because the tests below make the calls that ask for them."""

    def with_field(*names: str) -> set[str]:
        return {path for path, call in CALLS.items() if set(names) & set(call.method.input_type.fields_by_name)}

    assert {path for path in CALLS if needs(path).group} == with_field("group")
    assert {path for path in CALLS if needs(path).name} == with_field("consumer_name", "router_name")


def test_no_call_is_served_that_the_descriptors_do_not_have(guarded: Guarded) -> None:
    assert guarded.server._methods().keys() == CALLS.keys()


async def test_every_call_of_the_descriptors_is_served(guarded: Guarded) -> None:
    answers = {path: await call.make(guarded.port, good(path), **OWN) for path, call in CALLS.items()}
    assert not [path for path, answer in answers.items() if answer.status == "UNIMPLEMENTED"]


@pytest.mark.parametrize("path", CLOSED)
async def test_a_call_with_a_token_of_enough_rights_gets_through(guarded: Guarded, path: str) -> None:
    assert await CALLS[path].make(guarded.port, good(path), **OWN) == Answer("FAILED_PRECONDITION", "it got there")
    assert len(guarded.behind.reached) == 1


@pytest.mark.parametrize("case", UNAUTHENTICATED)
@pytest.mark.parametrize("path", CLOSED)
async def test_a_call_without_a_valid_token_is_unauthenticated(guarded: Guarded, path: str, case: str) -> None:
    token, says = UNAUTHENTICATED[case]
    answer = await CALLS[path].make(guarded.port, token(path), **OWN)
    assert answer.status == "UNAUTHENTICATED"
    assert says in answer.message
    assert guarded.behind.reached == []


@pytest.mark.parametrize("path", CLOSED)
async def test_a_call_of_the_wrong_role_is_denied_and_names_the_claim(guarded: Guarded, path: str) -> None:
    answer = await CALLS[path].make(guarded.port, good(path, roles=wrong_roles(path)), **OWN)
    assert answer.status == "PERMISSION_DENIED"
    assert "`roles`" in answer.message
    assert guarded.behind.reached == []


@pytest.mark.parametrize("group", ["payments", "billing"])
@pytest.mark.parametrize("path", [path for path in CLOSED if needs(path).group])
async def test_a_call_for_a_group_of_others_is_denied_and_names_the_claim(
    guarded: Guarded, path: str, group: str
) -> None:
    answer = await CALLS[path].make(guarded.port, good(path), **OWN | {"group": group})
    assert answer.status == "PERMISSION_DENIED"
    assert "`groups`" in answer.message
    assert guarded.behind.reached == []


async def test_a_call_that_names_no_group_is_for_the_default_group(guarded: Guarded) -> None:
    path = "/kafka_assigner.v1.Admin/Pause"
    answer = await CALLS[path].make(guarded.port, good(path), group="")
    assert (answer.status, "'default'" in answer.message) == ("PERMISSION_DENIED", True)
    assert (await CALLS[path].make(guarded.port, good(path, groups=["default"]), group="")).message == "it got there"


@pytest.mark.parametrize("path", [path for path in CLOSED if needs(path).name])
async def test_a_call_by_the_name_of_others_is_denied_and_names_the_claim(guarded: Guarded, path: str) -> None:
    other = {"consumer_name": "reporter-1", "router_name": "reporter-1"}
    answer = await CALLS[path].make(guarded.port, good(path), **OWN | other)
    assert answer.status == "PERMISSION_DENIED"
    assert "`names`" in answer.message
    assert guarded.behind.reached == []


@pytest.mark.parametrize("malformed", ["a\nb", "..", " a", "a\u202eb", "x" * 250])
@pytest.mark.parametrize("field", ["group", "consumer_name", "router_name", "session"])
async def test_a_call_with_a_malformed_id_is_refused_whatever_its_token_allows(
    guarded: Guarded, field: str, malformed: str
) -> None:
    everything = {"groups": ["*"], "names": ["*"]}
    paths = [path for path in CLOSED if field in CALLS[path].method.input_type.fields_by_name]
    answers = {
        path: (await CALLS[path].make(guarded.port, good(path, **everything), **OWN | {field: malformed})).status
        for path in paths
    }
    assert answers == dict.fromkeys(paths, "INVALID_ARGUMENT")
    assert paths
    assert guarded.behind.reached == []


@pytest.mark.parametrize("path", [path for path in CALLS if needs(path).is_open])
async def test_health_and_reflection_need_no_token(guarded: Guarded, path: str) -> None:
    for token in (None, "opensesame"):
        assert (await CALLS[path].make(guarded.port, token)).status in ("OK", "NOT_FOUND")


@pytest.mark.parametrize("path", ["/kafka_assigner.v1.Admin/Nothing", "/another.Service/Renew", "/"])
async def test_a_call_that_is_none_is_not_there_whatever_its_token(guarded: Guarded, path: str) -> None:
    call = msgspec.structs.replace(CALLS["/kafka_assigner.v1.Admin/ListGroups"], path=path)
    assert (await call.make(guarded.port, SIGNER.token(time.time()))).status == "UNIMPLEMENTED"


async def test_a_served_call_without_an_action_is_denied_to_everybody(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/kafka_assigner.v1.Admin/ListGroups"
    monkeypatch.delitem(ACTIONS, path)
    for token in (None, SIGNER.token(time.time(), roles=[role.value for role in Role])):
        answer = await CALLS[path].make(guarded.port, token)
        assert answer.status == "PERMISSION_DENIED"
        assert "no action" in answer.message
    assert guarded.behind.reached == []


async def test_denials_are_counted_by_kind_and_claim(guarded: Guarded) -> None:
    path = "/kafka_assigner.v1.KafkaAssigner/Renew"
    await CALLS[path].make(guarded.port, None, **OWN)
    await CALLS[path].make(guarded.port, good(path, roles=["reader"]), **OWN)
    await CALLS[path].make(guarded.port, good(path), **OWN | {"group": "payments"})
    await CALLS[path].make(guarded.port, good(path), **OWN | {"consumer_name": "reporter"})
    await CALLS[path].make(guarded.port, good(path, exp=1), **OWN)
    assert guarded.server.access.denials == {
        ("unauthenticated", ""): 1,
        ("denied", "roles"): 1,
        ("denied", "groups"): 1,
        ("denied", "names"): 1,
        ("unauthenticated", "exp"): 1,
    }
    refused = guarded.server.statistics().refused
    assert (refused["unauthenticated"], refused["permission_denied"]) == (2, 3)
