"""Static members: a process that comes again under its instance id, in each state of the group, and who is fenced."""

from __future__ import annotations

import pytest

from assigner.core.kafka_groups.classic.actions import MemberReplaced
from assigner.model.kafka_groups import ClassicState, KafkaError, LeavingMember
from tests.support.core.classic_scene import RANGE, ClassicScene

STABLE, PREPARING = ClassicState.STABLE, ClassicState.PREPARING_REBALANCE
BOTH = (("range", RANGE), ("sticky", RANGE))


def formed(*, both: bool = False) -> tuple[ClassicScene, str, str]:
    """A stable group of two static members, `one` (the leader) and `two`, each assigned its member id."""
    scene = ClassicScene()
    protocols = BOTH if both else BOTH[:1]
    numbers = [scene.new_static(name, protocols=protocols) for name in ("one", "two")]
    scene.wait(6)
    leader, follower = (scene.joined(number).member_id for number in numbers)
    scene.sync_all(leader, follower)
    assert scene.group.state is STABLE
    return scene, leader, follower


class TestTheFirstProcess:
    def test_needs_no_id_to_join(self) -> None:
        scene = ClassicScene()
        number = scene.join(instance_id="one")
        scene.wait(3)

        assert scene.joined(number).member_id == "one-0001"
        assert scene.joined(number).members[0].instance_id == "one"

    def test_joins_again_by_its_id(self) -> None:
        scene, _, follower = formed()

        assert scene.joined(scene.join(follower, instance_id="two")).generation == 1


class TestTheNextProcess:
    def test_of_a_follower_takes_over_its_assignment_without_a_rebalance(self) -> None:
        scene, leader, follower = formed()
        answer = scene.joined(scene.new_static("two"))

        assert (answer.generation, answer.leader, answer.members, answer.skip_assignment) == (1, leader, (), False)
        assert answer.member_id not in ("", follower)
        assert scene.group.state is STABLE
        assert scene.synced(scene.sync(answer.member_id)).assignment == follower.encode()
        assert MemberReplaced("two", follower, answer.member_id) in scene.events

    def test_of_a_leader_is_told_not_to_assign(self) -> None:
        scene, leader, follower = formed()
        answer = scene.joined(scene.new_static("one"))

        assert answer.skip_assignment
        assert answer.leader == answer.member_id
        assert [member.member_id for member in answer.members] == [answer.member_id, follower]
        assert scene.synced(scene.sync(answer.member_id)).assignment == leader.encode()

    def test_of_a_leader_that_can_not_be_told_so_is_named_the_old_leader(self) -> None:
        scene, leader, _ = formed()
        answer = scene.joined(scene.new_static("one", can_skip_assignment=False))

        assert (answer.leader, answer.members, answer.skip_assignment) == (leader, (), False)
        # To the others it is the leader: its joining again means a rebalance.
        assert scene.is_waiting(scene.join(answer.member_id, instance_id="one"))

    def test_is_answered_when_its_id_is_written(self) -> None:
        scene, _, _ = formed()
        scene.holds_writes = True
        number = scene.new_static("two")
        assert scene.is_waiting(number)
        scene.wait(9)
        assert scene.is_waiting(number)

        scene.let_write()

        assert scene.joined(number).member_id in {
            member.member_id for member in scene.reloaded().group.describe().members
        }

    def test_keeps_the_old_one_if_that_can_not_be_written(self) -> None:
        scene, leader, _ = formed()
        scene.holds_writes = True
        number = scene.new_static("one", session_timeout=20_000, protocols=(("range", b"new"),))

        scene.fail_write(KafkaError.NOT_COORDINATOR)

        assert (scene.error(number), scene.joined(number).member_id) == (KafkaError.NOT_COORDINATOR, "")
        assert scene.heartbeat(leader, instance_id="one") is KafkaError.NONE
        description = scene.group.describe()
        assert (description.leader, description.members[0].metadata) == (leader, RANGE)
        assert scene.reloaded().group.describe() == description

    def test_of_many_members_at_once_costs_two_writes(self) -> None:
        scene = ClassicScene()
        numbers = [scene.new_static(f"i{n}") for n in range(20)]
        scene.wait(6)
        members = [scene.joined(number).member_id for number in numbers]
        scene.sync_all(*members)
        scene.holds_writes, before = True, scene.writes

        numbers = [scene.new_static(f"i{n}") for n in range(20)]
        scene.let_write()
        assert not scene.is_waiting(numbers[0])
        assert scene.is_waiting(*numbers[1:])
        scene.let_write()

        assert scene.writes == before + 2
        assert {scene.joined(number).generation for number in numbers} == {1}

    def test_begins_a_rebalance_if_the_group_would_elect_another_protocol(self) -> None:
        scene, _, _ = formed(both=True)
        assert scene.is_waiting(scene.new_static("two", protocols=BOTH[1:]))
        assert scene.group.state is PREPARING

    def test_does_not_if_only_its_subscription_is_another(self) -> None:
        scene, _, _ = formed()
        number = scene.new_static("two", protocols=(("range", b"another"),))

        assert scene.joined(number).generation == 1
        assert scene.group.describe().members[1].metadata == b"another"

    def test_begins_a_rebalance_while_the_leader_assigns(self) -> None:
        scene, leader, follower = formed()
        scene.rebalance()
        for name, instance in ((leader, "one"), (follower, "two")):
            scene.join(name, instance_id=instance)
        assert scene.group.state is ClassicState.COMPLETING_REBALANCE
        scene.holds_writes = True
        parked = scene.sync(leader, instance_id="one", assignments=((follower, b"for the old id"),))

        number = scene.new_static("two")
        scene.let_write()

        assert scene.error(parked) is KafkaError.REBALANCE_IN_PROGRESS
        assert scene.is_waiting(number)
        assert scene.group.state is PREPARING

    def test_joins_a_rebalance_that_is_on(self) -> None:
        scene, leader, _ = formed()
        scene.rebalance()
        first = scene.join(leader, instance_id="one")
        second = scene.new_static("two")

        assert {scene.joined(number).generation for number in (first, second)} == {2}
        assert scene.joined(second).leader == leader

    def test_waits_for_the_rebalance_that_begins_before_its_id_is_written(self) -> None:
        scene, leader, _ = formed()
        scene.holds_writes = True
        number = scene.new_static("two")
        again = scene.join(leader, instance_id="one")
        scene.let_write()

        assert {scene.joined(one).generation for one in (number, again)} == {2}

    def test_twice_in_a_row_fences_the_first(self) -> None:
        scene, _, _ = formed()
        scene.holds_writes = True
        first, second = scene.new_static("two"), scene.new_static("two")
        assert scene.error(first) is KafkaError.FENCED_INSTANCE_ID
        scene.let_write()
        assert scene.is_waiting(second)
        scene.let_write()

        assert scene.joined(second).generation == 1
        assert scene.joined(second).member_id != scene.joined(first).member_id


class TestTheOldProcess:
    @pytest.mark.parametrize("request_", ["join", "sync", "heartbeat", "commit", "leave"])
    def test_is_fenced_in_every_request(self, request_: str) -> None:
        scene, _, old = formed()
        scene.new_static("two")

        error = {
            "join": lambda: scene.error(scene.join(old, instance_id="two")),
            "sync": lambda: scene.error(scene.sync(old, instance_id="two")),
            "heartbeat": lambda: scene.heartbeat(old, instance_id="two"),
            "commit": lambda: scene.commit(old, 1, "two"),
            "leave": lambda: scene.leave(LeavingMember(old, "two")).members[0].error,
        }[request_]()

        assert error is KafkaError.FENCED_INSTANCE_ID

    def test_is_fenced_while_it_waits_for_the_generation(self) -> None:
        scene, _, follower = formed()
        scene.rebalance()
        waiting = scene.join(follower, instance_id="two")
        scene.new_static("two")

        assert scene.error(waiting) is KafkaError.FENCED_INSTANCE_ID
        assert scene.joined(waiting).member_id == follower

    def test_is_fenced_while_it_waits_for_its_assignment(self) -> None:
        scene, leader, follower = formed()
        scene.rebalance()
        for name, instance in ((leader, "one"), (follower, "two")):
            scene.join(name, instance_id=instance)
        waiting = scene.sync(follower, instance_id="two")
        scene.new_static("two")

        assert scene.error(waiting) is KafkaError.FENCED_INSTANCE_ID

    def test_does_not_take_its_successor_along_when_its_session_would_have_ended(self) -> None:
        scene, leader, _ = formed()
        scene.wait(8)
        new = scene.joined(scene.new_static("two")).member_id
        scene.heartbeat(leader)
        scene.wait(5)

        assert scene.heartbeat(new, instance_id="two") is KafkaError.NONE


class TestAWrongInstanceId:
    def test_that_nobody_has_is_unknown(self) -> None:
        scene, leader, _ = formed()

        assert scene.heartbeat(leader, instance_id="three") is KafkaError.UNKNOWN_MEMBER_ID

    def test_comes_before_the_generation(self) -> None:
        scene, leader, _ = formed()

        assert scene.heartbeat(leader, 99, "two") is KafkaError.FENCED_INSTANCE_ID
        assert scene.heartbeat(leader, 99, "one") is KafkaError.ILLEGAL_GENERATION


class TestAbsence:
    def test_for_less_than_the_session_changes_nothing(self) -> None:
        scene, leader, _ = formed()
        for _ in range(2):
            scene.wait(4)
            scene.heartbeat(leader)
        scene.new_static("two")

        assert scene.group.state is STABLE

    def test_at_the_end_of_the_join_phase_keeps_the_member_in_the_group(self) -> None:
        scene, leader, follower = formed()
        scene.rebalance()
        number = scene.join(leader, instance_id="one")
        for _ in range(12):
            scene.heartbeat(follower, 1, "two")
            scene.wait(5)

        assert [member.member_id for member in scene.joined(number).members] == [leader, follower]

    def test_for_longer_than_the_session_removes_it(self) -> None:
        scene, leader, follower = formed()
        for _ in range(3):
            scene.wait(4)
            scene.heartbeat(leader)

        assert [member.member_id for member in scene.group.describe().members] == [leader]
        assert scene.heartbeat(follower, instance_id="two") is KafkaError.UNKNOWN_MEMBER_ID
        assert scene.group.state is PREPARING

    def test_of_everybody_ends_with_the_sessions(self) -> None:
        scene, leader, follower = formed()
        scene.rebalance()
        for _ in range(20):
            scene.wait(5)
            scene.heartbeat(leader, 1, "one")
            scene.heartbeat(follower, 1, "two")
        assert scene.group.state is PREPARING
        scene.wait(120)

        assert scene.group.state is ClassicState.EMPTY


class TestRemovalByAnAdministrator:
    def test_names_the_instance_id_alone(self) -> None:
        scene, leader, _ = formed()
        answer = scene.leave(LeavingMember("", "two"))

        assert [(member.member_id, member.instance_id, member.error) for member in answer.members] == [
            ("", "two", KafkaError.NONE)
        ]
        assert [member.member_id for member in scene.group.describe().members] == [leader]

    def test_of_nobody_is_unknown(self) -> None:
        scene, _, _ = formed()
        answer = scene.leave(LeavingMember("", "three"), LeavingMember("", None))

        assert [member.error for member in answer.members] == [KafkaError.UNKNOWN_MEMBER_ID] * 2
        assert scene.group.state is STABLE
