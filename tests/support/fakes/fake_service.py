"""Stand-ins for what is behind the gRPC server: members and an administration that a test scripts and inspects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from assigner import api
from assigner.api import GroupDescription, GroupSummary, Registration
from assigner.errors import NotRegistered, UnknownGroup, UnknownTopic
from assigner.model.commands import Ack, Commands
from assigner.model.keys import TopicPartition
from assigner.model.records import GroupOptions, TopicConfig


class FakeConsumerStream:
    """A stream whose commands the test puts in: a `Commands`, an exception to raise, or None to end it."""

    def __init__(self, registration: Registration, heard: Callable[[], float]) -> None:
        self.group = registration.group
        self.name = registration.name
        self.session = registration.session or "minted"
        self.ttl = 30.0
        self.exclusive = False
        self.registration = registration
        self.heard = heard
        self.taken = 0
        self.left = asyncio.Event()
        self._queue: asyncio.Queue[Commands | Exception | None] = asyncio.Queue()

    def put(self, *items: Commands | Exception | None) -> None:
        for item in items:
            self._queue.put_nowait(item)

    async def commands(self) -> AsyncIterator[Commands]:
        while (item := await self._queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            self.taken += 1
            yield item

    async def leave(self) -> None:
        assert not self.left.is_set(), "left twice"
        # A real one writes to the store here.
        await asyncio.sleep(0.01)
        self.left.set()


class FakeMembers:
    """Registers anybody and refuses what the test says."""

    def __init__(self) -> None:
        self.streams: dict[str, FakeConsumerStream] = {}
        self.opening: Commands | None = Commands(full=True)
        self.refuse_registration: Exception | None = None
        self.refusals: list[api.RejectedAck] = []
        self.answered: list[tuple[str, str, str, str, tuple[Ack, ...]]] = []
        self.slow_answers: asyncio.Event | None = None
        """If set, ready and released wait for it."""
        self.fails: Exception | None = None
        self.wait_for_drain = False
        self.deregistered: list[tuple[str, str, str, bool]] = []
        self.stepped_out: list[tuple[str, str, str]] = []
        self.renewed: list[tuple[str, str, str]] = []
        self.reported: list[tuple[str, str, str, api.LoadReport]] = []
        self.gate = asyncio.Event()
        """Renew waits for it."""
        self.gate.set()
        self.renewing = asyncio.Event()

    async def register(self, registration: Registration, heard: Callable[[], float]) -> FakeConsumerStream:
        if self.refuse_registration is not None:
            raise self.refuse_registration
        stream = self.streams[registration.name] = FakeConsumerStream(registration, heard)
        if self.opening is not None:
            stream.put(self.opening)
        return stream

    async def ready(
        self, group: str, name: str, session: str, acks: Sequence[Ack], *, principal: str = ""
    ) -> list[api.RejectedAck]:
        return await self._answer("ready", group, name, session, acks)

    async def released(
        self, group: str, name: str, session: str, acks: Sequence[Ack], *, principal: str = ""
    ) -> list[api.RejectedAck]:
        return await self._answer("released", group, name, session, acks)

    async def _answer(
        self, kind: str, group: str, name: str, session: str, acks: Sequence[Ack]
    ) -> list[api.RejectedAck]:
        if self.fails is not None:
            raise self.fails
        self.answered.append((kind, group, name, session, tuple(acks)))
        if self.slow_answers is not None:
            await self.slow_answers.wait()
        return self.refusals

    async def deregister(self, group: str, name: str, session: str, *, gates_closed: bool, principal: str = "") -> bool:
        if name not in self.streams:
            raise NotRegistered(f"consumer {name!r} is not registered; register first")
        self.deregistered.append((group, name, session, gates_closed))
        return self.wait_for_drain

    async def step_out(self, group: str, name: str, session: str, *, principal: str = "") -> None:
        self.stepped_out.append((group, name, session))

    async def renew(self, group: str, name: str, session: str, *, principal: str = "") -> float:
        self.renewing.set()
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        self.renewed.append((group, name, session))
        return 30.0

    async def report_load(
        self, group: str, name: str, session: str, report: api.LoadReport, *, principal: str = ""
    ) -> api.LoadReceipt:
        self.reported.append((group, name, session, report))
        return api.LoadReceipt(sum(len(told.partitions) for told in report.topics), 15.0)


class FakeAdministration:
    def __init__(self) -> None:
        self.configs: dict[str, TopicConfig] = {}
        self.summaries: list[GroupSummary] = []
        self.descriptions: dict[str, GroupDescription] = {}
        self.options = GroupOptions()
        self.changes: list[tuple[str, dict[str, Any]]] = []
        self.remaining = [3, 1, 0]
        self.rebalanced: list[str] = []
        self.deleted: list[tuple[str, str, bool]] = []
        self.offsets_set: list[tuple[str, dict[TopicPartition, api.NewOffset | None], bool]] = []
        self.published: list[tuple[str, tuple[api.Weights, ...], float, bool]] = []
        self.load_description = api.LoadDescription(
            used=False,
            fallback="off",
            partitions=0,
            known=0,
            total=0.0,
            at=0,
            heaviest=(),
            busiest=(),
            unreadable=(),
        )

    async def set_topic(
        self, group: str, topic: str, partitions: int, *, force: bool = False, create: bool = True
    ) -> TopicConfig:
        config = TopicConfig(topic=topic, partition_count=partitions, source="admin")
        self.configs[topic] = config
        return config

    async def find_topic(self, group: str, topic: str, *, create: bool = True) -> TopicConfig:
        if topic not in self.configs:
            raise UnknownTopic(f"topic {topic!r} is not known")
        return self.configs[topic]

    async def topics(self, group: str) -> list[TopicConfig]:
        return list(self.configs.values())

    async def groups(self) -> list[GroupSummary]:
        return self.summaries

    async def describe(self, group: str) -> GroupDescription:
        if group not in self.descriptions:
            raise UnknownGroup(f"group {group!r} is unknown; `assigner groups` lists the known ones")
        return self.descriptions[group]

    async def set_options(self, group: str, changes: dict[str, Any], *, create: bool = False) -> GroupOptions:
        self.changes.append((group, changes))
        return self.options

    async def delete_group(self, group: str, *, force: bool) -> tuple[int, bool]:
        self.deleted.append((group, "", force))
        return 10, False

    async def delete_topic(self, group: str, topic: str, *, force: bool) -> tuple[int, bool]:
        self.deleted.append((group, topic, force))
        return 3, False

    async def drain(self, group: str, consumer: str) -> int:
        return self.remaining[0]

    async def drain_progress(self, group: str, consumer: str) -> AsyncIterator[int]:
        for left in self.remaining[1:]:
            yield left

    async def rebalance(self, group: str) -> None:
        self.rebalanced.append(group)

    async def set_loads(
        self, group: str, weights: Sequence[api.Weights], valid_for: float, *, keep_others: bool
    ) -> int:
        self.published.append((group, tuple(weights), valid_for, keep_others))
        return sum(len(run.weights) for run in weights)

    async def loads(self, group: str, limit: int) -> api.LoadDescription:
        return self.load_description

    async def set_offsets(
        self, group: str, offsets: Mapping[TopicPartition, api.NewOffset | None], *, force: bool
    ) -> int:
        self.offsets_set.append((group, dict(offsets), force))
        return len(offsets)


class FakeOffsets:
    """Commits everything but what the test says, and finds what the test says."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, str, str, tuple[api.OffsetCommit, ...]]] = []
        self.refused: list[api.RefusedCommit] = []
        self.asked: list[tuple[str, api.WantedOffsets]] = []
        self.found = api.FoundOffsets(())

    async def commit(
        self, group: str, name: str, session: str, commits: Sequence[api.OffsetCommit], *, principal: str = ""
    ) -> list[api.RefusedCommit]:
        self.commits.append((group, name, session, tuple(commits)))
        return self.refused

    async def fetch(self, group: str, wanted: api.WantedOffsets) -> api.FoundOffsets:
        self.asked.append((group, wanted))
        return self.found
