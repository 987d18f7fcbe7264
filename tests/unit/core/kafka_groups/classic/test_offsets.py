"""Commits to groups that do or do not exist, deletes of offsets, and offsets that expire."""

from __future__ import annotations

import pytest

from assigner.core.kafka_groups.classic.consumer_protocol import Subscription, encode_subscription
from assigner.core.kafka_groups.classic.machine import ClassicGroup
from assigner.core.kafka_groups.classic.offsets import (
    Expiry,
    check_offset_delete,
    check_partitions,
    check_topic_delete,
    refused,
)
from assigner.core.kafka_groups.classic.requests import check_commit_to_nobody
from assigner.model.kafka_groups import ClassicCommit, ClassicOffset, ClassicState, KafkaError
from tests.support.core.classic_scene import ClassicScene, completing, empty, rebalancing, stable

DAY = 86_400_000
KEPT = 7 * DAY
CONNECT = (("sessioned", b"any bytes"),)


def commit(*offsets: ClassicOffset, generation: int = 3, knows_missing_groups: bool = True) -> ClassicCommit:
    return ClassicCommit(group="g", offsets=offsets, generation=generation, knows_missing_groups=knows_missing_groups)


def offset(topic: str = "orders", partition: int = 0, metadata: str | None = None) -> ClassicOffset:
    return ClassicOffset(topic=topic, partition=partition, offset=1, metadata=metadata)


class TestAGroupThatDoesNotExist:
    def test_comes_into_being_by_a_commit_without_a_generation(self) -> None:
        assert check_commit_to_nobody(commit(generation=-1)) is KafkaError.NONE

    def test_refuses_one_with_a_generation_as_the_version_can_understand(self) -> None:
        assert check_commit_to_nobody(commit()) is KafkaError.GROUP_ID_NOT_FOUND
        assert check_commit_to_nobody(commit(knows_missing_groups=False)) is KafkaError.ILLEGAL_GENERATION

    def test_does_not_begin_to_exist_by_being_asked_for(self) -> None:
        scene = ClassicScene()
        scene.heartbeat("nobody")
        scene.join("nobody")

        assert scene.group.check_commit(commit(), 0) is KafkaError.GROUP_ID_NOT_FOUND
        assert scene.group.check_commit(commit(generation=-1), 0) is KafkaError.NONE
        assert scene.group.check_delete() is KafkaError.GROUP_ID_NOT_FOUND
        assert check_offset_delete(scene.group) is KafkaError.GROUP_ID_NOT_FOUND
        assert scene.group.describe().error is KafkaError.GROUP_ID_NOT_FOUND

    def test_begins_to_exist_with_the_first_id_that_is_given(self) -> None:
        scene = ClassicScene()
        scene.join()

        assert scene.group.check_commit(commit(), 0) is KafkaError.UNKNOWN_MEMBER_ID
        assert scene.group.check_delete() is KafkaError.NONE
        assert scene.group.describe().state is ClassicState.EMPTY

    def test_says_so_of_every_partition(self) -> None:
        answer = refused(commit(offset(), offset("payments", 3)), KafkaError.ILLEGAL_GENERATION)

        assert [(one.topic, one.partition, one.error) for one in answer.partitions] == [
            ("orders", 0, KafkaError.ILLEGAL_GENERATION),
            ("payments", 3, KafkaError.ILLEGAL_GENERATION),
        ]


@pytest.mark.parametrize(
    ("one", "error"),
    [
        (offset(), KafkaError.NONE),
        (offset(partition=3), KafkaError.NONE),
        (offset(partition=4), KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        (offset(partition=-1), KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        (offset("nothing"), KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        (offset(metadata="x" * 10), KafkaError.NONE),
        (offset(metadata="x" * 11), KafkaError.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_what_is_wrong_with_an_offset(one: ClassicOffset, error: KafkaError) -> None:
    checked = check_partitions(commit(offset(), one), {"orders": 4}.get, max_metadata=10)

    assert checked == ((offset(), KafkaError.NONE), (one, error))


class TestDeletingAGroup:
    @pytest.mark.parametrize("make", [rebalancing, completing, stable])
    def test_with_members_is_refused(self, make: object) -> None:
        scene, _ = make()  # type: ignore[operator]
        assert scene.group.check_delete() is KafkaError.NON_EMPTY_GROUP

    def test_without_members_is_accepted(self) -> None:
        assert empty().group.check_delete() is KafkaError.NONE

    def test_that_is_gone_does_not_find_it(self) -> None:
        scene = empty()
        scene.unload()
        assert scene.group.check_delete() is KafkaError.GROUP_ID_NOT_FOUND


class TestDeletingOffsets:
    def test_is_possible_for_topics_that_nobody_subscribes_to(self) -> None:
        scene, _ = stable()

        assert check_offset_delete(scene.group) is KafkaError.NONE
        assert check_topic_delete(scene.group, "orders") is KafkaError.GROUP_SUBSCRIBED_TO_TOPIC
        assert check_topic_delete(scene.group, "payments") is KafkaError.NONE

    def test_is_possible_for_all_topics_of_an_empty_group(self) -> None:
        group = empty().group

        assert check_offset_delete(group) is KafkaError.NONE
        assert check_topic_delete(group, "orders") is KafkaError.NONE

    def test_is_refused_if_the_subscriptions_can_not_be_known(self) -> None:
        scene, _ = stable(protocol_type="connect", protocols=CONNECT)
        assert check_offset_delete(scene.group) is KafkaError.NON_EMPTY_GROUP

        scene, _ = stable(protocols=(("range", b"?"),))
        assert check_topic_delete(scene.group, "anything") is KafkaError.GROUP_SUBSCRIBED_TO_TOPIC

    def test_of_a_group_that_is_gone_does_not_find_it(self) -> None:
        scene, _ = stable()
        scene.unload()
        assert check_offset_delete(scene.group) is KafkaError.GROUP_ID_NOT_FOUND


class TestExpiry:
    def of(self, group: ClassicGroup, *, since: int = 0, wall: int = 0) -> Expiry:
        return Expiry(group, since, KEPT, wall)

    def test_of_an_empty_group_counts_from_when_it_became_empty(self) -> None:
        group = empty().group
        offsets = [("orders", 0, 0), ("orders", 1, 5 * DAY)]

        assert self.of(group, since=DAY, wall=8 * DAY - 1).expired(offsets) == []
        assert self.of(group, since=DAY, wall=8 * DAY).expired(offsets) == [("orders", 0), ("orders", 1)]

    def test_of_a_stable_group_counts_from_the_commit_and_spares_what_is_subscribed_to(self) -> None:
        scene, _ = stable()
        offsets = [("orders", 0, 0), ("payments", 0, 0), ("payments", 1, DAY)]

        assert self.of(scene.group, wall=7 * DAY).expired(offsets) == [("payments", 0)]

    @pytest.mark.parametrize("make", [rebalancing, completing])
    def test_waits_for_a_rebalance_to_be_over(self, make: object) -> None:
        scene, _ = make()  # type: ignore[operator]

        assert not self.of(scene.group, wall=99 * DAY).can_tell
        assert self.of(scene.group, wall=99 * DAY).expired([("payments", 0, 0)]) == []

    @pytest.mark.parametrize(
        "changes",
        [{"protocol_type": "connect", "protocols": CONNECT}, {"protocols": (("range", b"?"),)}],
        ids=["another protocol type", "unreadable subscriptions"],
    )
    def test_spares_everything_where_subscriptions_are_not_known(self, changes: dict[str, object]) -> None:
        scene, members = stable(**changes)  # type: ignore[arg-type]
        assert self.of(scene.group, wall=99 * DAY).expired([("payments", 0, 0)]) == []

        scene.leave(*members)
        assert self.of(scene.group, wall=99 * DAY).expired([("payments", 0, 0)]) == [("payments", 0)]

    def test_of_a_simple_group_counts_from_the_commit(self) -> None:
        group = ClassicScene().group

        assert self.of(group, wall=7 * DAY).expired([("orders", 0, 0), ("orders", 1, 1)]) == [("orders", 0)]

    def test_goes_on_at_the_next_leader(self) -> None:
        scene = empty().reloaded()

        assert scene.group.state is ClassicState.EMPTY
        assert self.of(scene.group, wall=7 * DAY).expired([("orders", 0, 0)]) == [("orders", 0)]


def test_topics_follow_the_members_subscriptions() -> None:
    def of(*topics: str) -> tuple[tuple[str, bytes], ...]:
        return (("range", encode_subscription(Subscription(topics=topics))),)

    scene = ClassicScene()
    first = scene.new_member(protocols=of("a", "b"))
    scene.new_member(protocols=of("b", "c"))
    scene.wait(6)
    assert scene.group.topics == frozenset({"a", "b", "c"})

    scene.leave(first)
    second = scene.group.describe().members[0].member_id
    scene.join(second, protocols=of("c"))
    assert scene.group.topics == frozenset({"c"})
