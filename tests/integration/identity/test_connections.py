"""Identities over real connections: whose a connection is, how long a stream lives, and keys that change under it."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from assigner.api import GroupSummary
from assigner.auth.tokens import LEEWAY
from assigner.client import AdminClient
from assigner.errors import InvalidInput, PermissionDenied
from assigner.proto.kafka_assigner import v1
from assigner.server.access import EXPIRY_GRACE
from assigner.server.settings import AuthSettings
from tests.support.fakes.grpc_serving import Serving, eventually, serving, status_of
from tests.support.fakes.guarded_serving import GROUP, WORKER, Guarded, Mutual, bearer, registration, renewal
from tests.support.signed_tokens import Signer


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


# --- whose connection it is --------------------------------------------------------------------------------------


async def test_another_principals_token_is_refused_on_the_same_connection_and_taken_on_another(
    guarded: Guarded,
) -> None:
    async with guarded.serving() as service:
        shared = service.consumer()
        await shared.renew(renewal(), metadata=guarded.shows(sub="a"))
        error = await status_of(shared.renew(renewal(), metadata=guarded.shows(sub="b")))
        assert error.status is Status.PERMISSION_DENIED
        assert "another principal's" in (error.message or "")
        assert "acme/a" not in (error.message or "")
        await shared.renew(renewal(), metadata=guarded.shows(sub="a"))
        await service.consumer().renew(renewal(), metadata=guarded.shows(sub="b"))
    assert [name for _, name, _ in service.members.renewed] == ["worker-1"] * 3


async def test_one_name_in_two_organizations_is_two_principals(guarded: Guarded) -> None:
    async with guarded.serving() as service:
        shared = service.consumer()
        await shared.renew(renewal(), metadata=guarded.shows(org="acme"))
        error = await status_of(shared.renew(renewal(), metadata=guarded.shows(org="evil")))
        assert error.status is Status.PERMISSION_DENIED


async def test_a_connection_serves_all_consumers_of_its_principal(guarded: Guarded) -> None:
    async with guarded.serving() as service:
        shared, metadata = service.consumer(), guarded.shows()
        for name in ("worker-1", "worker-2"):
            await shared.renew(renewal(name), metadata=metadata)
        assert len(service.members.renewed) == 2


async def test_a_refused_call_does_not_take_the_connection(guarded: Guarded) -> None:
    async with guarded.serving() as service:
        shared = service.consumer()
        await status_of(shared.renew(renewal(), metadata=guarded.shows(sub="b", roles=["reader"])))
        await shared.renew(renewal(), metadata=guarded.shows(sub="a"))


async def test_two_tokens_in_one_call_are_refused(guarded: Guarded) -> None:
    async with guarded.serving() as service:
        one, other = guarded.shows(sub="a"), guarded.shows(sub="b")
        both = [*one.items(), *other.items()]
        assert (await status_of(service.consumer().renew(renewal(), metadata=both))).status is Status.UNAUTHENTICATED


async def test_a_peer_that_goes_on_calling_without_a_token_is_cut_off_and_others_are_served(guarded: Guarded) -> None:
    async with guarded.serving(ping_interval=60.0, ping_timeout=120.0) as service:
        hammering, other = service.consumer(), service.consumer()
        statuses: set[Status] = set()
        with pytest.raises((StreamTerminatedError, OSError)):
            await calls_without_end(hammering, statuses)
        assert statuses == {Status.UNAUTHENTICATED}
        assert service.refused("flood") == 1
        assert service.members.renewed == []
        await other.renew(renewal(), metadata=guarded.shows())


async def calls_without_end(consumer: v1.KafkaAssignerStub, statuses: set[Status]) -> None:
    while True:
        try:
            await consumer.renew(renewal())
        except GRPCError as error:
            statuses.add(error.status)


async def test_an_operators_client_opens_another_connection_for_a_token_of_another_principal(
    guarded: Guarded, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    async with guarded.serving() as service:
        file.write_text(guarded.signer.token(guarded.clock.wall(), sub="alice", roles=["operator"]))
        async with AdminClient(f"127.0.0.1:{service.server.port}", token=file) as admin:
            await admin.pause(GROUP)
            file.write_text(guarded.signer.token(guarded.clock.wall(), sub="bob", roles=["operator"]))
            await admin.resume(GROUP)
            progress = [one.remaining async for one in admin.drain_progress(GROUP, "worker-1")]
            assert progress[-1] == 0
            file.write_text(guarded.signer.token(guarded.clock.wall(), sub="carol", roles=["operator"]))
            assert [one.remaining async for one in admin.drain_progress(GROUP, "worker-1")] == progress


async def test_an_operators_client_whose_token_is_new_at_each_call_is_denied_once_and_for_all(
    guarded: Guarded,
) -> None:
    numbers = count()
    async with guarded.serving() as service:

        def token() -> str:
            return guarded.signer.token(guarded.clock.wall(), roles=["reader"], jti=str(next(numbers)))

        async with AdminClient(f"127.0.0.1:{service.server.port}", token=token) as admin:
            await admin.list_groups()
            with pytest.raises(PermissionDenied, match="`roles`"):
                await admin.pause(GROUP)
            with pytest.raises(PermissionDenied, match="`roles`"):
                await anext(admin.drain_progress(GROUP, "worker-1"))
            await admin.list_groups()


# --- what is passed on -------------------------------------------------------------------------------------------


async def test_the_session_is_registered_with_the_identity_of_the_token(guarded: Guarded) -> None:
    async with guarded.serving() as service:
        stream = service.consumer().register(registration(), metadata=guarded.shows(sub="billing-worker"))
        await anext(stream)
        assert service.members.streams["worker-1"].registration.principal == "acme/billing-worker"


async def test_a_list_of_groups_has_only_those_that_the_caller_may_see(guarded: Guarded) -> None:
    async with guarded.serving() as service:
        names = ["billing-1", "payments", "billing-2"]
        service.administration.summaries = [summary(name) for name in names]
        metadata = guarded.shows(roles=["reader"])
        listed = await service.admin().list_groups(v1.ListGroupsRequest(), metadata=metadata)
        assert [one.group for one in listed.groups] == ["billing-1", "billing-2"]
        everything = guarded.shows(roles=["reader"], groups=["*"])
        listed = await service.admin().list_groups(v1.ListGroupsRequest(), metadata=everything)
        assert [one.group for one in listed.groups] == names


def summary(name: str) -> GroupSummary:
    counts: dict[str, Any] = dict.fromkeys(
        ("consumers", "topics", "partitions", "unowned", "handoffs", "generation"), 0
    )
    return GroupSummary(group=name, leader="", paused=False, **counts)


# --- how long a stream lives -------------------------------------------------------------------------------------


async def test_a_stream_ends_a_while_after_its_token_has_expired(guarded: Guarded) -> None:
    async with guarded.serving() as service:
        stream = service.consumer().register(registration(), metadata=guarded.shows(exp=time.time() + 100))
        await anext(stream)
        error = await ended_at(guarded, stream, 100 + LEEWAY + EXPIRY_GRACE)
        assert error.status is Status.UNAUTHENTICATED
        assert "expired" in (error.message or "")
        await eventually(service.members.streams["worker-1"].left.is_set)


async def test_a_stream_outlives_its_token_while_newer_ones_are_shown_over_its_connection(guarded: Guarded) -> None:
    async with guarded.serving() as service:
        consumer = service.consumer()
        stream = consumer.register(registration(), metadata=guarded.shows(exp=time.time() + 100))
        await anext(stream)
        await consumer.renew(renewal(), metadata=guarded.shows(exp=time.time() + 1000))
        others = []
        for number in range(3):
            # On connections of their own, opened later: when these have ended, the first one was looked at too.
            other = service.consumer().register(
                registration(f"worker-{number + 2}"), metadata=guarded.shows(exp=time.time() + 100)
            )
            await anext(other)
            others.append(other)
        for other in others:
            await ended_at(guarded, other, 100 + LEEWAY + EXPIRY_GRACE)
        await consumer.renew(renewal(), metadata=guarded.shows(exp=time.time() + 1000))
        assert not service.members.streams["worker-1"].left.is_set()
        error = await ended_at(guarded, stream, 1000 + LEEWAY + EXPIRY_GRACE)
        assert error.status is Status.UNAUTHENTICATED


@pytest.mark.parametrize("claims", [{"roles": ["reader"]}, {"groups": ["payments"]}, {"names": ["reporter"]}])
async def test_a_newer_token_of_fewer_rights_does_not_keep_a_stream(guarded: Guarded, claims: dict[str, Any]) -> None:
    async with guarded.serving() as service:
        channel = service.channel()
        consumer, admin = v1.KafkaAssignerStub(channel), v1.AdminStub(channel)
        stream = consumer.register(registration(), metadata=guarded.shows(exp=time.time() + 100))
        await anext(stream)
        newer = guarded.shows(exp=time.time() + 10_000, **{"roles": ["reader", "consumer"]} | claims)
        await admin.list_groups(v1.ListGroupsRequest(), metadata=newer) if "roles" in claims else await status_of(
            consumer.renew(renewal(), metadata=newer)
        )
        error = await ended_at(guarded, stream, 100 + LEEWAY + EXPIRY_GRACE)
        assert error.status is Status.UNAUTHENTICATED


async def ended_at(guarded: Guarded, stream: Any, seconds: float) -> GRPCError:
    guarded.clock.ahead = seconds
    with pytest.raises(GRPCError) as caught:
        await anext(stream)
    return caught.value


# --- keys --------------------------------------------------------------------------------------------------------


async def test_keys_are_rotated_under_a_running_stream(guarded: Guarded) -> None:
    new = Signer()
    async with guarded.serving() as service:
        consumer = service.consumer()
        stream = consumer.register(registration(), metadata=guarded.shows())
        await anext(stream)
        early = await status_of(consumer.renew(renewal(), metadata=guarded.shows(new)))
        assert "no live key" in (early.message or "")
        new.publish(guarded.keys / "two.pem")
        await eventually(lambda: reloads(service) == 1)
        await consumer.renew(renewal(), metadata=guarded.shows(new))
        await consumer.renew(renewal(), metadata=guarded.shows())
        (guarded.keys / "one.pem").unlink()
        await eventually(lambda: reloads(service) == 2)
        await consumer.renew(renewal(), metadata=guarded.shows(new))
        late = await status_of(consumer.renew(renewal(), metadata=guarded.shows()))
        assert late.status is Status.UNAUTHENTICATED
        assert not service.members.streams["worker-1"].left.is_set()


async def test_keys_that_vanish_stay_in_force_and_their_age_rises(guarded: Guarded) -> None:
    async with guarded.serving() as service:
        authenticator = service.server.access.authenticator
        assert authenticator is not None
        (guarded.keys / "one.pem").unlink()
        await eventually(lambda: files(service).failures == 1)
        await service.consumer().renew(renewal(), metadata=guarded.shows())
        before = files(service).age
        await eventually(lambda: files(service).age > before + 0.2)
        guarded.signer.publish(guarded.keys / "one.pem")
        await eventually(lambda: files(service).age < 0.2)


async def test_a_server_whose_keys_are_missing_does_not_start(guarded: Guarded) -> None:
    (guarded.keys / "one.pem").unlink()
    with pytest.raises(InvalidInput, match="no public key"):
        async with guarded.serving():
            pass


def files(service: Serving) -> Any:
    authenticator = service.server.access.authenticator
    assert authenticator is not None
    state = authenticator.statistics().keys
    assert state is not None
    return state


def reloads(service: Serving) -> int:
    return int(files(service).reloads)


# --- certificates ------------------------------------------------------------------------------------------------


@pytest.fixture
def mutual(tmp_path: Path, guarded: Guarded) -> Mutual:
    return Mutual(tmp_path, guarded)


async def test_a_certificates_san_stands_for_a_token(mutual: Mutual) -> None:
    async with mutual.serving() as service:
        consumer = service.consumer(ssl=mutual.client(WORKER))
        stream = consumer.register(registration())
        await anext(stream)
        assert service.members.streams["worker-1"].registration.principal == f"acme/{WORKER}"
        await consumer.renew(renewal())
        error = await status_of(consumer.renew(v1.RenewRequest(consumer_name="worker-1", group="payments")))
        assert (error.status, "`groups`" in (error.message or "")) == (Status.PERMISSION_DENIED, True)


async def test_a_certificates_dns_name_stands_for_a_token(mutual: Mutual) -> None:
    async with mutual.serving() as service:
        admin = v1.AdminStub(service.channel(ssl=mutual.host("ci.ops.example")))
        await admin.pause(v1.PauseRequest(group="payments"))


async def test_a_common_name_stands_for_nothing(mutual: Mutual) -> None:
    async with mutual.serving() as service:
        context = mutual.host("stranger.example", common_name="ci.ops.example")
        admin = v1.AdminStub(service.channel(ssl=context))
        error = await status_of(admin.pause(v1.PauseRequest(group="payments")))
        assert error.status is Status.UNAUTHENTICATED


async def test_a_certificate_that_no_rule_names_is_no_identity(mutual: Mutual) -> None:
    async with mutual.serving() as service:
        consumer = service.consumer(ssl=mutual.client("spiffe://corp/ns/other/sa/worker"))
        assert (await status_of(consumer.renew(renewal()))).status is Status.UNAUTHENTICATED
        await consumer.renew(renewal(), metadata=mutual.guarded.shows())


async def test_a_denied_certificate_is_refused_with_any_token(mutual: Mutual) -> None:
    async with mutual.serving() as service:
        consumer = service.consumer(ssl=mutual.client("spiffe://corp/ns/billing/sa/leaked"))
        for metadata in (None, mutual.guarded.shows()):
            assert (await status_of(consumer.renew(renewal(), metadata=metadata))).status is Status.UNAUTHENTICATED


async def test_a_false_token_is_not_made_up_for_by_a_certificate(mutual: Mutual) -> None:
    async with mutual.serving() as service:
        consumer = service.consumer(ssl=mutual.client(WORKER))
        false = bearer(Signer().token(time.time()))
        assert (await status_of(consumer.renew(renewal(), metadata=false))).status is Status.UNAUTHENTICATED


# --- where identity is not required -------------------------------------------------------------------------------


async def test_where_it_is_not_required_callers_without_a_token_may_do_all_and_those_with_one_what_it_says(
    guarded: Guarded,
) -> None:
    guarded.auth = AuthSettings(required=False, keys=guarded.auth.keys)
    async with guarded.serving() as service:
        admin = service.admin()
        await admin.pause(v1.PauseRequest(group="payments"))
        for call in (
            admin.pause(v1.PauseRequest(group="payments"), metadata=guarded.shows()),
            admin.list_groups(v1.ListGroupsRequest(), metadata=guarded.shows()),
            service.consumer().renew(renewal(), metadata=guarded.shows(names=["reporter"])),
            service.consumer().renew(renewal(), metadata=guarded.shows(groups=["payments"])),
        ):
            assert (await status_of(call)).status is Status.PERMISSION_DENIED
        forged = await status_of(
            admin.pause(v1.PauseRequest(group="payments"), metadata=bearer(Signer().token(time.time())))
        )
        assert forged.status is Status.UNAUTHENTICATED
        stream = service.consumer().register(registration())
        await anext(stream)
        assert service.members.streams["worker-1"].registration.principal == ""


async def test_where_identity_is_off_tokens_are_not_looked_at() -> None:
    async with serving() as service:
        await service.consumer().renew(renewal(), metadata=bearer("opensesame"))
