"""Members of classic groups that act as Kafka's clients do: join, sync, heartbeats, commits, and what follows an error.

A member calls an instance's `ClassicGroups` directly. Which instance coordinates its group it finds out as a client
does: told that one is not the coordinator, it looks for another. Every callback that a consumer would get is noted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.abc

from assigner.api import ClassicGroups
from assigner.core.kafka_groups.classic.consumer_protocol import (
    ConsumerAssignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicFetch,
    ClassicOffset,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    KafkaError,
    LeaveAnswer,
    LeaveRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from assigner.testing.waiting import eventually

NONE = KafkaError.NONE
TRY_AGAIN = frozenset({KafkaError.COORDINATOR_LOAD_IN_PROGRESS})
REDISCOVER = frozenset({KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR})
PAUSE = 0.1
"""Seconds before a client tries again, as librdkafka's and Java's `retry.backoff.ms`."""
Protocols = tuple[tuple[str, bytes], ...]
Coordinators = Callable[[], Sequence[ClassicGroups]]


class ClassicMember:
    def __init__(
        self,
        name: str,
        coordinators: Coordinators,
        *,
        group: str = "g",
        org: str = "",
        partitions: int = 6,
        instance_id: str | None = None,
        session: float = 10.0,
        rebalance: float = 30.0,
        heartbeat: float = 1.0,
    ) -> None:
        """`coordinators`: the instances that it may ask. `partitions`: of the topic `t`. Times in seconds."""
        self.name = name
        self.group = group
        self.org = org
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: tuple[int, ...] = ()
        self.rebalances = 0
        """How often it was given an assignment."""
        self.lost = 0
        """How often it learned that it is no member any more."""
        self.led = 0
        """How often it was asked to assign."""
        self.metadata: Protocols = (("range", encode_subscription(Subscription(topics=("t",), version=0))),)
        """The protocols that it joins with."""
        self.errors: list[KafkaError] = []
        """All answers to heartbeats that were errors."""
        self.committed: dict[int, int] = {}
        """What was answered, by partition."""
        self._coordinators = coordinators
        self._partitions = partitions
        self._session = session
        self._rebalance = rebalance
        self._heartbeat = heartbeat
        self._asked = 0
        self._scope: anyio.CancelScope | None = None

    @property
    def is_stable(self) -> bool:
        return self.generation >= 0

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(self.run, name=f"classic member {self.name}")

    async def run(self) -> None:
        with anyio.CancelScope() as self._scope:
            while True:
                await self.join()
                await self._keep_alive()

    def stop(self) -> None:
        """As if the process was killed."""
        assert self._scope is not None
        self._scope.cancel()

    async def leave(self) -> KafkaError:
        self.stop()
        leaving = LeavingMember(self.member_id, self.instance_id)
        answer: LeaveAnswer = await self._call("leave", LeaveRequest(group=self.group, members=(leaving,)))
        return answer.error or answer.members[0].error

    # --- the protocol ----------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Join until there is an assignment."""
        while True:
            self.generation = -1
            joined: JoinAnswer = await self._call("join", self.join_request())
            match joined.error:
                case KafkaError.NONE:
                    self.member_id = joined.member_id
                    if await self._synced(joined):
                        return
                case KafkaError.MEMBER_ID_REQUIRED:
                    self.member_id = joined.member_id
                case KafkaError.UNKNOWN_MEMBER_ID:
                    self.member_id = ""
                case KafkaError.REBALANCE_IN_PROGRESS:
                    await anyio.sleep(PAUSE)
                case error:
                    raise AssertionError(f"{self.name} can't join: {error!r}")

    def join_request(self) -> JoinRequest:
        return JoinRequest(
            group=self.group,
            session_timeout=round(self._session * 1000),
            rebalance_timeout=round(self._rebalance * 1000),
            protocol_type="consumer",
            protocols=self.metadata,
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
        )

    async def _synced(self, joined: JoinAnswer) -> bool:
        assignments: tuple[tuple[str, bytes], ...] = ()
        if joined.leader == joined.member_id and not joined.skip_assignment:
            self.led += 1
            assignments = self._assign([one.member_id for one in joined.members])
        request = SyncRequest(
            group=self.group,
            member_id=self.member_id,
            generation=joined.generation,
            instance_id=self.instance_id,
            assignments=assignments,
        )
        synced: SyncAnswer = await self._call("sync", request)
        match synced.error:
            case KafkaError.NONE:
                self.generation = joined.generation
                partitions = decode_assignment(synced.assignment).partitions if synced.assignment else ()
                owned = tuple(sorted(number for _, numbers in partitions for number in numbers))
                self.rebalances += 1
                self.owned = owned
                return True
            case KafkaError.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        return False

    def _assign(self, members: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
        ordered = sorted(members)
        return tuple(
            (
                member,
                encode_assignment(
                    ConsumerAssignment(
                        partitions=(("t", tuple(range(number, self._partitions, len(ordered)))),), version=0
                    )
                ),
            )
            for number, member in enumerate(ordered)
        )

    async def _keep_alive(self) -> None:
        while True:
            await anyio.sleep(self._heartbeat)
            error = await self.heartbeat()
            if error is KafkaError.NONE:
                continue
            self.errors.append(error)
            if error in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION):
                self.lost += 1
                self.member_id = "" if error is KafkaError.UNKNOWN_MEMBER_ID else self.member_id
            elif error is not KafkaError.REBALANCE_IN_PROGRESS:
                raise AssertionError(f"{self.name} got {error!r} for a heartbeat, which ends a client")
            return

    async def heartbeat(self) -> KafkaError:
        request = HeartbeatRequest(
            group=self.group, member_id=self.member_id, generation=self.generation, instance_id=self.instance_id
        )
        answer: HeartbeatAnswer = await self._call("heartbeat", request)
        return answer.error

    # --- offsets ---------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[int, int]) -> dict[int, KafkaError]:
        """Commit offsets by partition, as often as an error says that it helps."""
        commit = self.commit_request(offsets)
        while True:
            answer = await self._call("commit", commit)
            errors = {one.partition: one.error for one in answer.partitions}
            if not set(errors.values()) & (TRY_AGAIN | REDISCOVER):
                self.committed.update((number, offsets[number]) for number, error in errors.items() if not error)
                return errors
            self._look_elsewhere(set(errors.values()) & REDISCOVER)
            await anyio.sleep(PAUSE)

    def commit_request(self, offsets: Mapping[int, int]) -> ClassicCommit:
        return ClassicCommit(
            group=self.group,
            offsets=tuple(ClassicOffset(topic="t", partition=number, offset=at) for number, at in offsets.items()),
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=self.generation,
        )

    async def fetch(self) -> dict[int, int]:
        """The group's committed offsets by partition."""
        answer = await self._call("fetch", ClassicFetch(group=self.group, every=True))
        return {one.partition: one.offset for one in answer.offsets}

    # --- finding the coordinator ------------------------------------------------------------------------------------

    async def _call(self, what: str, request: Any) -> Any:
        """Make a call at the coordinator, wherever it is by now."""
        while True:
            known = self._coordinators()
            if known:
                answer = await self._ask(known[self._asked % len(known)], what, request)
                error = getattr(answer, "error", NONE)
                assert what != "heartbeat" or error not in TRY_AGAIN, f"{self.name} got {error!r} for a heartbeat"
                if answer is not None and error not in TRY_AGAIN | REDISCOVER:
                    return answer
                self._look_elsewhere({error} & REDISCOVER)
            await anyio.sleep(PAUSE)

    async def _ask(self, coordinator: ClassicGroups, what: str, request: Any) -> Any:
        """Make one call, until it is answered or its instance is gone, as when a connection breaks: then None."""
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await getattr(coordinator, what)(self.org, request))
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await eventually(lambda: coordinator not in self._coordinators(), within=math.inf, every=PAUSE)
            tasks.cancel_scope.cancel()
        return answers[0] if answers else None

    def _look_elsewhere(self, because: set[KafkaError]) -> None:
        self._asked += bool(because)
