"""Assignments by the service: balanced, few moves, by racks, and never a partition that another still owns."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.core.kafka_groups.classic.actions import Assign, Subscriber
from assigner.core.kafka_groups.classic.consumer_protocol import (
    Subscription,
    Unreadable,
    decode_assignment,
    encode_subscription,
)
from assigner.core.kafka_groups.classic.server_assignor import ServerAssignment, assignment_of, problem_of
from assigner.model.records import GroupOptions, TopicConfig
from assigner.strategy.registry import load

EAGER, COOPERATIVE = "range", "cooperative-sticky"
ORDERS = TopicConfig(topic="orders", partition_count=6)
Owned = dict[str, tuple[int, ...]]


def subscriber(
    name: str,
    *topics: str,
    owned: Owned | None = None,
    generation: int = 1,
    rack: str | None = None,
    previous: bytes = b"",
    version: int = 3,
) -> Subscriber:
    subscription = Subscription(
        topics=topics or ("orders",),
        owned=tuple((owned or {}).items()),
        generation=generation,
        rack=rack,
        version=version,
    )
    return Subscriber(name, None, encode_subscription(subscription), previous)


def assign(
    protocol: str,
    *members: Subscriber,
    topics: tuple[TopicConfig, ...] = (ORDERS,),
    options: GroupOptions | None = None,
) -> ServerAssignment:
    server = problem_of(Assign(1, protocol, members), topics, options or GroupOptions())
    return assignment_of(server, load(server.strategy).assign(server.problem))


def read(assignment: ServerAssignment) -> dict[str, Owned]:
    return {name: dict(decode_assignment(data).partitions) for name, data in assignment.assignments.items()}


def counts(assignment: ServerAssignment) -> dict[str, int]:
    return {name: sum(map(len, owned.values())) for name, owned in read(assignment).items()}


class TestAnyProtocol:
    @pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE])
    def test_partitions_are_shared_evenly(self, protocol: str) -> None:
        result = assign(protocol, *(subscriber(name) for name in "abc"))

        assert counts(result) == {"a": 2, "b": 2, "c": 2}
        assert not result.follow_up

    def test_each_gets_what_it_subscribes_to(self) -> None:
        payments = TopicConfig(topic="payments", partition_count=2)
        result = read(assign(EAGER, subscriber("a", "orders"), subscriber("b", "payments"), topics=(ORDERS, payments)))

        assert result == {"a": {"orders": (0, 1, 2, 3, 4, 5)}, "b": {"payments": (0, 1)}}

    def test_a_topic_that_does_not_exist_is_nobodys(self) -> None:
        assert read(assign(EAGER, subscriber("a", "nothing"), topics=())) == {"a": {}}

    def test_a_member_without_topics_gets_nothing(self) -> None:
        nothing = Subscriber("b", None, encode_subscription(Subscription(topics=())), b"")
        result = assign(EAGER, subscriber("a"), nothing)

        assert counts(result) == {"a": 6, "b": 0}

    @pytest.mark.parametrize("version", range(4))
    def test_a_member_is_answered_in_its_own_version(self, version: int) -> None:
        result = assign(EAGER, subscriber("a", version=version))

        assert decode_assignment(result.assignments["a"]).version == version

    def test_the_group_chooses_the_strategy(self) -> None:
        result = assign(EAGER, subscriber("a"), subscriber("b"), options=GroupOptions(strategy="range"))

        assert read(result) == {"a": {"orders": (0, 1, 2)}, "b": {"orders": (3, 4, 5)}}

    def test_members_of_a_rack_get_partitions_with_a_replica_there(self) -> None:
        topic = TopicConfig(topic="orders", partition_count=4, replica_racks=(("r1",), ("r2",), ("r1",), ("r2",)))
        result = assign(EAGER, subscriber("a", rack="r2"), subscriber("b", rack="r1"), topics=(topic,))

        assert read(result) == {"a": {"orders": (1, 3)}, "b": {"orders": (0, 2)}}

    def test_co_partitioned_topics_stay_together(self) -> None:
        twin = TopicConfig(topic="payments", partition_count=6)
        options = GroupOptions(copartitioned=(("orders", "payments"),))
        members = [subscriber(name, "orders", "payments") for name in "abc"]

        for owned in read(assign(EAGER, *members, topics=(ORDERS, twin), options=options)).values():
            assert owned["orders"] == owned["payments"]

    def test_co_partitioned_topics_of_different_sizes_are_assigned_all_the_same(self) -> None:
        bigger = TopicConfig(topic="payments", partition_count=9)
        options = GroupOptions(copartitioned=(("orders", "payments"),))
        result = assign(EAGER, subscriber("a", "orders", "payments"), topics=(ORDERS, bigger), options=options)

        assert counts(result) == {"a": 15}

    def test_a_subscription_that_can_not_be_read_is_refused(self) -> None:
        with pytest.raises(Unreadable):
            assign(EAGER, Subscriber("a", None, b"?", b""))


class TestAnEagerProtocol:
    def test_keeps_what_was_assigned_before(self) -> None:
        first = assign(EAGER, subscriber("a"), subscriber("b"))
        previous = first.assignments
        second = assign(EAGER, *(subscriber(name, previous=previous.get(name, b"")) for name in "abc"))

        kept = {name: set(owned.get("orders", ())) for name, owned in read(second).items()}
        assert counts(second) == {"a": 2, "b": 2, "c": 2}
        assert all(kept[name] <= set(read(first)[name]["orders"]) for name in "ab")
        assert second.moved == 2

    def test_moves_at_once(self) -> None:
        """Its members gave up everything before they joined, whatever they say that they own."""
        result = assign(EAGER, subscriber("a", owned={"orders": tuple(range(6))}), subscriber("b"))

        assert counts(result) == {"a": 3, "b": 3}
        assert not result.follow_up

    def test_does_not_mind_an_assignment_that_it_can_not_read(self) -> None:
        assert counts(assign(EAGER, subscriber("a", previous=b"?"))) == {"a": 6}


class TestACooperativeProtocol:
    def test_withholds_what_another_member_owns_and_asks_for_a_follow_up(self) -> None:
        result = assign(COOPERATIVE, subscriber("a", owned={"orders": tuple(range(6))}), subscriber("b"))

        assert counts(result) == {"a": 3, "b": 0}
        assert (result.withheld, result.moved, result.follow_up) == (3, 3, True)

    def test_assigns_it_when_it_was_given_up(self) -> None:
        first = read(assign(COOPERATIVE, subscriber("a", owned={"orders": tuple(range(6))}), subscriber("b")))
        second = assign(COOPERATIVE, subscriber("a", owned=first["a"]), subscriber("b"))

        assert counts(second) == {"a": 3, "b": 3}
        assert read(second)["a"] == first["a"]
        assert not second.follow_up

    def test_believes_the_later_generation_of_two_that_own_the_same(self) -> None:
        stale = subscriber("a", owned={"orders": tuple(range(6))}, generation=4)
        result = assign(COOPERATIVE, stale, subscriber("b", owned={"orders": (0, 1, 2)}, generation=5))

        assert read(result)["b"]["orders"] == (0, 1, 2)
        assert read(result)["a"]["orders"] == (3, 4, 5)

    def test_ignores_claims_of_what_does_not_exist(self) -> None:
        owned = {"orders": (0, 99, -1), "gone": (1,)}

        assert counts(assign(COOPERATIVE, subscriber("a", owned=owned))) == {"a": 6}


claims = st.dictionaries(st.sampled_from(["orders", "payments"]), st.lists(st.integers(0, 6), max_size=5).map(tuple))
topic_sets = st.lists(st.sampled_from(["orders", "payments"]), min_size=1, unique=True)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(topic_sets, claims, st.integers(0, 3)), min_size=1, max_size=6), st.booleans())
def test_no_partition_is_given_to_two_or_to_one_while_another_owns_it(
    members: list[tuple[list[str], Owned, int]], cooperative: bool
) -> None:
    topics = (ORDERS, TopicConfig(topic="payments", partition_count=5))
    said = {f"m{number}": owned for number, (_, owned, _) in enumerate(members)}
    result = assign(
        COOPERATIVE if cooperative else EAGER,
        *(
            subscriber(f"m{number}", *wanted, owned=owned, generation=generation)
            for number, (wanted, owned, generation) in enumerate(members)
        ),
        topics=topics,
    )
    given_ = [(topic, n, name) for name, owned in read(result).items() for topic, ns in owned.items() for n in ns]

    assert max(Counter((topic, n) for topic, n, _ in given_).values(), default=0) <= 1
    assert len(given_) + result.withheld + result.unassigned == sum(
        topic.partition_count for topic in topics if any(topic.topic in wanted for wanted, _, _ in members)
    )
    for topic, n, name in given_:
        owners = {other for other, owned in said.items() if n in owned.get(topic, ())}
        assert not cooperative or not owners or name in owners


class TestAStaticMemberThatHasNotJoined:
    @pytest.mark.parametrize("protocol", [EAGER, COOPERATIVE])
    def test_keeps_what_it_has_and_gets_nothing_more(self, protocol: str) -> None:
        before = assign(protocol, subscriber("a"), subscriber("b"))
        absent = msgspec.structs.replace(subscriber("a", previous=before.assignments["a"]), has_joined=False)
        present = [subscriber(name) for name in "cd"]
        result = assign(protocol, absent, *present)

        assert read(result)["a"] == read(before)["a"]
        assert sum(counts(result).values()) == 6
        assert not result.follow_up

    def test_has_it_whatever_others_say(self) -> None:
        before = assign(COOPERATIVE, subscriber("a"), subscriber("b"))
        absent = msgspec.structs.replace(subscriber("a", previous=before.assignments["a"]), has_joined=False)
        result = assign(COOPERATIVE, absent, subscriber("b", owned={"orders": tuple(range(6))}, generation=99))

        assert read(result)["a"] == read(before)["a"]

    def test_has_nothing_of_a_topic_that_is_gone(self) -> None:
        before = assign(EAGER, subscriber("a"))
        absent = msgspec.structs.replace(subscriber("a", previous=before.assignments["a"]), has_joined=False)
        smaller = TopicConfig(topic="orders", partition_count=2)

        assert counts(assign(EAGER, absent, subscriber("b"), topics=(smaller,))) == {"a": 2, "b": 0}
        assert counts(assign(EAGER, absent, subscriber("b"), topics=())) == {"a": 0, "b": 0}
