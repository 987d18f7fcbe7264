"""SyncGroup, Heartbeat, LeaveGroup and the member behind a commit, in each state of the group."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from assigner.core.kafka_groups.classic.actions import Limits, MemberRemoved
from assigner.model.kafka_groups import ClassicState, KafkaError, LeavingMember
from tests.support.core.classic_scene import ClassicScene, completing, empty, forming, rebalancing, stable

NONE, UNKNOWN, FENCED, OLD, REBALANCE, INCONSISTENT, AWAY = (
    KafkaError.NONE,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


def emptied(_: int = 2) -> tuple[ClassicScene, list[str]]:
    return empty(), ["gone", "gone too"]


def dead(_: int = 2) -> tuple[ClassicScene, list[str]]:
    scene, members = stable()
    scene.unload()
    return scene, members


Make = Callable[[int], tuple[ClassicScene, list[str]]]
STATES: list[tuple[str, Make]] = [
    ("empty", emptied),
    ("preparing", rebalancing),
    ("completing", completing),
    ("stable", stable),
    ("dead", dead),
]


def per_state(**expected: KafkaError) -> pytest.MarkDecorator:
    """One case per state: how it is made, and the code that is expected."""
    made = dict(STATES)
    assert expected.keys() == made.keys()
    return pytest.mark.parametrize(
        ("make", "error"), [pytest.param(made[name], error, id=name) for name, error in expected.items()]
    )


class TestSync:
    @per_state(empty=UNKNOWN, preparing=REBALANCE, completing=NONE, stable=NONE, dead=AWAY)
    def test_of_a_follower(self, make: Make, error: KafkaError) -> None:
        scene, (_, follower) = make(2)
        number = scene.sync(follower)

        if scene.group.state is ClassicState.COMPLETING_REBALANCE:
            assert scene.is_waiting(number)
        else:
            assert scene.error(number) is error

    @per_state(empty=UNKNOWN, preparing=UNKNOWN, completing=UNKNOWN, stable=UNKNOWN, dead=AWAY)
    def test_of_a_stranger(self, make: Make, error: KafkaError) -> None:
        scene, _ = make(2)

        assert scene.error(scene.sync("stranger", 99)) is error

    @per_state(empty=UNKNOWN, preparing=OLD, completing=OLD, stable=OLD, dead=AWAY)
    @pytest.mark.parametrize("generation", [0, 2, -1])
    def test_of_another_generation(self, make: Make, error: KafkaError, generation: int) -> None:
        scene, (leader, _) = make(2)

        assert scene.error(scene.sync(leader, generation)) is error

    @pytest.mark.parametrize("make", [completing, stable])
    @pytest.mark.parametrize(
        ("type_", "name", "error"),
        [
            ("consumer", "range", NONE),
            ("consumer", None, NONE),
            (None, "range", NONE),
            ("connect", "range", INCONSISTENT),
            ("consumer", "sticky", INCONSISTENT),
        ],
    )
    def test_that_names_a_protocol(self, make: Make, type_: str | None, name: str | None, error: KafkaError) -> None:
        scene, members = make(2)
        number = scene.sync(
            members[0],
            protocol_type=type_,
            protocol=name,
            assignments=tuple((one, one.encode()) for one in members),
        )

        assert scene.error(number) is error

    def test_is_answered_with_the_leaders_assignment(self) -> None:
        scene, (leader, follower) = completing()
        parked = scene.sync(follower)
        first = scene.sync(leader, assignments=((follower, b"p1"), (leader, b"p0")))

        assert (scene.synced(first).assignment, scene.synced(parked).assignment) == (b"p0", b"p1")
        assert (scene.synced(parked).protocol_type, scene.synced(parked).protocol) == ("consumer", "range")
        assert scene.group.state is ClassicState.STABLE

    def test_after_the_leader_is_answered_at_once(self) -> None:
        scene, (leader, follower) = completing()
        scene.sync(leader, assignments=((follower, b"p1"),))

        assert scene.synced(scene.sync(follower)).assignment == b"p1"

    def test_that_the_leader_left_out_gets_nothing(self) -> None:
        scene, (leader, follower) = completing()
        parked = scene.sync(follower)
        scene.sync(leader, assignments=((leader, b"p0"), ("stranger", b"p1")))

        stored = scene.stored
        assert scene.synced(parked).assignment == b""
        assert stored is not None
        assert {member.member_id for member in stored.members} == {leader, follower}

    def test_of_a_follower_assigns_nothing(self) -> None:
        scene, (_, follower) = completing()

        assert scene.is_waiting(scene.sync(follower, assignments=((follower, b"all"),)))

    def test_that_is_repeated_takes_the_place_of_the_first(self) -> None:
        scene, (leader, follower) = completing()
        first, second = scene.sync(follower), scene.sync(follower)
        scene.sync(leader, assignments=((follower, b"p1"),))

        assert scene.error(first) is REBALANCE
        assert scene.synced(second).assignment == b"p1"

    def test_waits_until_the_assignment_is_written(self) -> None:
        scene, (leader, follower) = completing()
        scene.holds_writes = True
        numbers = [scene.sync(follower), scene.sync(leader, assignments=((follower, b"p1"),))]
        assert scene.is_waiting(*numbers)
        assert scene.write is not None
        assert scene.write.record.generation == 1

        scene.let_write()

        assert not scene.is_waiting(numbers[0])
        assert not scene.is_waiting(numbers[1])

    def test_of_a_leader_that_repeats_itself_does_not_change_what_it_assigned(self) -> None:
        scene, (leader, follower) = completing()
        scene.holds_writes = True
        scene.sync(leader, assignments=((follower, b"first"),))
        scene.sync(leader, assignments=((follower, b"second"),))
        scene.let_write()

        assert scene.synced(scene.sync(follower)).assignment == b"first"

    def test_with_more_than_may_be_assigned_is_refused(self) -> None:
        scene, (leader, follower) = completing(2, Limits(max_member_bytes=1_000, max_group_bytes=1_500))

        for sizes in ((1_001, 0), (800, 800)):
            given = ((leader, b"x" * sizes[0]), (follower, b"x" * sizes[1]))
            assert scene.error(scene.sync(leader, assignments=given)) is KafkaError.UNKNOWN_SERVER_ERROR
        assert scene.group.state is ClassicState.COMPLETING_REBALANCE


class TestHeartbeat:
    @per_state(empty=UNKNOWN, preparing=REBALANCE, completing=NONE, stable=NONE, dead=AWAY)
    def test_of_a_member(self, make: Make, error: KafkaError) -> None:
        scene, members = make(2)

        assert [scene.heartbeat(member) for member in members] == [error, error]

    @per_state(empty=UNKNOWN, preparing=UNKNOWN, completing=UNKNOWN, stable=UNKNOWN, dead=AWAY)
    def test_of_a_stranger(self, make: Make, error: KafkaError) -> None:
        scene, _ = make(2)

        assert scene.heartbeat("stranger", 99) is error

    @per_state(empty=UNKNOWN, preparing=OLD, completing=OLD, stable=OLD, dead=AWAY)
    def test_of_another_generation(self, make: Make, error: KafkaError) -> None:
        scene, (leader, _) = make(2)

        assert scene.heartbeat(leader, 99) is error

    def test_of_who_has_only_an_id_is_unknown(self) -> None:
        scene, _ = stable()
        given = scene.joined(scene.join()).member_id

        assert scene.heartbeat(given) is UNKNOWN


class TestLeave:
    @per_state(empty=UNKNOWN, preparing=NONE, completing=NONE, stable=NONE, dead=AWAY)
    def test_of_a_member(self, make: Make, error: KafkaError) -> None:
        scene, (_, follower) = make(2)
        answer = scene.leave(follower)

        assert (answer.error or answer.members[0].error) is error
        assert follower not in {member.member_id for member in scene.group.describe().members} or error is AWAY

    @per_state(empty=UNKNOWN, preparing=UNKNOWN, completing=UNKNOWN, stable=UNKNOWN, dead=AWAY)
    def test_of_a_stranger_changes_nothing(self, make: Make, error: KafkaError) -> None:
        scene, _ = make(2)
        before = scene.group.describe()
        answer = scene.leave("stranger")

        assert (answer.error or answer.members[0].error) is error
        assert scene.group.describe() == before

    def test_of_the_last_member_empties_the_group_in_a_new_generation(self) -> None:
        scene, (leader, follower) = stable()
        scene.leave(leader, follower)

        assert (scene.group.state, scene.group.generation) == (ClassicState.EMPTY, 2)
        assert scene.stored is not None
        assert scene.stored.is_empty
        assert scene.stored.generation == 2

    def test_of_several_tells_each_its_own_code(self) -> None:
        scene, (leader, follower) = stable()
        given = scene.joined(scene.join()).member_id
        answer = scene.leave(follower, "stranger", given, LeavingMember(leader, "no instance"))

        assert [member.error for member in answer.members] == [NONE, UNKNOWN, NONE, UNKNOWN]
        assert [member.member_id for member in scene.group.describe().members] == [leader]

    def test_of_the_one_that_was_waited_for_completes_the_rebalance(self) -> None:
        scene, (leader, follower) = rebalancing()
        number = scene.join(leader)
        scene.leave(follower)

        assert scene.joined(number).generation == 2

    def test_of_who_waits_is_answered_as_unknown(self) -> None:
        scene, (_, follower) = rebalancing()
        joining = scene.join(follower)
        scene.leave(follower)
        assert (scene.error(joining), scene.joined(joining).member_id) == (UNKNOWN, "")

        scene, (_leader, follower) = completing()
        syncing = scene.sync(follower)
        scene.leave(follower)
        assert scene.error(syncing) is UNKNOWN

    def test_while_the_leader_assigns_sends_everybody_back(self) -> None:
        scene, (leader, follower) = completing()
        waiting = scene.sync(follower)
        scene.leave(leader)

        assert scene.error(waiting) is REBALANCE
        assert scene.group.state is ClassicState.PREPARING_REBALANCE

    def test_names_the_reason_in_what_is_reported(self) -> None:
        scene, (_, follower) = stable()
        scene.leave(LeavingMember(follower, None, "the consumer is being closed"))

        assert MemberRemoved(follower, None, "it left: the consumer is being closed") in scene.events


class TestCommit:
    @per_state(empty=UNKNOWN, preparing=NONE, completing=REBALANCE, stable=NONE, dead=AWAY)
    def test_of_a_member(self, make: Make, error: KafkaError) -> None:
        scene, (_, follower) = make(2)

        assert scene.commit(follower, scene.group.generation) is error

    @per_state(empty=UNKNOWN, preparing=UNKNOWN, completing=UNKNOWN, stable=UNKNOWN, dead=AWAY)
    def test_of_a_stranger(self, make: Make, error: KafkaError) -> None:
        scene, _ = make(2)

        assert scene.commit("stranger", 99) is error

    @per_state(empty=UNKNOWN, preparing=OLD, completing=OLD, stable=OLD, dead=AWAY)
    @pytest.mark.parametrize("generation", [0, 2])
    def test_of_another_generation(self, make: Make, error: KafkaError, generation: int) -> None:
        scene, (_, follower) = make(2)

        assert scene.commit(follower, generation) is error

    @per_state(empty=NONE, preparing=UNKNOWN, completing=UNKNOWN, stable=UNKNOWN, dead=AWAY)
    def test_of_nobody(self, make: Make, error: KafkaError) -> None:
        """An administrator resets offsets, or a consumer chooses its partitions itself."""
        scene, _ = make(2)

        assert scene.commit() is error

    @per_state(empty=NONE, preparing=OLD, completing=OLD, stable=OLD, dead=AWAY)
    def test_of_a_member_without_a_generation(self, make: Make, error: KafkaError) -> None:
        scene, (_, follower) = make(2)

        assert scene.commit(follower) is error

    def test_of_an_unknown_instance_id_without_a_generation(self) -> None:
        scene, _ = stable()

        assert scene.commit("", -1, "i") is UNKNOWN

    def test_of_a_group_that_forms(self) -> None:
        scene, (leader, _) = forming()

        assert scene.commit(leader, 0) is NONE
        assert scene.commit() is UNKNOWN
