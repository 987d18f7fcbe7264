"""The bytes of subscriptions and assignments: the same as another implementation's, and harmless whatever they are."""

from __future__ import annotations

import importlib
import io
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

from assigner.core.kafka_groups.classic.consumer_protocol import (
    ConsumerAssignment,
    Subscription,
    Unreadable,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)

VERSIONS = range(4)
names = st.text(max_size=8)
numbers = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4).map(tuple)
partitions = st.lists(st.tuples(names, numbers), max_size=3).map(tuple)
data = st.none() | st.binary(max_size=8)


@st.composite
def subscriptions(draw: st.DrawFn) -> Subscription:
    version = draw(st.sampled_from(VERSIONS))
    return Subscription(
        topics=tuple(draw(st.lists(names, max_size=4))),
        user_data=draw(data),
        owned=draw(partitions) if version >= 1 else (),
        generation=draw(st.integers(-1, 2**31 - 1)) if version >= 2 else -1,
        rack=draw(st.none() | names) if version >= 3 else None,
        version=version,
    )


assignments = st.builds(ConsumerAssignment, partitions=partitions, user_data=data, version=st.sampled_from(VERSIONS))


def theirs(kind: str, version: int) -> Any:
    return importlib.import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")


def by_kio(entity: Any, version: int) -> bytes:
    """Encode as another implementation does. The version comes before the message."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return version.to_bytes(2, "big") + buffer.getvalue()


@given(subscriptions())
def test_subscriptions_are_encoded_as_by_another_implementation(ours: Subscription) -> None:
    module = theirs("subscription", ours.version)
    fields: dict[str, Any] = {"topics": ours.topics, "user_data": ours.user_data}
    if ours.version >= 1:
        owned = module.TopicPartition
        fields["owned_partitions"] = tuple(
            owned(topic=topic, partitions=tuple(map(i32, numbers_))) for topic, numbers_ in ours.owned
        )
    if ours.version >= 2:
        fields["generation_id"] = i32(ours.generation)
    if ours.version >= 3:
        fields["rack_id"] = ours.rack
    encoded = by_kio(module.ConsumerProtocolSubscription(**fields), ours.version)

    assert encode_subscription(ours) == encoded
    assert decode_subscription(encoded) == ours
    assert subscribed_topics([encoded]) == frozenset(ours.topics)


@given(assignments)
def test_assignments_are_encoded_as_by_another_implementation(ours: ConsumerAssignment) -> None:
    module = theirs("assignment", ours.version)
    entity = module.ConsumerProtocolAssignment(
        assigned_partitions=tuple(
            module.TopicPartition(topic=topic, partitions=tuple(map(i32, numbers_)))
            for topic, numbers_ in ours.partitions
        ),
        user_data=ours.user_data,
    )
    encoded = by_kio(entity, ours.version)

    assert encode_assignment(ours) == encoded
    assert decode_assignment(encoded) == ours
    decoded, _ = entity_reader(module.ConsumerProtocolAssignment)(encode_assignment(ours), 2)
    assert decoded == entity


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(noise: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        with suppress(Unreadable):
            decode(noise)
    subscribed_topics([noise])


@given(subscriptions(), st.data())
def test_a_subscription_that_is_cut_off_or_changed_is_read_or_refused(ours: Subscription, draw: st.DataObject) -> None:
    encoded = bytearray(encode_subscription(ours))
    encoded[draw.draw(st.integers(0, len(encoded) - 1))] = draw.draw(st.integers(0, 255))
    cut = bytes(encoded[: draw.draw(st.integers(0, len(encoded)))])

    for one in (bytes(encoded), cut):
        with suppress(Unreadable):
            decode_subscription(one)


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\0", id="half a version"),
        pytest.param(b"\xff\xff" + bytes(8), id="a version below 0"),
        pytest.param(b"\0\0" + b"\x7f\xff\xff\xff", id="more topics than bytes"),
        pytest.param(b"\0\0" + b"\xff\xff\xff\xff", id="topics that are null"),
        pytest.param(b"\0\0" + b"\0\0\0\1" + b"\xff\xff" + bytes(4), id="a topic that is null"),
        pytest.param(b"\0\0" + b"\0\0\0\1" + b"\0\2\xc3\x28" + b"\xff" * 4, id="a topic that is not UTF-8"),
        pytest.param(b"\0\0" + b"\0\0\0\0" + b"\xff\xff\xff\xfe", id="a length below -1"),
        pytest.param(b"\0\1" + bytes(4) + b"\xff" * 4 + b"\x10\0\0\0", id="more owned partitions than bytes"),
    ],
)
def test_malformed_subscriptions_are_refused(noise: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_subscription(noise)


def test_a_version_of_the_future_is_read_as_the_latest_that_is_known() -> None:
    ours = Subscription(topics=("t",), owned=(("t", (1,)),), generation=4, rack="r")
    future = b"\0\7" + encode_subscription(ours)[2:] + b"what version 7 adds"

    read = decode_subscription(future)

    assert (read.topics, read.owned, read.generation, read.rack) == (ours.topics, ours.owned, 4, "r")


def test_topics_are_known_only_if_all_subscriptions_can_be_read() -> None:
    one, two = (encode_subscription(Subscription(topics=topics)) for topics in (("a", "b"), ("b", "c")))

    assert subscribed_topics([one, two]) == frozenset({"a", "b", "c"})
    assert subscribed_topics([one, b"?"]) is None
    assert subscribed_topics([]) == frozenset()
