"""What is written before it is answered, what becomes of a write that fails, and what the next leader begins with."""

from __future__ import annotations

import msgspec
import pytest

from assigner.core.kafka_groups.classic.actions import Limits
from assigner.core.kafka_groups.classic.writes import RESERVED
from assigner.model.kafka_groups import ClassicGroupRecord, ClassicState, KafkaError
from tests.support.core.classic_scene import ClassicScene, completing, forming, rebalancing, stable

EMPTY, PREPARING, COMPLETING, STABLE = (
    ClassicState.EMPTY,
    ClassicState.PREPARING_REBALANCE,
    ClassicState.COMPLETING_REBALANCE,
    ClassicState.STABLE,
)


def stored(scene: ClassicScene) -> ClassicGroupRecord:
    assert scene.stored is not None
    return scene.stored


class TestANewGroup:
    def test_is_written_with_its_first_member(self) -> None:
        scene = ClassicScene()
        scene.join()

        assert stored(scene) == ClassicGroupRecord(generation=0, reserved=RESERVED)

    def test_is_not_written_for_who_is_refused(self) -> None:
        scene = ClassicScene()
        scene.join("stranger")
        scene.heartbeat("stranger")
        scene.leave("stranger")

        assert scene.stored is None

    def test_waits_for_its_generations_to_be_reserved(self) -> None:
        scene = ClassicScene(Limits(initial_delay=0))
        scene.holds_writes = True
        number = scene.join(requires_known_member=False)
        scene.wait(1)
        assert scene.is_waiting(number)
        scene.let_write()

        assert scene.joined(number).generation == 1

    def test_is_written_when_the_store_is_back(self) -> None:
        scene = ClassicScene(Limits(retry_delay=500))
        scene.holds_writes = True
        number = scene.join(requires_known_member=False)
        for _ in range(10):
            scene.fail_write()
            assert scene.write is None
            scene.wait(0.5)
        scene.let_write()

        assert scene.joined(number).generation == 1

    def test_may_be_written_for_the_sake_of_its_offsets_alone(self) -> None:
        scene = ClassicScene()
        for _ in range(2):
            scene._carry_out(scene.group.create())

        assert scene.writes == 1
        assert scene.group.protocol_type is None
        assert scene.reloaded().group.state is EMPTY


class TestAnAssignment:
    def test_of_a_generation_is_one_write(self) -> None:
        scene, members = stable(10)
        before = scene.writes
        scene.rebalance()
        for member in members:
            scene.join(member)
        scene.sync_all(*members)

        assert scene.writes == before + 1

    def test_has_all_that_the_next_leader_needs(self) -> None:
        scene, members = stable()
        record = stored(scene)

        assert (record.generation, record.protocol_type, record.protocol) == (1, "consumer", "range")
        assert record.leader == members[0]
        assert [(one.member_id, one.assignment) for one in record.members] == [(one, one.encode()) for one in members]
        assert record.members[0].session_timeout == 10_000

    @pytest.mark.parametrize("error", [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.UNKNOWN_SERVER_ERROR])
    def test_that_can_not_be_written_is_told_to_nobody(self, error: KafkaError) -> None:
        scene, (leader, follower) = completing()
        before = scene.stored
        scene.holds_writes = True
        numbers = [scene.sync(follower), scene.sync(leader, assignments=((follower, b"p"),))]
        scene.fail_write(error)

        assert [scene.error(number) for number in numbers] == [error, error]
        assert scene.synced(numbers[0]).assignment == b""
        assert scene.group.state is PREPARING
        assert scene.stored == before

    def test_that_failed_is_followed_by_another_generation(self) -> None:
        scene, members = completing()
        scene.holds_writes = True
        scene.sync_all(*members)
        scene.fail_write()
        scene.holds_writes = False
        numbers = [scene.join(member) for member in members]
        scene.sync_all(*members)

        assert {scene.joined(number).generation for number in numbers} == {2}
        assert (scene.group.state, stored(scene).generation) == (STABLE, 2)

    def test_of_a_generation_that_is_over_is_told_to_nobody(self) -> None:
        scene, (leader, follower) = completing()
        scene.holds_writes = True
        waiting = scene.sync(follower)
        scene.sync(leader, assignments=((follower, b"p"),))
        scene.join(follower, protocols=(("range", b"other"),))
        scene.let_write()

        assert scene.error(waiting) is KafkaError.REBALANCE_IN_PROGRESS
        assert scene.group.state is PREPARING

    def test_whose_late_result_comes_twice_counts_once(self) -> None:
        scene, members = completing()
        scene.holds_writes = True
        scene.sync_all(*members)
        write = scene.write
        assert write is not None
        scene.let_write()

        for actions in (scene.group.written(write.number, 9), scene.group.failed(write.number, KafkaError.NONE, 9)):
            assert actions.replies == ()
        assert scene.group.state is STABLE


class TestOneWriteAtATime:
    def test_what_changes_meanwhile_is_written_next(self) -> None:
        scene = ClassicScene(Limits(initial_delay=0))
        scene.holds_writes = True
        number = scene.join(requires_known_member=False)
        scene.wait(0)
        scene.let_write()
        member = scene.joined(number).member_id
        scene.sync(member)
        scene.leave(member)
        scene.let_write()
        scene.let_write()

        assert stored(scene).is_empty
        assert stored(scene).generation == 2

    def test_an_empty_group_is_written_until_it_is_on_record(self) -> None:
        scene, members = stable()
        scene.holds_writes = True
        scene.leave(*members)
        scene.fail_write()
        assert not scene.group.is_forgettable
        scene.wait(1)
        scene.let_write()

        assert stored(scene).is_empty
        assert scene.group.is_forgettable

    def test_a_group_that_emptied_and_forms_again_is_not_loaded_with_its_old_members(self) -> None:
        scene, members = stable()
        scene.holds_writes = True
        scene.leave(*members)
        scene.fail_write()
        scene.new_member()
        scene.wait(1)
        scene.let_write()

        assert scene.reloaded().group.state is EMPTY


class TestGenerations:
    def test_are_reserved_before_anybody_is_told(self) -> None:
        """Every number that a member was told is one that a leader that knows only the record would not give again."""
        scene, members = stable()
        for _ in range(3 * RESERVED):
            scene.rebalance()
            numbers = [scene.join(member) for member in members]
            told = {scene.joined(number).generation for number in numbers}
            assert len(told) == 1
            assert max(told) <= stored(scene).reserved

    def test_that_were_told_and_not_written_are_not_told_again(self) -> None:
        scene, members = rebalancing()
        numbers = [scene.join(member) for member in members]
        told = {scene.joined(number).generation for number in numbers}

        scene = scene.reloaded()
        scene.rebalance()
        numbers = [scene.join(member) for member in members]

        assert {scene.joined(number).generation for number in numbers}.isdisjoint(told)
        assert min(scene.joined(number).generation for number in numbers) > max(told)

    def test_wait_for_the_store_where_none_is_reserved(self) -> None:
        scene, members = stable()
        scene = scene.reloaded()
        scene.holds_writes = True
        scene.rebalance()
        numbers = [scene.join(member) for member in members]
        assert scene.is_waiting(*numbers)
        scene.fail_write()
        scene.wait(1)
        assert scene.is_waiting(*numbers)
        scene.let_write()

        assert {scene.joined(number).generation for number in numbers} == {RESERVED + 2}

    def test_that_wait_take_in_who_joins_meanwhile(self) -> None:
        scene, members = stable()
        scene = scene.reloaded()
        scene.holds_writes = True
        scene.rebalance()
        numbers = [scene.join(member) for member in members]
        numbers.append(scene.join(requires_known_member=False))
        scene.let_write()

        assert len({scene.joined(number).generation for number in numbers}) == 1
        assert len(scene.group.describe().members) == 3


class TestTheNextLeader:
    def test_goes_on_without_a_rebalance(self) -> None:
        scene, members = stable()
        before = scene.group.describe()
        scene = scene.reloaded()

        assert scene.group.describe() == before
        assert [scene.heartbeat(member, 1) for member in members] == [KafkaError.NONE] * 2
        assert scene.synced(scene.sync(members[1], 1)).assignment == members[1].encode()
        assert scene.commit(members[0], 1) is KafkaError.NONE
        assert scene.writes == 0

    def test_begins_all_sessions_anew(self) -> None:
        scene, members = stable()
        scene.wait(9)
        scene = scene.reloaded()
        scene.wait(9)
        assert [scene.heartbeat(member, 1) for member in members] == [KafkaError.NONE] * 2

    def test_gives_nobody_more_than_a_session(self) -> None:
        scene, _ = stable()
        scene = scene.reloaded()
        scene.wait(11)

        assert len(scene.group.describe().members) == 0

    def test_knows_a_member_that_joins_again_unchanged(self) -> None:
        protocols = (("range", b"r"), ("sticky", b"s"))
        scene, (_, follower) = stable(2, protocols=protocols)
        scene = scene.reloaded()

        assert scene.joined(scene.join(follower, protocols=protocols)).generation == 1

    def test_lets_the_members_of_an_unfinished_generation_join_again(self) -> None:
        scene, (leader, follower) = rebalancing()
        for member in (leader, follower):
            scene.join(member)
        scene = scene.reloaded()

        assert scene.heartbeat(follower, 2) is KafkaError.ILLEGAL_GENERATION
        assert scene.error(scene.sync(follower, 2)) is KafkaError.ILLEGAL_GENERATION
        assert scene.joined(scene.join(follower)).generation == 1

    def test_of_an_empty_group_knows_its_generation(self) -> None:
        scene, members = stable()
        scene.leave(*members)
        scene = scene.reloaded()
        number = scene.join(requires_known_member=False)
        scene.wait(3)

        assert scene.group.state is COMPLETING
        assert scene.joined(number).generation > 2

    def test_of_nothing_but_ids_knows_none_of_them(self) -> None:
        scene = ClassicScene()
        given = scene.joined(scene.join()).member_id

        scene = scene.reloaded()

        assert scene.error(scene.join(given)) is KafkaError.UNKNOWN_MEMBER_ID


class TestTheEndOfATerm:
    def test_answers_everybody_who_waits(self) -> None:
        scene, (leader, _) = rebalancing()
        joining = scene.join(leader)
        scene.unload()
        assert (scene.error(joining), scene.joined(joining).member_id) == (KafkaError.NOT_COORDINATOR, leader)

        scene, (_, follower) = completing()
        syncing = scene.sync(follower)
        scene.unload()
        assert scene.error(syncing) is KafkaError.NOT_COORDINATOR

    def test_is_the_end_of_all_timers_and_writes(self) -> None:
        scene, _ = forming()
        scene.unload()

        assert scene.group.wake_at is None
        assert scene.group.state is ClassicState.DEAD
        assert scene.group.describe().state is ClassicState.DEAD

    def test_comes_before_the_result_of_a_write_that_nobody_hears_of(self) -> None:
        scene, members = completing()
        scene.holds_writes = True
        scene.sync_all(*members)
        scene.unload()
        scene.let_write()

        assert scene.group.state is ClassicState.DEAD


def test_no_record_is_changed_by_what_happens_after_it_was_made() -> None:
    scene, (leader, _) = stable()
    record = stored(scene)
    copy = msgspec.json.encode(record)
    scene.join(leader, protocols=(("range", b"other"),))
    scene.new_member()

    assert msgspec.json.encode(record) == copy
