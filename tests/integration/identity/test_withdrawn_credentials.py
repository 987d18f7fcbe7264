"""Streams whose credentials are withdrawn while they run: their key is removed, or their certificate's rule changes.

A client that renews its lease by calls is refused at the next one. One whose lease is renewed for as long as its
connection answers pings makes no calls, so its stream has to end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from assigner.proto.kafka_assigner import v1
from assigner.server.access import EXPIRY_GRACE
from tests.support.fakes.grpc_serving import Serving, eventually
from tests.support.fakes.guarded_serving import RULES, WORKER, Guarded, Mutual, registration, renewal
from tests.support.signed_tokens import Signer


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


@pytest.fixture
def mutual(tmp_path: Path, guarded: Guarded) -> Mutual:
    return Mutual(tmp_path, guarded)


async def registered(consumer: v1.KafkaAssignerStub, name: str = "worker-1", **how: Any) -> Any:
    stream = consumer.register(registration(name), **how)
    await anext(stream)
    return stream


async def ended(guarded: Guarded, stream: Any) -> tuple[GRPCError, float]:
    """The error that the stream ends with, and after how many seconds of the service's clock."""
    before = guarded.clock.ahead
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_let_time_pass, guarded)
        with anyio.fail_after(60), pytest.raises(GRPCError) as caught:
            await anext(stream)
        tasks.cancel_scope.cancel()
    return caught.value, guarded.clock.ahead - before


async def _let_time_pass(guarded: Guarded) -> None:
    while True:
        guarded.clock.ahead += 5
        await anyio.sleep(0.02)


async def long_after(guarded: Guarded, service: Serving, **how: Any) -> None:
    """Let time pass until streams on newer connections, which are looked at later, have ended with their tokens."""
    for number in range(3):
        expiring = guarded.shows(guarded.signer, exp=guarded.clock.wall() + 2 * EXPIRY_GRACE)
        stream = await registered(service.consumer(**how), f"worker-{number + 10}", metadata=expiring)
        await ended(guarded, stream)


def reloads(service: Serving) -> int:
    authenticator = service.server.access.authenticator
    assert authenticator is not None
    found = authenticator.statistics()
    return sum(files.reloads for files in (found.keys, found.certificates) if files is not None)


def is_left(service: Serving, name: str = "worker-1") -> bool:
    return service.members.streams[name].left.is_set()


# --- keys --------------------------------------------------------------------------------------------------------


async def test_a_stream_ends_a_while_after_the_key_of_its_token_was_removed(guarded: Guarded) -> None:
    async with guarded.serving() as service:
        stream = await registered(service.consumer(), metadata=guarded.shows())
        Signer().publish(guarded.keys / "two.pem")
        (guarded.keys / "one.pem").unlink()
        error, after = await ended(guarded, stream)
        assert error.status is Status.UNAUTHENTICATED
        assert "key" in (error.message or "")
        assert after >= EXPIRY_GRACE
        await eventually(lambda: is_left(service))


async def test_a_stream_outlives_its_key_if_a_token_of_a_live_one_was_shown_over_its_connection(
    guarded: Guarded,
) -> None:
    old, new = guarded.signer, Signer()
    new.publish(guarded.keys / "two.pem")
    async with guarded.serving() as service:
        consumer = service.consumer()
        kept = await registered(consumer, metadata=guarded.shows())
        await consumer.renew(renewal(), metadata=guarded.shows(new))
        doomed = await registered(service.consumer(), "worker-2", metadata=guarded.shows(old))
        (guarded.keys / "one.pem").unlink()
        await ended(guarded, doomed)
        guarded.signer = new
        await long_after(guarded, service)
        assert not is_left(service)
        await kept.aclose()


async def test_keys_that_vanish_end_no_stream(guarded: Guarded) -> None:
    async with guarded.serving() as service:
        kept = await registered(service.consumer(), metadata=guarded.shows())
        (guarded.keys / "one.pem").unlink()
        await long_after(guarded, service)
        assert not is_left(service)
        await kept.aclose()


# --- certificates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_token", [False, True])
async def test_a_stream_ends_a_while_after_its_certificate_was_denied(mutual: Mutual, with_token: bool) -> None:
    guarded = mutual.guarded
    async with mutual.serving() as service:
        consumer = service.consumer(ssl=mutual.client(WORKER))
        stream = await registered(consumer, metadata=guarded.shows() if with_token else None)
        mutual.rules.write_text(f'{RULES}\n[[deny]]\nwho = "{WORKER}"\n')
        error, after = await ended(guarded, stream)
        assert error.status is Status.UNAUTHENTICATED
        assert "[[deny]]" in (error.message or "")
        assert after >= EXPIRY_GRACE


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('role = "consumer"', 'role = "reader"'),
        ('names = "worker-*"', 'names = "reporter-*"'),
        ('groups = "billing-*"', 'groups = "payments"'),
        ('org = "acme"', 'org = "other"'),
        (f'who = "{WORKER}"', 'who = "spiffe://corp/ns/billing/sa/other"'),
    ],
)
async def test_a_stream_ends_a_while_after_the_rule_of_its_certificate_allows_it_no_more(
    mutual: Mutual, was: str, becomes: str
) -> None:
    async with mutual.serving() as service:
        stream = await registered(service.consumer(ssl=mutual.client(WORKER)))
        mutual.rules.write_text(RULES.replace(was, becomes))
        error, after = await ended(mutual.guarded, stream)
        assert error.status in (Status.UNAUTHENTICATED, Status.PERMISSION_DENIED)
        assert after >= EXPIRY_GRACE


async def test_a_rule_that_allows_more_ends_no_stream(mutual: Mutual) -> None:
    async with mutual.serving() as service:
        consumer = service.consumer(ssl=mutual.client(WORKER))
        kept = await registered(consumer)
        mutual.rules.write_text(RULES.replace('role = "consumer"', 'role = ["consumer", "reader"]'))
        await eventually(lambda: reloads(service) == 1)
        await long_after(mutual.guarded, service, ssl=mutual.client(WORKER))
        assert not is_left(service)
        await kept.aclose()
