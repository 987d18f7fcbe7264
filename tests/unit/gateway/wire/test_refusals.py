"""Refusals: every write and every change has an answer that says so, for each thing that was asked for."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from kio.static.constants import EntityType

from assigner.gateway.codec import decode_response, encode, make, nested, request_class, response_class
from assigner.gateway.wire.refusals import refusal
from assigner.gateway.wire.versions import CHANGES, KNOWN, READS, WRITES
from tests.support.gateway.entities import make_entity, versions_of

REFUSED = [
    (api, version)
    for api, version in versions_of(EntityType.request)
    if api in WRITES | CHANGES and KNOWN[api][0] <= version <= KNOWN[api][1]
]


def errors_of(value: Any) -> set[int]:
    """All error codes in an answer."""
    if isinstance(value, tuple):
        return set().union(*map(errors_of, value)) if value else set()
    if not hasattr(value, "__dataclass_fields__"):
        return set()
    found: set[int] = set()
    for name, field in value.__dataclass_fields__.items():
        inner = getattr(value, name)
        if field.metadata.get("kafka_type") == "error_code":
            found.add(int(inner))
        found |= errors_of(inner)
    return found


@pytest.mark.parametrize(("api", "version"), REFUSED)
def test_a_write_and_a_change_are_refused_in_every_version(api: int, version: int) -> None:
    for seed in range(10):
        request = make_entity(request_class(api, version), Random(seed))
        answer = refusal(api, version, request)
        assert decode_response(api, version, encode(answer)) == answer
        found = errors_of(answer)
        assert found <= {29 if api == 0 else 31}
        asked = any(isinstance(getattr(request, name), tuple) and getattr(request, name) for name in request.__slots__)
        assert found or not asked or _names_no_partition(request)


def _names_no_partition(request: Any) -> bool:
    """Whether the things that were asked for are empty themselves."""
    return not any(
        isinstance(getattr(one, name), tuple) and getattr(one, name)
        for field in request.__slots__
        if isinstance(getattr(request, field), tuple)
        for one in getattr(request, field)
        if hasattr(one, "__slots__")
        for name in one.__slots__
    )


def test_each_partition_of_a_produce_is_refused_by_its_topic() -> None:
    schema = request_class(0, 9)
    topic, partition = nested(schema, "TopicProduceData"), nested(schema, "PartitionProduceData")
    made = make_entity(schema, Random(1))
    asked = make(
        schema,
        transactional_id=None,
        acks=1,
        timeout=made.timeout,
        topic_data=(topic(name="t", partition_data=tuple(partition(index=n, records=b"x") for n in (3, 5))),),
    )
    answer = refusal(0, 9, asked)
    assert answer is not None
    assert [
        (one.name, [(int(p.index), int(p.error_code)) for p in one.partition_responses]) for one in answer.responses
    ] == [("t", [(3, 29), (5, 29)])]
    assert {int(p.base_offset) for p in answer.responses[0].partition_responses} == {-1}


@pytest.mark.parametrize("version", [1, 5, 6])
def test_each_topic_that_is_to_be_deleted_is_named(version: int) -> None:
    schema = request_class(20, version)
    timeout = make_entity(schema, Random(1)).timeout
    if version < 6:
        asked = make(schema, topic_names=("a", "b"), timeout=timeout)
    else:
        state = nested(schema, "DeleteTopicState")
        asked = make(schema, topics=tuple(state(name=name, topic_id=None) for name in "ab"), timeout=timeout)
    answer = refusal(20, version, asked)
    assert answer is not None
    assert [(one.name, int(one.error_code)) for one in answer.responses] == [("a", 31), ("b", 31)]


def test_users_are_named_whatever_is_to_happen_to_them() -> None:
    schema = request_class(51, 0)
    deletion, upsertion = nested(schema, "ScramCredentialDeletion"), nested(schema, "ScramCredentialUpsertion")
    asked = schema(
        deletions=(deletion(name="a", mechanism=1),),
        upsertions=(upsertion(name="b", mechanism=1, iterations=4096, salt=b"", salted_password=b""),),
    )
    answer = refusal(51, 0, asked)
    assert answer is not None
    assert [(one.user, int(one.error_code)) for one in answer.results] == [("a", 31), ("b", 31)]


@pytest.mark.parametrize("api", sorted(READS))
def test_a_read_has_no_such_answer(api: int) -> None:
    assert refusal(api, KNOWN[api][1], None) is None
    assert response_class(api, KNOWN[api][1]) is not None
