"""JoinGroup of dynamic members: who is refused, who gets an id, who waits, and who is answered at once."""

from __future__ import annotations

from typing import Any

import pytest

from assigner.core.kafka_groups.classic.actions import Limits
from assigner.model.kafka_groups import ClassicState, KafkaError
from tests.support.core.classic_scene import ClassicScene, completing, empty, forming, rebalancing, stable

PREPARING, COMPLETING, STABLE = (
    ClassicState.PREPARING_REBALANCE,
    ClassicState.COMPLETING_REBALANCE,
    ClassicState.STABLE,
)
STICKY = (("sticky", b"s"),)
BOTH = (("range", b"r"), ("sticky", b"s"))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        pytest.param({"group": ""}, KafkaError.INVALID_GROUP_ID, id="no group"),
        pytest.param({"session_timeout": 5_999}, KafkaError.INVALID_SESSION_TIMEOUT, id="a session too short"),
        pytest.param({"session_timeout": 1_800_001}, KafkaError.INVALID_SESSION_TIMEOUT, id="a session too long"),
        pytest.param({"protocols": ()}, KafkaError.INCONSISTENT_GROUP_PROTOCOL, id="no protocols"),
        pytest.param({"protocol_type": ""}, KafkaError.INCONSISTENT_GROUP_PROTOCOL, id="no protocol type"),
        pytest.param({"member_id": "stranger"}, KafkaError.UNKNOWN_MEMBER_ID, id="an id that was never given"),
        pytest.param({"instance_id": "i" * 250}, KafkaError.INVALID_REQUEST, id="an instance id too long"),
        pytest.param({"protocols": (("range", b"x" * 262_144),)}, KafkaError.MESSAGE_TOO_LARGE, id="too much metadata"),
    ],
)
def test_a_request_that_no_group_accepts(changes: dict[str, Any], error: KafkaError) -> None:
    scene = ClassicScene()

    answer = scene.joined(scene.join(**changes))

    assert answer.error is error
    assert answer.member_id == changes.get("member_id", "")
    assert scene.group.is_forgettable
    assert scene.stored is None


def test_a_session_may_be_as_short_and_as_long_as_the_limits() -> None:
    for timeout in (6_000, 1_800_000):
        scene = ClassicScene()
        assert scene.error(scene.join(session_timeout=timeout)) is KafkaError.MEMBER_ID_REQUIRED


class TestGettingAnId:
    def test_a_new_member_is_given_an_id_made_of_its_client_id(self) -> None:
        scene = ClassicScene()

        answer = scene.joined(scene.join(client_id="app"))

        assert (answer.error, answer.member_id) == (KafkaError.MEMBER_ID_REQUIRED, "app-0001")
        assert scene.group.state is ClassicState.EMPTY

    def test_it_joins_with_the_id(self) -> None:
        scene = ClassicScene()
        member_id = scene.new_member()

        assert scene.group.state is PREPARING
        assert [member.member_id for member in scene.group.describe().members] == [member_id]

    def test_an_older_client_joins_without_one_and_is_told_its_id_with_the_generation(self) -> None:
        scene = ClassicScene()
        number = scene.join(requires_known_member=False)
        scene.wait(3)

        assert scene.joined(number).member_id == "app-0001"
        assert scene.joined(number).generation == 1

    def test_an_id_that_is_not_used_is_taken_back_after_the_session_timeout(self) -> None:
        scene = ClassicScene()
        member_id = scene.joined(scene.join()).member_id
        scene.wait(10)

        assert scene.error(scene.join(member_id)) is KafkaError.UNKNOWN_MEMBER_ID
        assert scene.group.is_forgettable

    def test_a_rebalance_waits_for_who_has_just_been_given_an_id(self) -> None:
        scene, (leader, follower) = rebalancing()
        given = scene.joined(scene.join()).member_id
        waiting = [scene.join(leader), scene.join(follower)]
        assert scene.is_waiting(*waiting)

        scene.join(given)

        assert {scene.joined(number).generation for number in waiting} == {2}

    @pytest.mark.parametrize("how", ["leaves", "is silent"])
    def test_a_rebalance_does_not_wait_for_one_that(self, how: str) -> None:
        scene, (leader, follower) = rebalancing()
        given = scene.joined(scene.join()).member_id
        waiting = [scene.join(leader), scene.join(follower)]

        if how == "leaves":
            assert scene.leave(given).members[0].error is KafkaError.NONE
            # As in Kafka.
            assert scene.group.state is COMPLETING
        else:
            scene.wait(10)

        assert {scene.joined(number).generation for number in waiting} == {2}

    def test_an_id_is_not_for_static_members(self) -> None:
        scene = ClassicScene()
        member_id = scene.joined(scene.join()).member_id

        assert scene.error(scene.join(member_id, instance_id="i")) is KafkaError.UNKNOWN_SERVER_ERROR

    def test_as_many_may_have_one_as_there_may_be_members(self) -> None:
        scene = ClassicScene(Limits(max_members=3))
        errors = [scene.error(scene.join()) for _ in range(4)]

        assert errors == [KafkaError.MEMBER_ID_REQUIRED] * 3 + [KafkaError.GROUP_MAX_SIZE_REACHED]


class TestProtocols:
    @pytest.mark.parametrize("make", [forming, completing, stable])
    @pytest.mark.parametrize(
        "changes",
        [{"protocols": STICKY}, {"protocol_type": "connect"}, {"protocols": ()}],
        ids=["other protocols", "another type", "none"],
    )
    def test_a_member_that_does_not_fit_in_is_refused(self, make: Any, changes: dict[str, Any]) -> None:
        scene, _ = make()
        before = scene.group.describe()

        assert scene.error(scene.join(**changes)) is KafkaError.INCONSISTENT_GROUP_PROTOCOL
        assert scene.group.describe() == before

    def test_an_empty_group_takes_up_any_type(self) -> None:
        scene = empty()
        scene.new_member(protocol_type="connect", protocols=(("sessioned", b""),))

        assert scene.group.protocol_type == "connect"

    def test_the_protocol_with_the_most_votes_wins(self) -> None:
        scene = ClassicScene()
        scene.new_member(protocols=BOTH)
        for _ in range(2):
            scene.new_member(protocols=BOTH[::-1])
        scene.wait(6)

        assert {scene.joined(number).protocol for number in (2, 4, 6)} == {"sticky"}

    def test_a_protocol_that_one_does_not_support_is_not_elected(self) -> None:
        scene = ClassicScene()
        scene.new_member(protocols=(("range", b"r"),))
        for _ in range(2):
            scene.new_member(protocols=BOTH[::-1])
        scene.wait(6)

        assert scene.joined(2).protocol == "range"

    def test_a_protocol_named_twice_counts_once(self) -> None:
        scene, (leader, _) = stable(2, protocols=(("range", b"1"), ("range", b"2")))
        scene.leave(leader)
        follower = scene.group.describe().members[0].member_id
        number = scene.join(follower, protocols=(("range", b"1"), ("range", b"2")))

        assert [member.metadata for member in scene.joined(number).members] == [b"1"]


class TestTheGeneration:
    def test_the_first_member_leads_and_is_told_of_all_members(self) -> None:
        scene, (leader, follower) = completing()
        told, other = scene.joined(2), scene.joined(4)

        assert (told.leader, other.leader) == (leader, leader)
        assert [member.member_id for member in told.members] == [leader, follower]
        assert other.members == ()
        assert (told.generation, told.protocol_type, told.protocol) == (1, "consumer", "range")
        assert not told.skip_assignment

    def test_it_rises_with_every_rebalance(self) -> None:
        scene, (leader, follower) = rebalancing()
        numbers = [scene.join(leader), scene.join(follower)]

        assert {scene.joined(number).generation for number in numbers} == {2}

    def test_a_leader_stays_the_leader(self) -> None:
        scene, (leader, follower) = rebalancing()
        numbers = [scene.join(follower), scene.join(leader)]

        assert {scene.joined(number).leader for number in numbers} == {leader}

    def test_a_leader_that_has_not_joined_in_time_is_replaced(self) -> None:
        scene, (_, follower) = rebalancing()
        number = scene.join(follower)
        scene.wait(60)

        assert scene.joined(number).leader == follower
        assert [member.member_id for member in scene.joined(number).members] == [follower]


class TestJoiningAgain:
    def test_a_later_request_takes_the_place_of_the_one_that_waits(self) -> None:
        scene, (leader, follower) = rebalancing()
        first, second = scene.join(leader), scene.join(leader)
        assert scene.error(first) is KafkaError.REBALANCE_IN_PROGRESS
        assert scene.is_waiting(second)

        scene.join(follower)

        assert scene.joined(second).generation == 2

    def test_a_member_that_missed_the_answer_gets_it_again(self) -> None:
        scene, (leader, follower) = completing()

        again = scene.joined(scene.join(follower))
        assert (again.generation, again.leader, again.members) == (1, leader, ())
        assert scene.joined(scene.join(leader)) == scene.joined(2)
        assert scene.group.state is COMPLETING

    def test_a_follower_of_a_stable_group_changes_nothing(self) -> None:
        scene, (leader, follower) = stable()

        again = scene.joined(scene.join(follower))
        assert (again.generation, again.leader, again.members) == (1, leader, ())
        assert scene.group.state is STABLE

    def test_a_leader_of_a_stable_group_wants_a_rebalance(self) -> None:
        scene, (leader, _) = stable()

        assert scene.is_waiting(scene.join(leader))
        assert scene.group.state is PREPARING

    @pytest.mark.parametrize("state", ["completing", "stable"])
    @pytest.mark.parametrize("who", [0, 1], ids=["leader", "follower"])
    def test_whoever_subscribes_to_something_else_begins_a_rebalance(self, state: str, who: int) -> None:
        scene, members = {"completing": completing, "stable": stable}[state]()

        assert scene.is_waiting(scene.join(members[who], protocols=(("range", b"other"),)))
        assert scene.group.state is PREPARING

    def test_a_new_member_begins_a_rebalance(self) -> None:
        for make in (completing, stable):
            scene, _ = make()
            scene.new_member()
            assert scene.group.state is PREPARING

    def test_who_has_left_is_unknown(self) -> None:
        scene, (_, follower) = stable()
        scene.leave(follower)

        assert scene.error(scene.join(follower)) is KafkaError.UNKNOWN_MEMBER_ID


class TestRoom:
    LIMITS = Limits(max_members=2)

    @pytest.mark.parametrize("make", [forming, completing, stable])
    def test_no_more_members_than_the_limit(self, make: Any) -> None:
        scene, _ = make(2, self.LIMITS)
        before = scene.group.describe()

        answer = scene.joined(scene.join())

        assert (answer.error, answer.member_id) == (KafkaError.GROUP_MAX_SIZE_REACHED, "")
        assert scene.group.describe() == before

    @pytest.mark.parametrize("make", [completing, stable])
    def test_members_of_a_full_group_may_join_again(self, make: Any) -> None:
        scene, (_, follower) = make(2, self.LIMITS)

        assert scene.error(scene.join(follower)) is KafkaError.NONE

    def test_one_that_leaves_makes_room(self) -> None:
        scene, (_, follower) = stable(2, self.LIMITS)
        scene.leave(follower)

        assert scene.error(scene.join()) is KafkaError.MEMBER_ID_REQUIRED

    def test_after_the_limit_was_lowered_the_last_to_join_are_left_out(self) -> None:
        scene, members = stable(3)
        scene = scene.reloaded(self.LIMITS)
        assert scene.group.state is PREPARING

        numbers = [scene.join(member) for member in reversed(members)]

        assert scene.error(numbers[2]) is KafkaError.GROUP_MAX_SIZE_REACHED
        assert [scene.joined(number).generation > 1 for number in numbers[:2]] == [True, True]

    def test_the_metadata_of_all_members_is_limited_too(self) -> None:
        scene = ClassicScene(Limits(max_group_bytes=100))
        big = (("range", b"x" * 45),)
        first = scene.new_member(protocols=big)
        scene.new_member(protocols=big)

        assert scene.error(scene.join(protocols=big)) is KafkaError.GROUP_MAX_SIZE_REACHED
        assert scene.is_waiting(scene.join(first, protocols=big))


def test_a_group_that_is_gone_sends_members_to_look_for_another_coordinator() -> None:
    scene, (leader, _) = stable()
    scene.unload()

    assert scene.error(scene.join()) is KafkaError.COORDINATOR_NOT_AVAILABLE
    assert scene.error(scene.join(leader)) is KafkaError.COORDINATOR_NOT_AVAILABLE
