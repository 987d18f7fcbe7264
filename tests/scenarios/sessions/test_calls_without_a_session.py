"""A session belongs to who opened it: a call that names none acts for nobody who has one, whatever it asks for.

The empty session is for clients that know no sessions, whose registrations the server gave one. Exclusive groups take
no such clients and no such calls.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from assigner.api import CommitRefusal, LoadReport, OffsetCommit, RefusedCommit
from assigner.errors import AssignerError, FailedPrecondition, NotRegistered, Superseded
from assigner.instance import Instance
from assigner.model.commands import Ack
from assigner.model.records import HandoffMode
from assigner.observability.event_log import EventSettings
from assigner.server.services.group_description import described
from assigner.store import Found
from assigner.testing.waiting import eventually
from tests.scenarios.ownership.test_ownership_events import logged
from tests.support.cluster import EXPIRES, GROUP, Cluster, tp
from tests.support.stepped_consumer import SteppedConsumer

# --- every call --------------------------------------------------------------------------------------------------

Call = Callable[[Instance, str], Awaitable[object]]
CALLS: dict[str, Call] = {
    "Renew": lambda i, session: i.members.renew(GROUP, "a", session),
    "PartitionReady": lambda i, session: i.members.ready(GROUP, "a", session, [Ack(tp(0))]),
    "PartitionReleased": lambda i, session: i.members.released(GROUP, "a", session, [Ack(tp(0))]),
    "Deregister": lambda i, session: i.members.deregister(GROUP, "a", session, gates_closed=False),
    "Deregister with closed gates": lambda i, session: i.members.deregister(GROUP, "a", session, gates_closed=True),
    "ReportLoad": lambda i, session: i.members.report_load(GROUP, "a", session, LoadReport()),
    "CommitOffsets": lambda i, session: i.offsets.commit(GROUP, "a", session, [OffsetCommit(tp(0), 1, 999)]),
}
pytestmark = pytest.mark.virtual_time


async def everything(cluster: Cluster) -> dict[str, bytes]:
    """What a call of a consumer could have changed."""
    branches = (cluster.group.consumers, cluster.group.assignments, cluster.group.handoffs, cluster.keys.offsets(GROUP))
    pages = [await cluster.store.list(branch) for branch in branches]
    return {entry.key: entry.value for page in pages for entry in page.entries}


@pytest.mark.parametrize("call", CALLS)
async def test_rule_17_a_call_without_a_session_does_nothing_for_a_consumer_that_has_one(
    any_cluster: Cluster, call: str
) -> None:
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a")
    await a.until("owns everything", lambda c: len(c.owned) == 2)
    before = await everything(any_cluster)
    with pytest.raises(FailedPrecondition, match="name that session"):
        await CALLS[call](instance, "")
    assert await everything(any_cluster) == before
    assert a.ended is None


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_with_a_wrong_session_does_nothing_and_does_not_reveal_the_right_one(
    any_cluster: Cluster, call: str
) -> None:
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a", session="the-right-one")
    await a.until("owns everything", lambda c: len(c.owned) == 2)
    before = await everything(any_cluster)
    if call == "CommitOffsets":
        assert await CALLS[call](instance, "a-wrong-one") == [RefusedCommit(tp(0), CommitRefusal.FENCED, 1, "a")]
    else:
        with pytest.raises(NotRegistered) as caught:
            await CALLS[call](instance, "a-wrong-one")
        assert "-one" not in str(caught.value)
    assert await everything(any_cluster) == before


@pytest.mark.parametrize("call", CALLS)
async def test_a_client_that_knows_no_sessions_may_make_every_call(any_cluster: Cluster, call: str) -> None:
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a", session="")
    await a.until("owns everything", lambda c: len(c.owned) == 2)
    await CALLS[call](instance, "")


async def test_a_session_that_looks_as_if_the_server_made_it_up_is_the_clients_own(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    await any_cluster.join("a", session="minted-0123456789abcdef")
    with pytest.raises(FailedPrecondition, match="name that session"):
        await instance.members.renew(GROUP, "a", "")


async def test_a_client_that_names_the_session_it_was_given_owns_it_from_then_on(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a", session="")
    await instance.members.renew(GROUP, "a", "")
    a.crash()
    b = SteppedConsumer(any_cluster, "a", session=a.session)
    await b.connect(instance)
    await instance.members.renew(GROUP, "a", a.session)
    with pytest.raises(FailedPrecondition, match="name that session"):
        await instance.members.renew(GROUP, "a", "")


async def test_a_registration_written_by_an_upstream_server_has_no_session_to_name(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance(leads=False)
    await any_cluster.put_consumer("a")
    assert await instance.members.renew(GROUP, "a", "") > 0


async def test_a_call_without_a_session_of_an_unknown_name_is_not_registered(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    for call in CALLS.values():
        with pytest.raises(NotRegistered, match="register first"):
            await call(instance, "")


async def test_an_operator_drains_a_consumer_without_knowing_its_session(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a")
    await instance.operations.drain(GROUP, "a")
    await a.until("ends well", lambda c: c.ended == "drained")


# --- exclusive groups --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("renews", [True, False])
async def test_rule_17_exclusive_groups_take_no_client_without_a_session(any_cluster: Cluster, renews: bool) -> None:
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await any_cluster.start_instance()
    with pytest.raises(FailedPrecondition, match="exclusively"):
        await any_cluster.join("a", session="", renews=renews)
    assert not (await any_cluster.state()).consumers


@pytest.mark.parametrize("call", CALLS)
async def test_in_an_exclusive_group_no_call_goes_without_a_session(any_cluster: Cluster, call: str) -> None:
    """Also for a consumer that came while the group was not exclusive."""
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a", session="")
    await a.until("owns everything", lambda c: len(c.owned) == 2)
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    mirror = instance.mirrors.get(GROUP)
    assert mirror
    await eventually(lambda: mirror.state.options.handoff_mode is HandoffMode.EXCLUSIVE, what="it is exclusive")
    before = await everything(any_cluster)
    with pytest.raises(FailedPrecondition, match="exclusively"):
        await CALLS[call](instance, "")
    assert await everything(any_cluster) == before


async def one_moving(cluster: Cluster) -> tuple[SteppedConsumer, SteppedConsumer]:
    """`a` was asked to release one of its two partitions and has not done so; `b` has warmed it."""
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await a.until("owns everything", lambda c: len(c.owned) == 2)
    b = await cluster.join("b")
    await a.until("told to release", lambda c: bool(c.to_release))
    return a, b


async def test_rule_17_a_call_without_the_session_can_not_ack_the_release_of_what_an_owner_still_holds(
    any_cluster: Cluster,
) -> None:
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    a, b = await one_moving(any_cluster)
    (moving,) = a.to_release
    with pytest.raises(FailedPrecondition):
        await any_cluster.instances["i1"].members.released(GROUP, "a", "", [Ack(moving)])
    await anyio.sleep(0.5)
    assert not b.owned
    await a.release(moving)
    await b.until("is the owner", lambda c: moving in c.owned)


async def test_a_call_without_the_session_can_not_end_the_session_of_an_owner_that_hangs(any_cluster: Cluster) -> None:
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await any_cluster.add_topic(partitions=1)
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a")
    await a.until("owns it", lambda c: bool(c.owned))
    found = await any_cluster.store.get(any_cluster.group.consumer("a"))
    assert isinstance(found, Found)
    with pytest.raises(FailedPrecondition):
        await instance.members.deregister(GROUP, "a", "", gates_closed=True)
    b = await any_cluster.join("b")
    await anyio.sleep(0.5)
    after = await any_cluster.store.get(any_cluster.group.consumer("a"))
    assert isinstance(after, Found)
    assert after.entry.mod_revision == found.entry.mod_revision
    assert not b.owned


@pytest.mark.cluster(etcd_ttl=EXPIRES)
@pytest.mark.parametrize("mode", [HandoffMode.OVERLAP, HandoffMode.EXCLUSIVE])
async def test_a_call_without_the_session_can_not_keep_a_dead_consumer_alive(
    any_cluster: Cluster, mode: HandoffMode
) -> None:
    await any_cluster.set_options(handoff_mode=mode)
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a")
    await a.until("owns everything", lambda c: len(c.owned) == 2)
    a.crash()
    b = await any_cluster.join("b")
    refused = 0
    with anyio.fail_after(6 * any_cluster.ttl + any_cluster.allowance):
        while len(b.owned) < 2:
            try:
                await instance.members.renew(GROUP, "a", "")
            except AssignerError:
                refused += 1
            await anyio.sleep(any_cluster.ttl / 10)
    assert refused > 5


async def test_a_call_without_the_session_can_not_ack_a_warm_partition(any_cluster: Cluster) -> None:
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await any_cluster.add_topic(partitions=2)
    await any_cluster.start_instance()
    a = await any_cluster.join("a")
    await a.until("owns everything", lambda c: len(c.owned) == 2)
    b = await any_cluster.join("b", answers_warm=False)
    await b.until("is to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    with pytest.raises(FailedPrecondition):
        await any_cluster.instances["i1"].members.ready(GROUP, "b", "", [Ack(moving)])
    await anyio.sleep(0.5)
    assert not a.to_release
    await b.ready(moving)
    await b.until("is the owner", lambda c: moving in c.owned)


# --- secrets -----------------------------------------------------------------------------------------------------

SECRETS = ("the-older-secret", "the-newer-secret")


async def test_rule_17_a_session_is_shown_to_nobody_but_who_opened_it(
    any_cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the log, the event log, errors or what operators see: only a digest, the same one everywhere."""
    caplog.set_level(logging.DEBUG)
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance(events=EventSettings(directory=str(tmp_path)))
    older = await any_cluster.join("a", session=SECRETS[0])
    await older.until("owns everything", lambda c: len(c.owned) == 2)
    newer = await any_cluster.join("a", session=SECRETS[1])
    await newer.until("owns everything", lambda c: set(c.owned.values()) == {2} and len(c.owned) == 2)
    await older.until("told", lambda c: c.ended is not None)
    assert isinstance(older.ended, Superseded)
    texts = [str(older.ended)]
    for session in (*SECRETS, "another-guess"):
        try:
            await instance.members.renew(GROUP, "a", session)
        except AssignerError as error:
            texts.append(str(error))
    told = (await described(await instance.operations.describe(GROUP))).decode("latin-1")
    texts.append(told)
    await newer.deregister(gates_closed=True)
    lines = await logged(any_cluster, tmp_path)
    texts += [str(line) for line in lines]
    logs = [record.getMessage() for record in caplog.records]
    texts += logs
    for secret in SECRETS:
        assert not [text for text in texts if secret in text]
    digests = {line["session"] for line in lines if line["epoch"] == 2 and line["session"]}
    assert len(digests) == 1
    (digest,) = digests
    assert digest in told
    assert [text for text in logs if "consumer_registered" in text and digest in text]
