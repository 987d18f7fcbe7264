"""A router's session belongs to the identity that opened it: nobody else renews, acks or leaves for it, or takes its
name, so that no stranger can let a frozen partition flip or have a router counted out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from assigner.api import RouterRegistration, RouterStream
from assigner.errors import NotRegistered, PermissionDenied, Superseded
from assigner.instance import Instance
from assigner.model.records import Router, stored
from assigner.model.routes import FreezeAck
from assigner.store import Found
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.frozen_moves import moving, until_step

pytestmark = pytest.mark.virtual_time

OWN, OTHER, UNKNOWN = "acme/edge", "evil/edge", ""
SESSION = "the-session"
Call = Callable[[Instance, str, str], Awaitable[object]]
CALLS: dict[str, Call] = {
    "RenewRouter": lambda i, session, who: i.routers.renew(GROUP, "r", session, principal=who),
    "CutoverAck": lambda i, session, who: i.routers.cutover_ack(
        GROUP, "r", session, [FreezeAck(tp(0), "h1")], principal=who
    ),
    "DeregisterRouter": lambda i, session, who: i.routers.deregister(GROUP, "r", session, principal=who),
}


@asynccontextmanager
async def registered(instance: Instance, session: str = SESSION, principal: str = OWN) -> AsyncIterator[RouterStream]:
    stream = await instance.routers.register(RouterRegistration(GROUP, "r", session, principal=principal))
    try:
        yield stream
    finally:
        await stream.leave()


async def routers_of(cluster: Cluster) -> dict[str, bytes]:
    """What a call could have changed."""
    pages = [await cluster.store.list(f"{cluster.group.prefix}{branch}") for branch in ("routers/", "handoff_acks/")]
    return {entry.key: entry.value for page in pages for entry in page.entries}


async def on_record(cluster: Cluster) -> Router:
    found = await cluster.store.get(cluster.group.router("r"))
    assert isinstance(found, Found)
    return stored(Router, found.entry).record


async def started(cluster: Cluster) -> Instance:
    await cluster.add_topic(partitions=2)
    return await cluster.start_instance()


@pytest.mark.parametrize("session", [SESSION, "another-one"])
@pytest.mark.parametrize("who", [OTHER, UNKNOWN])
@pytest.mark.parametrize("call", CALLS)
async def test_rule_17_another_identity_does_nothing_for_a_router_whether_or_not_it_knows_the_session(
    any_cluster: Cluster, call: str, who: str, session: str
) -> None:
    instance = await started(any_cluster)
    async with registered(instance):
        before = await routers_of(any_cluster)
        assert before
        with pytest.raises(PermissionDenied, match="another identity") as caught:
            await CALLS[call](instance, session, who)
        assert OWN not in str(caught.value)
        assert await routers_of(any_cluster) == before


@pytest.mark.parametrize("call", CALLS)
async def test_rule_17_a_replayed_token_does_nothing_for_a_router_without_the_session(
    any_cluster: Cluster, call: str
) -> None:
    instance = await started(any_cluster)
    async with registered(instance):
        before = await routers_of(any_cluster)
        with pytest.raises(NotRegistered):
            await CALLS[call](instance, "another-one", OWN)
        assert await routers_of(any_cluster) == before


@pytest.mark.parametrize("call", CALLS)
async def test_the_identity_makes_every_call_for_its_router_at_any_instance(any_cluster: Cluster, call: str) -> None:
    instance = await started(any_cluster)
    another = await any_cluster.start_instance("i2", leads=False)
    async with registered(instance):
        await CALLS[call](another, SESSION, OWN)


@pytest.mark.parametrize("session", [SESSION, "another-one"])
@pytest.mark.parametrize("who", [OTHER, UNKNOWN])
async def test_another_identity_takes_neither_a_routers_name_nor_its_session(
    any_cluster: Cluster, who: str, session: str
) -> None:
    instance = await started(any_cluster)
    async with registered(instance):
        before = await routers_of(any_cluster)
        with pytest.raises(PermissionDenied, match="another identity"):
            await instance.routers.register(RouterRegistration(GROUP, "r", session, principal=who))
        assert await routers_of(any_cluster) == before


@pytest.mark.parametrize("who", [OTHER, UNKNOWN])
async def test_rule_17_another_identity_can_not_let_a_frozen_partition_flip_with_the_session_of_a_router(
    any_cluster: Cluster, who: str
) -> None:
    instance = await any_cluster.start_instance()
    await any_cluster.add_topic(partitions=2)
    async with registered(instance):
        _, b, partition = await moving(any_cluster)
        frozen = FreezeAck(partition, await until_step(any_cluster, partition))
        before = await routers_of(any_cluster)
        with pytest.raises(PermissionDenied, match="another identity"):
            await instance.routers.cutover_ack(GROUP, "r", SESSION, [frozen], principal=who)
        assert await routers_of(any_cluster) == before
        await anyio.sleep(0.5)
        assert not b.owned
        assert await instance.routers.cutover_ack(GROUP, "r", SESSION, [frozen], principal=OWN) == []
        await b.until("is the owner", lambda c: partition in c.owned)


@pytest.mark.parametrize("who", [OTHER, UNKNOWN])
async def test_rule_17_another_identity_can_not_count_out_a_session_that_lost_its_name(
    any_cluster: Cluster, who: str
) -> None:
    """It may still send requests, so freezes wait for it."""
    instance = await started(any_cluster)
    async with registered(instance), registered(instance, "the-newer-session"):
        before = await routers_of(any_cluster)
        with pytest.raises(PermissionDenied):
            await instance.routers.deregister(GROUP, "r", SESSION, principal=who)
        assert await routers_of(any_cluster) == before
        await instance.routers.deregister(GROUP, "r", SESSION, principal=OWN)
        assert len(await routers_of(any_cluster)) == len(before) - 1


async def test_the_identity_takes_its_routers_name_over_with_another_session(any_cluster: Cluster) -> None:
    instance = await started(any_cluster)
    async with registered(instance), registered(instance, "the-newer-session"):
        assert (await on_record(any_cluster)).session == "the-newer-session"
        with pytest.raises(Superseded):
            await instance.routers.renew(GROUP, "r", SESSION, principal=OWN)


async def test_a_routers_session_from_before_identities_is_bound_to_the_one_that_resumes_it(
    any_cluster: Cluster,
) -> None:
    instance = await started(any_cluster)
    async with registered(instance, principal=""):
        await instance.routers.renew(GROUP, "r", SESSION, principal=OWN)
        with pytest.raises(NotRegistered):
            await instance.routers.renew(GROUP, "r", "a-guess", principal=OTHER)
    async with registered(instance):
        assert (await on_record(any_cluster)).principal == OWN
        with pytest.raises(PermissionDenied):
            await instance.routers.renew(GROUP, "r", SESSION, principal=OTHER)


async def test_a_description_shows_which_identity_a_router_is_bound_to(any_cluster: Cluster) -> None:
    instance = await started(any_cluster)
    async with registered(instance):
        (router,) = (await instance.operations.describe(GROUP)).routers
        assert router.principal == OWN
