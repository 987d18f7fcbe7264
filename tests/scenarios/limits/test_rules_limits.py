"""The numbered safety rules about limits: each as a test that fails when the rule is switched off.

`tests/chaos/ablation/ablations.py` switches them off. The other rules are in files of other scenarios, named
`test_rules_...` too.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio.lowlevel
import pytest

from assigner.core.writes import Purpose, Write
from assigner.errors import LimitReached
from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, Consumer, encode
from assigner.server import ServerSettings
from assigner.storage import batch_writer
from assigner.storage import mirror as mirroring
from assigner.storage.batch_writer import BatchWriter
from assigner.store import Limits, Put, Store
from tests.support.cluster import TTL, Cluster, tp
from tests.support.faulty_stores import NotingStore

pytestmark = pytest.mark.virtual_time


# --- 13: transactions respect the store's limit ------------------------------------------------------------------


@pytest.mark.cluster(limits=Limits(operations=8))
async def test_rule_13_what_is_too_much_for_one_transaction_takes_several(cluster: Cluster) -> None:
    noting: list[NotingStore] = []

    def wrap(store: Store) -> Store:
        noting.append(NotingStore(store))
        return noting[0]

    await cluster.set_options(copartitioned=(("left", "right"),))
    for topic in ("left", "right"):
        await cluster.add_topic(topic, partitions=20)
    await cluster.start_instance(wrap=wrap)
    await cluster.join("a")
    await cluster.until_counts(a=40)
    await cluster.join("b")
    state = await cluster.until_counts(a=20, b=20)
    assert max(len(compares) for compares, _ in noting[0].transactions) <= 8
    assert max(len(operations) for _, operations in noting[0].transactions) <= 8
    for number in range(20):
        pair = [state.assignments[TopicPartition(topic, number)] for topic in ("left", "right")]
        assert len({held.mod_revision for held in pair}) == 1, "a unit was torn apart"
        assert len({held.record.owner for held in pair}) == 1


# --- 14: nothing is unbounded ------------------------------------------------------------------------------------


async def test_rule_14_a_slow_consumers_outbox_holds_each_partition_once(cluster: Cluster) -> None:
    """It does not read while its one partition changes hands again and again."""
    await cluster.add_topic(partitions=1)
    instance = await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=1)
    mirror = instance.mirrors.get("g")
    assert mirror
    slow = Consumer(consumer_name="slow", session="s", ttl=TTL)
    unread = instance.registry.open(mirror, slow, AsyncExitStack(), anyio.lowlevel.checkpoint)
    for epoch in range(60, 110):
        record = Assignment(topic="t", partition=0, owner="slow", session="s", epoch=epoch)
        await cluster.store.put(cluster.group.assignment(tp(0)), encode(record))
    await mirror.wait_for((await cluster.state()).revision)
    assert unread.backlog == 1
    await unread.leave()


async def test_rule_14_streams_beyond_the_limit_are_refused(cluster: Cluster) -> None:
    await cluster.start_instance(grpc=ServerSettings(max_streams=2))
    await cluster.join("a")
    await cluster.join("b")
    with pytest.raises(LimitReached, match="2 streams"):
        await cluster.join("c")


async def test_rule_14_writes_beyond_the_limit_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_writer, "MAX_WAITING", 3)
    writer = BatchWriter(cluster.store)
    write = Write(Purpose.ACK, (), (Put("/k", b""),))
    for _ in range(3):
        writer.submit(write, lambda *_: None)
    with pytest.raises(LimitReached, match="3 writes"):
        writer.submit(write, lambda *_: None)


async def test_rule_14_groups_beyond_the_limit_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "MAX_GROUPS", 1)
    instance = await cluster.start_instance()
    await cluster.join("a")
    with pytest.raises(LimitReached, match="1 groups"):
        await instance.operations.set_options("another", {}, create=True)
