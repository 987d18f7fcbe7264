"""A gRPC server on a thread of its own, with an Administration that answers from a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import anyio
import msgspec
from anyio.from_thread import start_blocking_portal

from assigner.api import (
    GroupDescription,
    GroupSummary,
    LoadDescription,
    Member,
    Membership,
    NewOffset,
    NodeLoad,
    PartitionLoad,
    PartitionOwner,
    Weights,
)
from assigner.clock import SystemClock
from assigner.errors import AssignerError, UnknownGroup
from assigner.model.keys import TopicPartition
from assigner.model.records import (
    Cause,
    Consumer,
    GroupOptions,
    Handoff,
    Move,
    Quarantined,
    Status,
    Step,
    TopicConfig,
)
from assigner.server.server import GrpcServer
from assigner.server.settings import AuthSettings, ServerSettings
from tests.support.fakes.fake_routers import FakeRouters
from tests.support.fakes.fake_service import FakeOffsets


def description(group: str = "orders") -> GroupDescription:
    summary = GroupSummary(
        group=group,
        leader="instance-1",
        consumers=2,
        topics=1,
        partitions=6,
        unowned=1,
        handoffs=1,
        generation=7,
        paused=False,
    )
    owned = [("a", 0), ("a", 1), ("a", 2), ("b", 4), ("b", 5)]
    return GroupDescription(
        summary=summary,
        leader_address="10.0.0.1:50051",
        epoch_floor=3,
        options=GroupOptions(strategy_options={"x": 1}, copartitioned=(("t", "u"),)),
        members=(
            Member(Consumer(consumer_name="a", session="s1"), 3, 0, 0),
            Member(Consumer(consumer_name="b [red]", session="s2", status=Status.DRAINING), 2, 1, 0),
        ),
        topics=(TopicConfig(topic="t", partition_count=6, source="admin"),),
        ownership=tuple(PartitionOwner(TopicPartition("t", number), owner, "s", 9) for owner, number in owned),
        handoffs=(
            Handoff(topic="t", partition=4, old_owner="b", new_owner="a", step=Step.WARMING, cause=Cause.DRAINING),
        ),
        quarantined=(Quarantined(topic="t", partition=3, failed=("a", "b"), reason="disk full"),),
        unreadable=("/kafka-assigner/orders/consumers/c: not JSON",),
        history=(
            Move(at=1_700_000_000, topic="t", partition=0, old="b", new="a", cause=Cause.JOINED, generation=6, epoch=9),
        ),
    )


class ScriptedAdministration:
    """Returns configured replies and records the requests."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error: AssignerError | None = None
        self.remaining: list[int] = [0]
        self.known = ["orders"]
        self.hang = False
        self.left = 10
        """Records of a group that is deleted."""

    async def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.hang:
            await anyio.sleep_forever()
        if self.error:
            raise self.error

    async def set_topic(
        self, group: str, topic: str, partitions: int, *, force: bool = False, create: bool = True
    ) -> TopicConfig:
        await self._called("set_topic", group, topic, partitions, force)
        self._check(group, create=create)
        return TopicConfig(topic=topic, partition_count=partitions, source="admin")

    def _check(self, group: str, *, create: bool = False) -> None:
        if group not in self.known and not create:
            raise UnknownGroup(f"there is no group {group!r}")

    async def delete_group(self, group: str, *, force: bool) -> tuple[int, bool]:
        await self._called("delete_group", group, force)
        self._check(group)
        self.left -= 10
        return 10, self.left > 0

    async def delete_topic(self, group: str, topic: str, *, force: bool) -> tuple[int, bool]:
        await self._called("delete_topic", group, topic, force)
        self._check(group)
        return 3, False

    async def find_topic(self, group: str, topic: str, *, create: bool = True) -> TopicConfig:
        await self._called("find_topic", group, topic)
        self._check(group, create=create)
        return TopicConfig(topic=topic, partition_count=3, source="kafka")

    async def topics(self, group: str) -> list[TopicConfig]:
        await self._called("topics", group)
        self._check(group)
        return list(description(group).topics)

    async def groups(self) -> list[GroupSummary]:
        await self._called("groups")
        return [description(group).summary for group in self.known]

    async def describe(self, group: str) -> GroupDescription:
        await self._called("describe", group)
        self._check(group)
        return description(group)

    async def set_options(self, group: str, changes: dict[str, Any], *, create: bool = False) -> GroupOptions:
        await self._called("set_options", group, changes)
        self._check(group, create=create)
        return msgspec.convert(changes, GroupOptions)

    async def drain(self, group: str, consumer: str) -> int:
        await self._called("drain", group, consumer)
        return self.remaining[0]

    async def drain_progress(self, group: str, consumer: str) -> AsyncIterator[int]:
        for remaining in self.remaining[1:]:
            yield remaining
        if self.remaining[-1]:
            await anyio.sleep_forever()

    async def rebalance(self, group: str) -> None:
        await self._called("rebalance", group)
        self._check(group)

    async def set_loads(self, group: str, weights: Sequence[Weights], valid_for: float, *, keep_others: bool) -> int:
        await self._called("set_loads", group, tuple(weights), valid_for, keep_others)
        return sum(len(run.weights) for run in weights)

    async def set_offsets(self, group: str, offsets: Mapping[TopicPartition, NewOffset | None], *, force: bool) -> int:
        await self._called("set_offsets", group, dict(offsets), force)
        return len(offsets)

    async def loads(self, group: str, limit: int) -> LoadDescription:
        await self._called("loads", group, limit)
        self._check(group)
        return LoadDescription(
            used=True,
            fallback="",
            partitions=6,
            known=5,
            total=20.0,
            at=1_700_000_000,
            heaviest=(PartitionLoad(TopicPartition("t", 3), 10.0, 0.5, "a"),),
            busiest=(NodeLoad("a", 0.25, 3, 0.75), NodeLoad("b [red]", float("nan"), 2, 0.25)),
            unreadable=("u: not JSON",),
        )


@contextmanager
def serving(
    administration: ScriptedAdministration,
    settings: ServerSettings | None = None,
    offsets: FakeOffsets | None = None,
    auth: AuthSettings = AuthSettings(required=False),  # noqa: B008  (frozen)
) -> Iterator[str]:
    """The address of a server, which runs until the block is left."""
    server = GrpcServer(
        settings or ServerSettings(port=0),
        cast(Membership, None),
        administration,
        offsets or FakeOffsets(),
        FakeRouters(),
        default_group="default",
        clock=SystemClock(),
        ready=lambda: True,
        auth=auth,
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_running(server)):
        yield f"127.0.0.1:{server.port}"


@asynccontextmanager
async def _running(server: GrpcServer) -> AsyncIterator[None]:
    await server.start()
    yield
    with anyio.fail_after(30):
        await server.close()
