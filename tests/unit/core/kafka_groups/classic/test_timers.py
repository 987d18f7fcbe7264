"""What a classic group does when nothing happens: delays, deadlines and sessions, by a clock that the test moves."""

from __future__ import annotations

import pytest

from assigner.core.kafka_groups.classic.actions import Limits
from assigner.model.kafka_groups import ClassicState, KafkaError
from tests.support.core.classic_scene import ClassicScene, completing, forming, rebalancing, stable

EMPTY, PREPARING, COMPLETING, STABLE = (
    ClassicState.EMPTY,
    ClassicState.PREPARING_REBALANCE,
    ClassicState.COMPLETING_REBALANCE,
    ClassicState.STABLE,
)


class TestTheInitialDelay:
    def test_of_one_member_is_that_of_the_settings(self) -> None:
        scene = ClassicScene(Limits(initial_delay=3_000))
        scene.new_member()
        scene.wait(2.9)
        assert scene.group.state is PREPARING
        scene.wait(0.1)
        assert scene.group.state is COMPLETING

    def test_begins_again_with_each_new_member(self) -> None:
        scene = ClassicScene()
        first = scene.new_member()
        for _ in range(4):
            scene.wait(2)
            scene.new_member()
        assert scene.group.state is PREPARING
        scene.wait(6)

        assert scene.group.state is COMPLETING
        assert len(scene.group.describe().members) == 5
        assert scene.group.describe().leader == first

    def test_ends_at_the_rebalance_timeout_though_members_go_on_joining(self) -> None:
        scene = ClassicScene()
        for _ in range(9):
            scene.new_member(rebalance_timeout=8_000)
            assert scene.group.state is PREPARING
            scene.wait(0.9)

        assert scene.group.state is COMPLETING
        assert scene.now == pytest.approx(8.1)

    def test_is_not_shortened_by_everybody_having_joined(self) -> None:
        scene, (leader, _) = forming()
        scene.join(leader)
        assert scene.group.state is PREPARING

    def test_of_zero_means_at_once(self) -> None:
        scene = ClassicScene(Limits(initial_delay=0))
        scene.new_member()
        scene.wait(0)
        assert scene.group.state is COMPLETING

    def test_after_which_everybody_has_left_leaves_an_empty_group(self) -> None:
        scene, members = forming()
        scene.leave(*members)
        scene.wait(6)

        assert scene.group.state is EMPTY
        assert scene.group.is_forgettable

    def test_happens_only_while_nobody_is_a_member(self) -> None:
        scene, (leader, follower) = rebalancing()
        scene.join(leader)
        scene.join(follower)
        assert scene.group.state is COMPLETING


class TestTheJoinDeadline:
    def test_is_the_longest_rebalance_timeout(self) -> None:
        scene = ClassicScene()
        for timeout in (20_000, 40_000):
            scene.new_member(rebalance_timeout=timeout)
        scene.wait(6)
        leader, follower = (member.member_id for member in scene.group.describe().members)
        scene.sync_all(leader, follower)
        scene.rebalance()
        scene.join(leader)
        for _ in range(8):
            assert scene.group.state is PREPARING
            scene.wait(4.99)
            scene.heartbeat(follower, 1)
        scene.wait(0.1)

        assert scene.group.state is COMPLETING

    def test_leaves_out_dynamic_members_that_only_send_heartbeats(self) -> None:
        scene, (leader, follower) = rebalancing()
        number = scene.join(leader)
        for _ in range(12):
            assert scene.heartbeat(follower, 1) is KafkaError.REBALANCE_IN_PROGRESS
            scene.wait(5)

        assert [member.member_id for member in scene.joined(number).members] == [leader]
        assert scene.heartbeat(follower, 1) is KafkaError.UNKNOWN_MEMBER_ID

    def test_comes_to_nobody_who_waits_for_longer_than_its_session(self) -> None:
        scene, (leader, follower) = rebalancing()
        scene.join(leader)
        for _ in range(10):
            scene.wait(5)
            scene.heartbeat(follower, 1)

        assert {member.member_id for member in scene.group.describe().members} == {leader, follower}

    def test_with_nobody_left_empties_the_group(self) -> None:
        scene, _ = rebalancing()
        scene.wait(60)
        assert scene.group.state is EMPTY

    def test_is_no_longer_than_the_limit(self) -> None:
        scene, (leader, follower) = rebalancing(2, Limits(max_rebalance_timeout=30_000))
        scene.join(leader)
        for _ in range(6):
            scene.heartbeat(follower, 1)
            scene.wait(5)

        assert scene.group.state is COMPLETING


class TestASession:
    def test_ends_after_its_timeout_and_begins_a_rebalance(self) -> None:
        scene, (leader, follower) = stable()
        scene.wait(9.9)
        scene.heartbeat(leader)
        assert scene.group.state is STABLE
        scene.wait(0.2)

        assert scene.group.state is PREPARING
        assert scene.heartbeat(follower, 1) is KafkaError.UNKNOWN_MEMBER_ID
        assert scene.heartbeat(leader, 1) is KafkaError.REBALANCE_IN_PROGRESS

    @pytest.mark.parametrize("sign", ["heartbeat", "commit", "sync", "join"])
    def test_goes_on_with_every_sign_of_life(self, sign: str) -> None:
        scene, (leader, follower) = stable()
        for _ in range(3):
            scene.wait(8)
            scene.heartbeat(leader)
            match sign:
                case "heartbeat":
                    scene.heartbeat(follower)
                case "commit":
                    scene.commit(follower, 1)
                case "sync":
                    scene.sync(follower)
                case "join":
                    scene.join(follower)

        assert scene.group.state is STABLE

    def test_does_not_go_on_by_refused_requests(self) -> None:
        scene, (leader, follower) = stable()
        for _ in range(3):
            scene.wait(4)
            scene.heartbeat(leader)
            scene.heartbeat(follower, 99)
            scene.commit(follower, 99)
            scene.commit()

        assert scene.group.state is PREPARING

    def test_begins_with_the_answers_of_the_generation_and_of_the_assignment(self) -> None:
        scene, members = completing()
        scene.wait(9)
        scene.sync_all(*members)
        scene.wait(9)
        assert scene.group.state is STABLE
        scene.wait(2)
        assert len(scene.group.describe().members) == 0

    def test_of_a_new_member_that_waits_is_five_minutes(self) -> None:
        scene, (leader, _) = stable(2, session_timeout=1_800_000, rebalance_timeout=600_000)
        number = scene.join(scene.joined(scene.join(rebalance_timeout=600_000)).member_id, rebalance_timeout=600_000)
        scene.wait(299)
        assert scene.is_waiting(number)
        scene.wait(2)

        assert (scene.error(number), scene.joined(number).member_id) == (KafkaError.UNKNOWN_MEMBER_ID, "")
        assert scene.group.state is PREPARING
        assert scene.heartbeat(leader, 1) is KafkaError.REBALANCE_IN_PROGRESS

    def test_costs_one_timer_however_many_heartbeats_there_are(self) -> None:
        scene, (leader, follower) = stable()
        for _ in range(10_000):
            scene.heartbeat(leader)
            scene.heartbeat(follower)
        heap = scene.group._state.timers._heap

        assert len(heap) < 20


class TestTheSyncDeadline:
    def test_removes_a_leader_that_never_assigns(self) -> None:
        scene, (leader, follower) = completing()
        waiting = scene.sync(follower)
        for _ in range(12):
            assert scene.is_waiting(waiting)
            scene.heartbeat(leader)
            scene.wait(4.999)
        scene.wait(0.1)

        assert scene.error(waiting) is KafkaError.REBALANCE_IN_PROGRESS
        assert [member.member_id for member in scene.group.describe().members] == [follower]

    def test_removes_a_follower_that_never_asks(self) -> None:
        scene, (leader, follower) = completing()
        scene.sync(leader, assignments=((follower, b"p"),))
        for _ in range(13):
            scene.heartbeat(leader, 1)
            scene.heartbeat(follower, 1)
            scene.wait(5)

        assert scene.group.state is not STABLE
        assert scene.heartbeat(follower, 1) is KafkaError.UNKNOWN_MEMBER_ID

    def test_is_over_when_everybody_has_asked(self) -> None:
        scene, (leader, follower) = stable()
        for _ in range(20):
            scene.heartbeat(leader)
            scene.heartbeat(follower)
            scene.wait(5)

        assert scene.group.state is STABLE

    def test_with_nobody_left_empties_the_group(self) -> None:
        scene, members = completing()
        for _ in range(13):
            for member in members:
                scene.heartbeat(member)
            scene.wait(5)

        assert scene.group.state is EMPTY


class TestTheNextWakeUp:
    def test_is_none_for_an_empty_group(self) -> None:
        scene, members = stable()
        scene.leave(*members)
        scene.wait(100)

        assert scene.group.wake_at is None

    def test_is_never_in_the_past_after_a_tick(self) -> None:
        scene, _ = stable(5)
        while scene.group.wake_at is not None and scene.now < 300:
            scene.wait(1)
            assert (scene.group.wake_at or scene.now + 1) > scene.now
