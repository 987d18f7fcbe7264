"""Whatever the stores of three instances do: at most one term per group is held, and every group is led afterwards.

Each seed is one course of faults in virtual time: connections freeze and thaw, refuse, lose answers, break watches.
No instance may believe to lead what another one leads; when the faults are over, no group stays without a leader.
"""

from __future__ import annotations

from random import Random

import anyio
import pytest

from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import LoopClock
from assigner.core.leader_spread import SpreadSettings
from assigner.election import Term
from assigner.leader.leadership import Leadership, LeadershipSettings
from assigner.model.keys import Keys
from assigner.storage.groups import make_known
from assigner.store import Committed, Put
from assigner.testing.faults import Delay, LoseAnswer, Refuse
from assigner.testing.virtual_time import run
from assigner.testing.waiting import eventually
from tests.support.election_cluster import ElectionCluster, Voter

GROUPS = [f"group-{number}" for number in range(6)]
FAULTY_SECONDS = 200
SETTINGS = LeadershipSettings(spread=SpreadSettings(settle=3.0, batch=2, pause=0.5, handover_backoff=5.0))


class Course:
    def __init__(self, cluster: ElectionCluster, random: Random) -> None:
        self.cluster = cluster
        self.random = random
        self.terms: list[Term] = []
        self.newest: dict[str, int] = {}
        self.stale_writes = 0

    async def lead(self, term: Term, _: str) -> None:
        """A leader that writes all the time, and trusts nothing but its fence."""
        assert term.revision > self.newest.get(term.group, 0), "a term began that is not newer than the last"
        self.newest[term.group] = term.revision
        self.terms.append(term)
        while True:
            await self._write(term)
            await anyio.sleep(self.random.uniform(0.1, 2.0))

    async def _write(self, term: Term) -> None:
        put = Put(self.cluster.keys.group(term.group).plan, str(term.revision).encode())
        result = await self.cluster.store.transact([term.fence], [put])
        if isinstance(result, Committed):
            assert term.revision == self.newest[term.group], "a write of a superseded term was taken"
        else:
            self.stale_writes += 1

    async def disturb(self, voters: list[Voter]) -> None:
        voter = self.random.choice(voters)
        match self.random.randrange(7):
            case 0 | 1:
                voter.store.freeze()
            case 2:
                voter.store.heal()
            case 3:
                voter.store.end_watches()
            case 4:
                voter.store.inject(Refuse(), times=self.random.randrange(1, 30))
            case 5:
                voter.store.inject(LoseAnswer(applied=self.random.random() < 0.5), times=self.random.randrange(1, 6))
            case 6:
                voter.store.inject(Delay(self.random.uniform(0.1, 6.0)), times=self.random.randrange(1, 10))
        await anyio.sleep(self.random.uniform(0.1, 4.0))

    def check_single(self) -> None:
        held = [term.group for term in self.terms if term.held()]
        assert len(held) == len(set(held)), f"led twice at the same time: {sorted(held)}"

    async def watch_over(self) -> None:
        while True:
            self.check_single()
            await anyio.sleep(0.05)


async def one_course(seed: int) -> int:
    state = MemoryState()
    async with ElectionCluster(lambda: MemoryStore(state), Keys(), 9.0) as cluster:
        course = Course(cluster, Random(seed))
        for group in GROUPS:
            await make_known(cluster.store, cluster.keys, group)
        voters = [await cluster.voter(f"assigner-{number}") for number in range(3)]
        crew = [
            Leadership(voter.store, cluster.keys, voter.elector, voter.presence, LoopClock(), course.lead, SETTINGS)
            for voter in voters
        ]
        async with anyio.create_task_group() as tasks:
            for leadership in crew:
                tasks.start_soon(leadership.run)
            tasks.start_soon(course.watch_over)
            end = cluster.clock.now() + FAULTY_SECONDS
            while cluster.clock.now() < end:
                await course.disturb(voters)
            for voter in voters:
                voter.store.heal()
            await eventually(
                lambda: (
                    sorted(group for leadership in crew for group in leadership.led) == sorted(GROUPS)
                    and all(term.held() for leadership in crew for term in leadership.led.values())
                ),
                within=60,
                what="every group is led once",
            )
            await eventually(
                lambda: all(leadership.statistics().misplaced == 0 for leadership in crew), within=120, every=0.5
            )
            # A failed assertion in a leader's work shows as a crash of that work.
            assert [leadership.statistics().crashes for leadership in crew] == [0, 0, 0]
            for leadership in crew:
                await leadership.stop()
            tasks.cancel_scope.cancel()
        return len(course.terms)


@pytest.mark.parametrize("seed", range(12))
def test_no_course_of_faults_makes_two_leaders_or_leaves_a_group_without_one(seed: int) -> None:
    terms = run(lambda: one_course(seed))
    assert terms > 2 * len(GROUPS), "too little happened for the course to mean anything"


def test_a_course_is_the_same_each_time() -> None:
    assert run(lambda: one_course(5)) == run(lambda: one_course(5))
