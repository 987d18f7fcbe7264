"""Where things are stored: names come back as they were, and no name reaches another's place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assigner.errors import InvalidName
from assigner.model.keys import (
    DEFAULT_ROOT,
    RESERVED_GROUPS,
    AckKey,
    AssignmentKey,
    ConsumerKey,
    HandoffKey,
    Keys,
    LeaderKey,
    OptionsKey,
    PlanKey,
    RouterKey,
    StandbyKey,
    TopicKey,
    TopicPartition,
    decode_segment,
    encode_segment,
)
from assigner.model.names import check_name, org_and_group, qualified_group


def is_name(text: str) -> bool:
    try:
        return bool(check_name("name", text))
    except InvalidName:
        return False


NAMES = st.text(min_size=1, max_size=60).filter(is_name)
PARTITIONS = st.builds(TopicPartition, NAMES, st.integers(0, 999_999_999))


@given(NAMES)
def test_any_name_is_decoded_from_its_segment(name: str) -> None:
    segment = encode_segment(name)
    assert decode_segment(segment) == name
    assert "/" not in segment
    assert "~" not in segment
    assert segment.isascii()


@given(NAMES, NAMES)
def test_distinct_names_have_distinct_segments(one: str, other: str) -> None:
    assert (encode_segment(one) == encode_segment(other)) == (one == other)


@given(NAMES, NAMES, NAMES, PARTITIONS)
def test_every_key_of_a_group_is_read_back_as_what_it_is(group: str, name: str, topic: str, tp: TopicPartition) -> None:
    keys = Keys().group(group)
    assert keys.parse(keys.consumer(name)) == ConsumerKey(name)
    assert keys.parse(keys.assignment(tp)) == AssignmentKey(tp)
    assert keys.parse(keys.handoff(tp)) == HandoffKey(tp)
    assert keys.parse(keys.standby(tp)) == StandbyKey(tp)
    assert keys.parse(keys.topic(topic)) == TopicKey(topic)
    assert keys.parse(keys.router(name)) == RouterKey(name)
    assert keys.parse(keys.ack(tp, name)) == AckKey(tp, name)
    assert keys.parse(keys.options) == OptionsKey()
    assert keys.parse(keys.plan) == PlanKey()
    assert keys.parse(keys.leader) == LeaderKey()


@given(NAMES, NAMES)
def test_no_group_lies_within_another(one: str, other: str) -> None:
    keys = Keys()
    if one != other:
        assert not keys.group(one).prefix.startswith(keys.group(other).prefix)


@given(NAMES)
def test_no_group_can_collide_with_our_own_branches(group: str) -> None:
    keys, tp = Keys(), TopicPartition("t", 0)
    prefix = keys.group(group).prefix
    own = [keys.instances, keys.groups, keys.offset(group, tp), keys.history(group), keys.loads(group)]
    for branch in own:
        assert branch.startswith(f"{DEFAULT_ROOT}~")
        assert not branch.startswith(prefix)
        assert not prefix.startswith(branch)


@given(NAMES, NAMES)
def test_loads_of_nodes_and_of_topics_have_distinct_keys_in_the_groups_branch(group: str, topic: str) -> None:
    keys = Keys()
    several = [keys.node_loads(group), keys.topic_loads(group, topic), keys.topic_loads(group, topic, 1)]
    assert len(set(several)) == 3
    assert all(key.startswith(keys.loads(group)) for key in several)


@given(NAMES, NAMES, PARTITIONS, PARTITIONS)
def test_offsets_of_distinct_partitions_have_distinct_keys(
    one: str, other: str, tp: TopicPartition, another: TopicPartition
) -> None:
    keys = Keys()
    assert (keys.offset(one, tp) == keys.offset(other, another)) == ((one, tp) == (other, another))


def test_the_layout_is_the_one_that_upstream_left_behind() -> None:
    keys, tp = Keys().group("orders"), TopicPartition("events", 12)
    assert keys.consumer("pod-1") == "/kafka-assigner/orders/consumers/pod-1"
    assert keys.assignment(tp) == "/kafka-assigner/orders/assignments/events/12"
    assert keys.handoff(tp) == "/kafka-assigner/orders/handoffs/events/12"
    assert keys.topic("events") == "/kafka-assigner/orders/config/topics/events"
    assert keys.leader == "/kafka-assigner/orders/assigner/leader"


def test_the_default_group_may_live_where_upstream_knew_no_groups() -> None:
    keys = Keys(default_group="main", default_prefix="/kafka-assigner/")
    assert keys.group("main").consumer("c") == "/kafka-assigner/consumers/c"
    assert keys.group("other").consumer("c") == "/kafka-assigner/other/consumers/c"


@pytest.mark.parametrize("group", sorted(RESERVED_GROUPS))
def test_names_of_branches_are_refused_as_groups(group: str) -> None:
    with pytest.raises(InvalidName, match="branch of the store"):
        Keys().check_group(group)


@pytest.mark.parametrize("group", ["", ".", "..", "a\nb", "x" * 300])
def test_what_is_no_name_is_no_group(group: str) -> None:
    with pytest.raises(InvalidName):
        Keys().check_group(group)


def test_a_root_ends_with_a_slash() -> None:
    with pytest.raises(InvalidName, match="must end with"):
        Keys("/kafka-assigner")


@pytest.mark.parametrize(
    "key",
    [
        "/elsewhere/consumers/c",
        "/kafka-assigner/g/consumers/",
        "/kafka-assigner/g/consumers/a/b",
        "/kafka-assigner/g/assignments/t",
        "/kafka-assigner/g/assignments//1",
        "/kafka-assigner/g/assignments/t/x",
        "/kafka-assigner/g/assignments/t/-1",
        "/kafka-assigner/g/assignments/t/01",
        "/kafka-assigner/g/assignments/t/+1",
        "/kafka-assigner/g/assignments/t/\u0663",
        "/kafka-assigner/g/assignments/t/1000000000",
        "/kafka-assigner/g/assignments/t/1/2",
        "/kafka-assigner/g/handoffs/t/",
        "/kafka-assigner/g/handoff_acks/t/1/",
        "/kafka-assigner/g/handoff_acks/t/x/r",
        "/kafka-assigner/g/config/topics/",
        "/kafka-assigner/g/config/other",
        "/kafka-assigner/g/plan/x",
        "/kafka-assigner/g/assigner/other",
        "/kafka-assigner/g/",
        "/kafka-assigner/g/unknown/x",
    ],
)
def test_a_foreign_key_is_nothing_to_us(key: str) -> None:
    assert Keys().group("g").parse(key) is None


@given(st.text(max_size=60))
def test_no_key_whatsoever_upsets_the_reader(rest: str) -> None:
    keys = Keys().group("g")
    keys.parse(keys.prefix + rest)
    keys.parse(rest)


@given(
    st.sampled_from(["consumers", "assignments", "handoffs", "config/topics"]),
    st.lists(st.text(max_size=8), max_size=3),
)
def test_a_key_that_is_understood_is_the_one_we_would_write(branch: str, segments: list[str]) -> None:
    keys = Keys().group("g")
    key = keys.prefix + "/".join([branch, *map(encode_segment, segments)])
    match keys.parse(key):
        case ConsumerKey(name=name):
            assert keys.consumer(name) == key
        case AssignmentKey(tp=tp):
            assert keys.assignment(tp) == key
        case HandoffKey(tp=tp):
            assert keys.handoff(tp) == key
        case TopicKey(topic=topic):
            assert keys.topic(topic) == key
        case other:
            assert other is None


# --- classic Kafka groups ------------------------------------------------------------------------------------------

ORGS = st.one_of(st.just(""), NAMES.filter(lambda name: "/" not in name))


@given(NAMES)
def test_the_key_of_a_classic_group_is_read_back_as_its_group(group: str) -> None:
    keys = Keys()
    assert keys.parse_kafka_state(keys.kafka_state(group)) == group
    assert keys.parse_kafka_state(keys.kafka_members(group, 7)) is None
    assert keys.kafka_group(group).startswith(keys.kafka_groups(org_and_group(group)[0]))


@given(NAMES, NAMES)
def test_distinct_classic_groups_have_distinct_keys(one: str, other: str) -> None:
    assert (Keys().kafka_group(one) == Keys().kafka_group(other)) == (one == other)


@given(ORGS, NAMES)
def test_a_group_of_an_organization_is_under_its_prefix_and_under_no_others(org: str, name: str) -> None:
    group = qualified_group(org, name)
    assert org_and_group(group) == (org, name) or not org
    under = {one for one in ("", org, "~", "other") if Keys().kafka_group(group).startswith(Keys().kafka_groups(one))}
    assert under == {org_and_group(group)[0]}


@pytest.mark.parametrize("group", ["~", "/x", "x/", "/", "a//b", "a/b/c"])
def test_no_odd_name_reaches_another_groups_place(group: str) -> None:
    keys = Keys()
    assert keys.parse_kafka_state(keys.kafka_state(group)) == group
    assert keys.kafka_group(group).count("/") == keys.root.count("/") + 3
