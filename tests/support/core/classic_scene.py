"""A classic group on a stage: its machine, a clock that a test moves, a store that a test may hold up or break, and
every answer that was given."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from assigner.core.kafka_groups.classic.actions import Actions, Assign, Event, Limits, Write
from assigner.core.kafka_groups.classic.consumer_protocol import Subscription, encode_subscription
from assigner.core.kafka_groups.classic.machine import ClassicGroup
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicGroupRecord,
    ClassicOffset,
    ClassicState,
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

GROUP = "billing"
RANGE = encode_subscription(Subscription(topics=("orders",), version=0))
Protocols = tuple[tuple[str, bytes], ...]


class ClassicScene:
    """Writes succeed at once, unless `holds_writes`. Times are seconds."""

    def __init__(
        self,
        limits: Limits | None = None,
        record: ClassicGroupRecord | None = None,
        now: float = 0.0,
        term: int = 0,
    ) -> None:
        self.limits = limits or Limits()
        self.now = now
        self.holds_writes = False
        self.stored = record
        self.write: Write | None = None
        """The one under way."""
        self.writes = 0
        self.events: list[Event] = []
        self.assign: Assign | None = None
        self.answers: dict[int, JoinAnswer | SyncAnswer] = {}
        self._term = term
        """Makes member ids unique beyond a change of leader."""
        self._numbers = count(1)
        self._asked = 0
        if record is None:
            self.group = ClassicGroup(GROUP, self.limits)
        else:
            self.group, actions = ClassicGroup.load(GROUP, record, self.limits, now)
            self._carry_out(actions)

    def reloaded(self, limits: Limits | None = None) -> ClassicScene:
        """The group at its next leader, by what is stored."""
        return ClassicScene(limits or self.limits, self.stored, self.now, self._term + 1)

    def _carry_out(self, actions: Actions) -> None:
        for reply in actions.replies:
            assert reply.waiter not in self.answers, "answered twice"
            self.answers[reply.waiter] = reply.answer
        self.events += actions.events
        self.assign = actions.assign or self.assign
        if actions.write is not None:
            assert self.write is None, "a second write while one is under way"
            self.write = actions.write
            self.writes += 1
            if not self.holds_writes:
                self.let_write()

    # --- the store -------------------------------------------------------------------------------------------------

    def let_write(self) -> None:
        write, self.write = self.write, None
        assert write is not None
        self.stored = write.record
        self._carry_out(self.group.written(write.number, self.now))

    def fail_write(self, error: KafkaError = KafkaError.COORDINATOR_NOT_AVAILABLE) -> None:
        write, self.write = self.write, None
        assert write is not None
        self._carry_out(self.group.failed(write.number, error, self.now))

    # --- requests --------------------------------------------------------------------------------------------------

    def request(self, member_id: str = "", **changes: Any) -> JoinRequest:
        usual = JoinRequest(
            group=GROUP,
            member_id=member_id,
            session_timeout=10_000,
            rebalance_timeout=60_000,
            protocol_type="consumer",
            protocols=(("range", RANGE),),
            client_id="app",
            client_host="10.0.0.1",
        )
        return msgspec.structs.replace(usual, **changes)

    def join(self, member_id: str = "", **changes: Any) -> int:
        number = self._asked = next(self._numbers)
        request = self.request(member_id, **changes)
        self._carry_out(self.group.join(number, request, f"{self._term * 10_000 + number:04}", self.now))
        return number

    def sync(self, member_id: str, generation: int | None = None, **changes: Any) -> int:
        number = self._asked = next(self._numbers)
        usual = SyncRequest(
            group=GROUP,
            member_id=member_id,
            generation=self.group.generation if generation is None else generation,
        )
        request = msgspec.structs.replace(usual, **changes)
        self._carry_out(self.group.sync(number, request, self.now))
        return number

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> KafkaError:
        generation = self.group.generation if generation is None else generation
        request = HeartbeatRequest(group=GROUP, member_id=member_id, generation=generation, instance_id=instance_id)
        return self.group.heartbeat(request, self.now).error

    def leave(self, *members: LeavingMember | str) -> LeaveAnswer:
        leaving = tuple(LeavingMember(one) if isinstance(one, str) else one for one in members)
        answer, actions = self.group.leave(LeaveRequest(group=GROUP, members=leaving), self.now)
        self._carry_out(actions)
        return answer

    def commit(self, member_id: str = "", generation: int = -1, instance_id: str | None = None) -> KafkaError:
        offsets = (ClassicOffset(topic="orders", partition=0, offset=7),)
        commit = ClassicCommit(
            group=GROUP, offsets=offsets, member_id=member_id, generation=generation, instance_id=instance_id
        )
        return self.group.check_commit(commit, self.now)

    def rebalance(self, reason: str = "the topics changed") -> None:
        self._carry_out(self.group.rebalance(reason, self.now))

    def assigned(self, generation: int, assignments: dict[str, bytes], *, follow_up: bool = False) -> None:
        self._carry_out(self.group.assigned(generation, assignments, follow_up=follow_up))

    def not_assigned(self, generation: int) -> None:
        self._carry_out(self.group.not_assigned(generation, self.now))

    def unload(self) -> None:
        self._carry_out(self.group.unload())

    # --- time ------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let the time pass, waking the group when it wants to be."""
        end = self.now + seconds
        for _ in range(10_000):
            at = self.group.wake_at
            if at is None or at > end:
                self.now = end
                return
            self.now = max(self.now, at)
            self._carry_out(self.group.tick(self.now))
        raise AssertionError("the group wants to be woken again and again at the same time")

    # --- answers ---------------------------------------------------------------------------------------------------

    @property
    def unanswered(self) -> list[int]:
        """All requests that still wait."""
        return [number for number in range(1, self._asked + 1) if number not in self.answers]

    def is_waiting(self, *numbers: int) -> bool:
        return not any(number in self.answers for number in numbers)

    def joined(self, number: int) -> JoinAnswer:
        answer = self.answers[number]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, number: int) -> SyncAnswer:
        answer = self.answers[number]
        assert isinstance(answer, SyncAnswer)
        return answer

    def error(self, number: int) -> KafkaError:
        return self.answers[number].error

    # --- whole courses ---------------------------------------------------------------------------------------------

    def new_member(self, **changes: Any) -> str:
        """Get an id for a dynamic member and join with it."""
        member_id = self.joined(self.join(**changes)).member_id
        self.join(member_id, **changes)
        return member_id

    def new_static(self, instance_id: str, **changes: Any) -> int:
        return self.join(instance_id=instance_id, requires_known_member=False, **changes)

    def sync_all(self, leader: str, *followers: str) -> list[int]:
        """Let the leader assign everybody its own name, and everybody ask for it."""
        members = (leader, *followers)
        assignments = tuple((name, name.encode()) for name in members)
        numbers = [self.sync(name) for name in followers]
        return [self.sync(leader, assignments=assignments), *numbers]


def forming(count_: int = 2, limits: Limits | None = None, **changes: Any) -> tuple[ClassicScene, list[str]]:
    """A group whose first members have joined and whose initial delay is not over. Returns their ids, the leader's
    first."""
    scene = ClassicScene(limits)
    members = [scene.new_member(**changes) for _ in range(count_)]
    assert scene.group.state is ClassicState.PREPARING_REBALANCE
    return scene, members


def completing(count_: int = 2, limits: Limits | None = None, **changes: Any) -> tuple[ClassicScene, list[str]]:
    """A group whose first generation has begun, and whose leader has not assigned yet."""
    scene, members = forming(count_, limits, **changes)
    scene.wait(scene.limits.initial_delay / 1000 * 2)
    assert scene.group.state is ClassicState.COMPLETING_REBALANCE
    return scene, members


def stable(count_: int = 2, limits: Limits | None = None, **changes: Any) -> tuple[ClassicScene, list[str]]:
    """A group in its first generation. Each member is assigned its own name."""
    scene, members = completing(count_, limits, **changes)
    scene.sync_all(*members)
    assert scene.group.state is ClassicState.STABLE
    return scene, members


def rebalancing(count_: int = 2, limits: Limits | None = None, **changes: Any) -> tuple[ClassicScene, list[str]]:
    """A group in the rebalance after its first generation, in which nobody has joined again yet."""
    scene, members = stable(count_, limits, **changes)
    scene.rebalance()
    assert scene.group.state is ClassicState.PREPARING_REBALANCE
    return scene, members


def empty() -> ClassicScene:
    """A group whose only member has left."""
    scene, members = stable(1)
    scene.leave(*members)
    assert scene.group.state is ClassicState.EMPTY
    return scene
