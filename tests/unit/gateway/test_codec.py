"""The gateway's codec: whatever a client sends is decoded or refused, and nothing it sends reaches kio unchecked."""

from __future__ import annotations

import struct
import uuid
from random import Random
from typing import Any

import pytest
from kio.static.constants import EntityType

from assigner.gateway.checks import MOST_ELEMENTS, Malformed, checked
from assigner.gateway.codec import (
    NO_TIME,
    consumer_heartbeat_answer,
    decode_request,
    decode_response,
    encode,
    encode_answer,
    error_code,
    heartbeat_answer,
    make,
    milliseconds,
    nested,
    request_class,
    response_class,
)
from tests.support.gateway.entities import make_entity, versions_of

# What the gateway decodes when a client sends it.
DECODED = (8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 36, 42, 47, 68, 69)


def partial_heartbeat(version: int = 1, **fields: Any) -> Any:
    values = {"group_id": "g", "member_id": "m", "member_epoch": 5, "topic_partitions": None, **fields}
    return request_class(68, version)(**values)


@pytest.mark.parametrize(("api", "version"), list(versions_of(EntityType.request)))
def test_every_request_of_every_version_is_decoded_as_it_was_sent(api: int, version: int) -> None:
    random = Random(api * 100 + version)
    for _ in range(5):
        request = make_entity(request_class(api, version), random)
        assert decode_request(api, version, encode(request)) == request


@pytest.mark.parametrize(("api", "version"), list(versions_of(EntityType.request)))
def test_a_request_that_ends_too_early_is_refused_wherever_it_ends(api: int, version: int) -> None:
    body = encode(make_entity(request_class(api, version), Random(api)))
    for end in range(min(len(body), 300)):
        with pytest.raises(Malformed):
            decode_request(api, version, body[:end])


def test_tagged_fields_that_nobody_knows_are_skipped_at_every_level() -> None:
    plain = encode(make(request_class(68, 1), **_with_partitions()))
    # The last two bytes: the tags of the only topic, and those of the request.
    assert plain.endswith(b"\0\0")
    tagged = plain[:-2] + b"\x02\x05\x02hi\x80\x01\0" + b"\x01\x07\x03abc"
    assert decode_request(68, 1, tagged) == decode_request(68, 1, plain)


def test_a_tagged_field_that_the_schema_knows_reaches_kio() -> None:
    request = make(request_class(1, 12), **_fetch(), cluster_id="abc")
    assert decode_request(1, 12, encode(request)).cluster_id == "abc"


def test_an_array_that_claims_more_elements_than_there_are_bytes_is_refused_before_memory_is_reserved() -> None:
    join = b"\0\1g" + struct.pack(">ii", 1, 1) + b"\0\0" + struct.pack(">h", -1) + b"\0\1c"
    with pytest.raises(Malformed, match="longer than the request"):
        decode_request(11, 5, join + struct.pack(">i", 2**31 - 1))
    with pytest.raises(Malformed, match="longer than the request"):
        decode_request(3, 12, b"\xff\xff\xff\xff\x0f")


def test_an_array_of_numbers_that_claims_more_than_there_is_is_refused() -> None:
    with pytest.raises(Malformed, match="longer than the request"):
        decode_request(9, 1, b"\0\1g" + struct.pack(">i", 1) + b"\0\1t" + struct.pack(">i", 2**30))


def test_a_request_of_too_many_elements_is_refused() -> None:
    groups = ("g",) * MOST_ELEMENTS
    body = encode(request_class(42, 2)(groups_names=groups))
    assert decode_request(42, 2, body).groups_names == groups
    with pytest.raises(Malformed, match="more than 50000 elements"):
        decode_request(42, 2, encode(request_class(42, 2)(groups_names=(*groups, "g"))))


def test_null_is_refused_where_the_schema_has_none() -> None:
    with pytest.raises(Malformed, match="null"):
        decode_request(42, 2, b"\0\0")
    with pytest.raises(Malformed, match="null"):
        decode_request(17, 1, b"\xff\xff")


def test_a_number_of_too_many_bytes_is_refused() -> None:
    with pytest.raises(Malformed, match="too many bytes"):
        decode_request(68, 1, b"\xff\xff\xff\xff\xff\x0f")


@pytest.mark.parametrize("version", [0, 1])
def test_a_name_that_is_not_utf_8_is_refused(version: int) -> None:
    body = encode(partial_heartbeat(version)).replace(b"m", b"\xff")
    with pytest.raises(Malformed):
        decode_request(68, version, body)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("member", ["m", "x" * 22, "x" * 126, "x" * 127, "x" * 300, "ä"])
def test_a_partial_heartbeat_is_the_same_by_the_short_way(version: int, member: str) -> None:
    request = partial_heartbeat(version, member_id=member)
    body = encode(request)
    assert decode_request(68, version, body) == request
    # A tagged field makes it take the long way.
    assert decode_request(68, version, body[:-1] + b"\x01\x09\0") == request


def test_what_only_ends_like_a_partial_heartbeat_is_read_as_what_it_is() -> None:
    for request in (
        partial_heartbeat(instance_id="i"),
        partial_heartbeat(member_epoch=-1),
        partial_heartbeat(group_id=""),
        make(request_class(68, 1), **_with_partitions()),
    ):
        assert decode_request(68, 1, encode(request)) == request


@pytest.mark.parametrize(("api", "version"), [one for one in versions_of(EntityType.response) if one[0] in DECODED])
def test_an_answer_is_framed_with_the_header_of_its_version(api: int, version: int) -> None:
    answer = make_entity(response_class(api, version), Random(api))
    frame = encode_answer(api, version, 77, answer)
    size, correlation = struct.unpack_from(">ii", frame)
    assert (size, correlation) == (len(frame) - 4, 77)
    tagged = type(answer).__flexible__ and api != 18
    assert decode_response(api, version, frame[9 if tagged else 8 :]) == answer


def test_answers_made_by_hand_are_those_that_kio_writes() -> None:
    for version in range(5):
        answer = make(response_class(12, version), throttle_time=NO_TIME, error_code=error_code(27))
        assert heartbeat_answer(version, 27) == encode(answer)
    for member in ("m", "x" * 126, "x" * 127):
        for version in (0, 1):
            answer = response_class(68, version)(
                throttle_time=NO_TIME,
                error_code=error_code(0),
                member_id=member,
                member_epoch=7,
                heartbeat_interval=milliseconds(5_000),
            )
            assert consumer_heartbeat_answer(member, 7, 5_000) == encode(answer)


def test_a_broker_s_answer_that_can_t_be_read_is_refused() -> None:
    with pytest.raises(Malformed):
        decode_response(10, 4, b"\0")


def test_random_bytes_are_refused_or_decoded_and_nothing_else() -> None:
    random = Random(7)
    decoded = 0
    for _ in range(5_000):
        api, version = random.choice([one for one in versions_of(EntityType.request) if one[0] in DECODED])
        body = bytearray(encode(make_entity(request_class(api, version), random)))
        for _ in range(random.randrange(4)):
            if body:
                body[random.randrange(len(body))] = random.randrange(256)
        try:
            decode_request(api, version, bytes(body))
            decoded += 1
        except Malformed:
            pass
    assert decoded > 1_000


def test_the_check_leaves_a_request_without_tags_as_it_is() -> None:
    body = encode(partial_heartbeat())
    assert checked(request_class(68, 1), body) is body


def _with_partitions() -> dict[str, Any]:
    topic = nested(request_class(68, 1), "TopicPartitions")(topic_id=uuid.UUID(int=1), partitions=(0, 1))
    return {"group_id": "g", "member_id": "m", "member_epoch": 5, "topic_partitions": (topic,)}


def _fetch() -> dict[str, Any]:
    made = make_entity(request_class(1, 12), Random(1))
    return {name: getattr(made, name) for name in made.__slots__ if name != "cluster_id"}
