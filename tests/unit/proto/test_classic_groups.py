"""What one end of a call says of a classic group is what the other end reads, for every message there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assigner.errors import InvalidInput, LimitReached
from assigner.model.kafka_groups import ClassicCommit, ClassicOffset, JoinAnswer, JoinRequest, KafkaError
from assigner.proto.classic_groups import (
    COMMIT,
    JOIN,
    METHODS,
    Method,
    carried,
    carrier,
    encoded,
    message_of,
    parsed,
)
from assigner.proto.runtime import DESCRIPTORS, message_class

NUMBERS = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
st.register_type_strategy(int, NUMBERS)
st.register_type_strategy(str, TEXTS)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@given(data=st.data())
def test_every_value_survives_the_wire(method: Method, data: st.DataObject) -> None:
    for name, kind in ((method.request, method.request_type), (method.answer, method.answer_type)):
        value = data.draw(st.from_type(kind))
        assert parsed(name, kind, encoded(name, value), 100) == value


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_message_has_the_fields_of_its_value_and_no_others(method: Method) -> None:
    for name, kind in ((method.request, method.request_type), (method.answer, method.answer_type)):
        assert tuple(message_class(name).DESCRIPTOR.fields_by_name) == kind.__struct_fields__


def test_every_call_of_the_service_has_its_values() -> None:
    [service] = [one for file in DESCRIPTORS for one in file.service if one.name == "KafkaGroups"]
    described = {(one.name, one.input_type, one.output_type) for one in service.method}
    prefix = ".kafka_assigner.v1."
    assert described == {(one.name, prefix + one.request, prefix + one.answer) for one in METHODS}


def test_null_is_not_empty() -> None:
    for metadata in (None, ""):
        offset = ClassicOffset(topic="t", partition=0, offset=1, metadata=metadata)
        commit = ClassicCommit(group="g", offsets=(offset,))
        assert parsed(COMMIT.request, ClassicCommit, encoded(COMMIT.request, commit), 100) == commit


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not a valid ClassicJoinRequest"):
        parsed(JOIN.request, JoinRequest, b"\xff\xff\xff", 100)


def test_a_code_that_nobody_knows_is_refused() -> None:
    message = message_of(JOIN.answer, JoinAnswer(error=KafkaError.NONE))
    message.error = 9_999
    with pytest.raises(InvalidInput, match="can't be read"):
        parsed(JOIN.answer, JoinAnswer, message.SerializeToString(), 100)


def test_a_list_that_is_too_long_is_refused_before_it_is_read() -> None:
    commit = ClassicCommit(group="g", offsets=tuple(ClassicOffset(topic="t", partition=n, offset=1) for n in range(11)))
    data = encoded(COMMIT.request, commit)
    assert parsed(COMMIT.request, ClassicCommit, data, 11) == commit
    with pytest.raises(LimitReached, match="offsets has 11 elements"):
        parsed(COMMIT.request, ClassicCommit, data, 10)


@given(TEXTS, TEXTS)
def test_any_organization_and_principal_travel_in_the_metadata(org: str, principal: str) -> None:
    metadata = carrier(org, principal)
    assert all(text.isascii() and text.isprintable() for text in metadata.values())
    assert carried(metadata) == (org, principal)
