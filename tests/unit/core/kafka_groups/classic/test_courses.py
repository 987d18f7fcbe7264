"""Random courses of a classic group: members come, go, freeze and thaw, writes fail, leaders change.

Whatever happens, a generation is one, nobody is told what was not written, no partition has two members, and whoever
waits is answered. When everything works again, everybody who is there ends up in one stable generation.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from assigner.core.kafka_groups.classic.actions import GenerationBegan, Limits
from assigner.core.kafka_groups.classic.server_assignor import assignment_of, problem_of
from assigner.model.kafka_groups import ClassicState, JoinAnswer, KafkaError, SyncAnswer
from assigner.model.records import GroupOptions, TopicConfig
from assigner.strategy.registry import load
from tests.support.core.classic_clients import PARTITIONS, TOPIC, ClassicClient, Next, partitions_of
from tests.support.core.classic_scene import ClassicScene

CLIENTS = st.integers(0, 9)
MOST = 5
LIMITS = Limits(initial_delay=1_000, max_members=MOST)
CONFIG = TopicConfig(topic=TOPIC, partition_count=PARTITIONS)


class Courses(RuleBasedStateMachine):
    server_assigns = False
    cooperative = False

    @initialize()
    def begin(self) -> None:
        self.scene = ClassicScene(msgspec.structs.replace(LIMITS, server_assigns=self.server_assigns))
        self.scene.holds_writes = True
        self.clients: list[ClassicClient] = []
        self.frozen: set[ClassicClient] = set()
        self.written: dict[int, dict[str, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        """By generation and member id: what it was assigned."""
        self.requests: dict[int, tuple[int, str]] = {}
        """SyncGroups that wait: their generation and member id."""
        self.checked = 0
        """Answers that were looked at."""
        self.leaders: dict[int, tuple[str, str | None]] = {}
        """By generation that was told: its leader and its protocol."""
        self.latest = 0
        self.names = 0

    # --- clients ---------------------------------------------------------------------------------------------------

    @rule(instance=st.sampled_from([None, None, "i1", "i2"]), version=st.sampled_from([3, 5, 9]))
    def starts(self, instance: str | None, version: int) -> None:
        if len(self.clients) < 10:
            self.names += 1
            self.clients.append(
                ClassicClient(f"c{self.names}", instance, cooperative=self.cooperative, version=version)
            )

    @rule(who=CLIENTS, steps=st.integers(1, 4))
    def works(self, who: int, steps: int) -> None:
        if who < len(self.clients) and self.clients[who] not in self.frozen:
            for _ in range(steps):
                self.step(self.clients[who])

    @rule(rounds=st.integers(1, 4))
    def all_work(self, rounds: int) -> None:
        for _ in range(rounds):
            for client in self.clients:
                if client not in self.frozen:
                    self.step(client)
                    self.compute()

    def step(self, client: ClassicClient) -> None:
        before = client.waiter
        client.step(self.scene)
        if client.waiter is not None and client.waiter != before and client.next is Next.SYNC:
            self.requests[client.waiter] = (client.generation, client.member_id)
        self.look()

    @rule(who=CLIENTS)
    def freezes_or_thaws(self, who: int) -> None:
        if who < len(self.clients):
            self.frozen ^= {self.clients[who]}

    @rule(who=CLIENTS)
    def crashes(self, who: int) -> None:
        if who < len(self.clients):
            self.frozen.discard(self.clients.pop(who))

    @rule(who=CLIENTS)
    def leaves(self, who: int) -> None:
        if who < len(self.clients) and self.clients[who].instance_id is None:
            client = self.clients.pop(who)
            self.frozen.discard(client)
            self.scene.leave(client.member_id or "nobody")

    @rule(who=CLIENTS)
    def subscribes_to_more(self, who: int) -> None:
        if who < len(self.clients):
            client = self.clients[who]
            client.eagerness += 1
            if client.next is Next.HEARTBEAT:
                client.next = Next.JOIN

    @rule(who=CLIENTS, generations=st.integers(-2, 2), again=st.booleans())
    def commits(self, who: int, generations: int, again: bool) -> None:
        if who >= len(self.clients):
            return
        client, group = self.clients[who], self.scene.group
        generation = client.generation + (generations if again else 0)
        error = self.scene.commit(client.member_id, generation, client.instance_id)
        members = {member.member_id for member in group.describe().members}
        is_member = client.member_id in members and generation == group.generation
        is_nobody = generation < 0 and group.state is ClassicState.EMPTY
        assert error or is_member or is_nobody

    @rule(who=CLIENTS)
    def repeats_its_request(self, who: int) -> None:
        """The connection was lost, and the client asks again over another one."""
        if who < len(self.clients):
            self.clients[who].waiter = None

    # --- the store, the leader, the time ---------------------------------------------------------------------------

    @precondition(lambda self: self.scene.write is not None)
    @rule()
    def is_written(self) -> None:
        assert self.scene.write is not None
        for member in self.scene.write.record.members:
            self.written[self.scene.write.record.generation][member.member_id].add(member.assignment)
        self.scene.let_write()
        self.look()

    @precondition(lambda self: self.scene.write is not None)
    @rule(error=st.sampled_from([KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.UNKNOWN_SERVER_ERROR]))
    def is_not_written(self, error: KafkaError) -> None:
        self.scene.fail_write(error)
        self.look()

    @precondition(lambda self: self.scene.assign is not None)
    @rule()
    def is_not_assigned(self) -> None:
        assert self.scene.assign is not None
        generation, self.scene.assign = self.scene.assign.generation, None
        self.scene.not_assigned(generation)

    @precondition(lambda self: self.scene.assign is not None)
    @rule()
    def is_assigned(self) -> None:
        self.compute()

    def compute(self) -> None:
        task, self.scene.assign = self.scene.assign, None
        if task is not None:
            server = problem_of(task, (CONFIG,), GroupOptions())
            result = assignment_of(server, load(server.strategy).assign(server.problem))
            self.scene.assigned(task.generation, result.assignments, follow_up=result.follow_up)

    @rule(written=st.booleans())
    def leader_changes(self, written: bool) -> None:
        """The next leader finds the write that was under way done or not."""
        old = self.scene
        write, old.write = old.write, None
        old.unload()
        assert old.unanswered == []
        if write is not None and written:
            old.stored = write.record
            for member in write.record.members:
                self.written[write.record.generation][member.member_id].add(member.assignment)
        self.look()
        for client in self.clients:
            if client.waiter is not None and client not in self.frozen:
                client.step(old)
            client.waiter = None
        self.scene = old.reloaded()
        self.scene.holds_writes = True
        self.requests, self.checked = {}, 0

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 9.0, 11.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.scene.wait(seconds)
        self.look()

    @rule()
    def topics_change(self) -> None:
        self.scene.rebalance()
        self.look()

    # --- what holds ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Check what was answered since."""
        for event in self.scene.events:
            if isinstance(event, GenerationBegan):
                assert event.generation > self.latest, "a generation is told twice"
                self.latest = event.generation
        self.scene.events.clear()
        for number, answer in list(self.scene.answers.items())[self.checked :]:
            if not answer.error:
                self.check(number, answer)
        self.checked = len(self.scene.answers)

    def check(self, number: int, answer: JoinAnswer | SyncAnswer) -> None:
        if isinstance(answer, JoinAnswer):
            assert answer.generation <= self.latest or answer.generation in self.written
            assert self.scene.stored is not None
            assert answer.generation <= self.scene.stored.reserved
            protocol = self.leaders.setdefault(answer.generation, (answer.leader, answer.protocol))[1]
            assert protocol == answer.protocol
            return
        generation, member_id = self.requests[number]
        assert answer.assignment in self.written[generation][member_id], "told before it was written"
        self.check_owners(member_id, partitions_of(answer.assignment))

    def check_owners(self, member_id: str, given: frozenset[int]) -> None:
        """Nobody who is a member now and works on a partition shares it with the one that it was given to."""
        if not (self.server_assigns and self.cooperative):
            return
        members = {member.member_id for member in self.scene.group.describe().members}
        for client in self.clients:
            if client.member_id in members and client.member_id != member_id:
                assert not client.owned & given, "a partition is given to one while another works on it"

    @invariant()
    def no_partition_is_assigned_to_two(self) -> None:
        stored = self.scene.stored
        if stored is not None:
            given = [number for member in stored.members for number in partitions_of(member.assignment)]
            assert len(given) == len(set(given))

    @invariant()
    def the_record_only_goes_forward(self) -> None:
        stored = self.scene.stored
        assert stored is None or stored.generation <= stored.reserved

    @invariant()
    def memory_is_bounded(self) -> None:
        state = self.scene.group._state
        # While a rebalance is on, those who have not joined yet count beside those who have.
        assert len(state.members) <= 2 * MOST
        assert len(state.pending) <= MOST
        assert len(state.timers._heap) < 500
        assert len(state.static_joins) <= MOST

    def teardown(self) -> None:
        """Everything works again: everybody is answered, and all who fit in form one stable generation."""
        scene = self.scene
        self.clients = [client for client in self.clients if client.next is not Next.NOTHING]
        for _ in range(600):
            for client in self.clients:
                self.step(client)
            self.compute()
            while scene.write is not None:
                self.is_written()
            scene.wait(1)
            self.clients = [client for client in self.clients if client.next is not Next.NOTHING]
            if self.is_settled():
                break
        assert self.is_settled(), scene.group.describe()
        assert scene.unanswered == [], "somebody waits for ever"

    def is_settled(self) -> bool:
        group = self.scene.group.describe()
        working = [client for client in self.clients if client.next is Next.HEARTBEAT]
        members = {client.member_id for client in working}
        if not self.clients:
            return self.scene.group.state is ClassicState.EMPTY
        owned = [number for client in working for number in client.owned]
        return (
            group.state is ClassicState.STABLE
            and members == {member.member_id for member in group.members}
            and len(members) == min(len(self.clients), MOST)
            and sorted(owned) == list(range(PARTITIONS))
            and all(client.generation == group.generation for client in working)
        )


class CoursesAssignedByTheService(Courses):
    server_assigns = True


class CoursesOfCooperativeMembers(Courses):
    server_assigns = True
    cooperative = True


for course in (Courses, CoursesAssignedByTheService, CoursesOfCooperativeMembers):
    course.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestCourses = Courses.TestCase
TestCoursesAssignedByTheService = CoursesAssignedByTheService.TestCase
TestCoursesOfCooperativeMembers = CoursesOfCooperativeMembers.TestCase
