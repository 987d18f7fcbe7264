"""The stored JSON: upstream's records are read and survive a rewrite, foreign fields too, and rubbish is named so."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assigner.errors import UnreadableRecord
from assigner.model.records import (
    ANY_SESSION,
    Assignment,
    Cause,
    Consumer,
    Controller,
    GroupOptions,
    Handoff,
    InstanceRecord,
    LeaderRecord,
    Phase,
    Plan,
    Status,
    Step,
    TopicConfig,
    decode,
    encode,
    stored,
)
from assigner.store import Entry

# As the upstream assigner writes them: compact, enums as bare names, `controller` only where there is one.
DRAINING_CONSUMER = (
    '{"consumer_name":"pod-1","status":"Draining","registered_at":1760000000,"generation":"7f9c",'
    '"controller":{"kind":"Deployment","name":"deduplicator"}}'
)
HANDOFF = (
    '{"topic":"events","partition":7,"old_owner":"pod-0","new_owner":"pod-1","phase":"Warming","started_at":1760000000}'
)
UPSTREAM: list[tuple[type[msgspec.Struct], str]] = [
    (Consumer, '{"consumer_name":"pod-0","status":"Ready","registered_at":1760000000,"generation":""}'),
    (Consumer, DRAINING_CONSUMER),
    (Assignment, '{"topic":"events","partition":7,"owner":"pod-0","status":"Active"}'),
    (Handoff, HANDOFF),
    (TopicConfig, '{"topic":"events","partition_count":64}'),
    (LeaderRecord, '{"holder":"assigner-0","lease_id":7587886473478}'),
]
KINDS = [Consumer, Assignment, Handoff, TopicConfig, GroupOptions, Plan, LeaderRecord, InstanceRecord]

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def entry_of(value: bytes) -> Entry:
    return Entry("k", value, 3, 5, 2, 9)


@pytest.mark.parametrize(("kind", "text"), UPSTREAM)
def test_a_record_of_upstream_is_read_and_rewritten_with_its_fields_unchanged(
    kind: type[msgspec.Struct], text: str
) -> None:
    record, extra = decode(kind, text.encode())
    assert extra == {}
    written = json.loads(encode(record, extra))
    fields = json.loads(text)
    assert {name: written[name] for name in fields} == fields


def test_what_upstream_did_not_know_has_its_meaning() -> None:
    consumer, _ = decode(Consumer, UPSTREAM[0][1].encode())
    assert (consumer.session, consumer.controller) == (ANY_SESSION, msgspec.UNSET)
    consumer, _ = decode(Consumer, DRAINING_CONSUMER.encode())
    assert (consumer.status, consumer.controller) == (Status.DRAINING, Controller("Deployment", "deduplicator"))
    assignment, _ = decode(Assignment, UPSTREAM[2][1].encode())
    assert (assignment.epoch, assignment.session) == (0, ANY_SESSION)


def test_a_controller_that_is_absent_stays_absent() -> None:
    consumer, extra = decode(Consumer, UPSTREAM[0][1].encode())
    assert "controller" not in json.loads(encode(consumer, extra))


@pytest.mark.parametrize(
    ("phase", "step"),
    [(Phase.WARMING, Step.WARMING), (Phase.READY, Step.READY), (Phase.COMPLETE, Step.COMPLETE)],
)
def test_a_handoff_without_a_step_stands_where_its_phase_says(phase: Phase, step: Step) -> None:
    text = HANDOFF.replace("Warming", phase.value)
    handoff, _ = decode(Handoff, text.encode())
    assert handoff.at == step


@pytest.mark.parametrize("step", list(Step))
def test_each_step_has_a_phase_that_upstream_knows(step: Step) -> None:
    assert step.phase in set(Phase)
    handoff = Handoff(topic="t", partition=0, old_owner="a", new_owner="b", phase=step.phase, step=step)
    again, _ = decode(Handoff, encode(handoff))
    assert (again, again.at) == (handoff, step)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), JSON_VALUES, max_size=4))
def test_fields_we_do_not_know_survive_a_rewrite(foreign: dict[str, Any]) -> None:
    ours = set(Assignment.__struct_encode_fields__)
    foreign = {name: value for name, value in foreign.items() if name not in ours}
    value = json.dumps({**foreign, "topic": "t", "partition": 1, "owner": "a"}).encode()
    was = stored(Assignment, entry_of(value))
    assert was.extra == foreign
    rewritten = json.loads(was.encode(msgspec.structs.replace(was.record, owner="b", epoch=2)))
    assert {name: rewritten[name] for name in foreign} == foreign
    assert (rewritten["owner"], rewritten["epoch"]) == ("b", 2)


def test_a_foreign_field_never_overrides_one_of_ours() -> None:
    assert json.loads(encode(Plan(generation=2), {"generation": 1, "other": 1}))["generation"] == 2


def test_a_stored_record_carries_what_a_compare_needs() -> None:
    was = stored(Plan, entry_of(encode(Plan(generation=4))))
    assert (was.key, was.create_revision, was.mod_revision, was.lease) == ("k", 3, 5, 9)
    assert was.record.generation == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"{",
        b"{}x",
        b"not json",
        b"\xff\xfe",
        b"\x00",
        b'{"a":1,}',
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_what_is_not_a_json_object_is_unreadable(kind: type[msgspec.Struct], value: bytes) -> None:
    with pytest.raises(UnreadableRecord, match=kind.__name__):
        decode(kind, value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Assignment, '{"topic":"t","partition":1}'),
        (Assignment, '{"topic":"t","partition":"1","owner":"a"}'),
        (Assignment, '{"topic":"t","partition":1.5,"owner":"a"}'),
        (Assignment, '{"topic":null,"partition":1,"owner":"a"}'),
        (Handoff, HANDOFF.replace("Warming", "Melting")),
        (Consumer, UPSTREAM[0][1].replace("Ready", "Sleeping")),
        (Consumer, '{"status":"Ready"}'),
        (TopicConfig, '{"topic":"t","partition_count":"many"}'),
    ],
)
def test_an_object_that_lacks_or_twists_a_field_is_unreadable(kind: type[msgspec.Struct], text: str) -> None:
    with pytest.raises(UnreadableRecord, match=kind.__name__):
        decode(kind, text.encode())


@given(st.sampled_from(KINDS), st.binary(max_size=60) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_whatsoever_upset_the_reader(kind: type[msgspec.Struct], value: bytes) -> None:
    try:
        record, _ = decode(kind, value)
    except UnreadableRecord:
        return
    assert isinstance(record, kind)


def test_causes_are_written_as_words() -> None:
    handoff = Handoff(topic="t", partition=0, old_owner="a", new_owner="b", cause=Cause.TOPIC_GREW)
    assert json.loads(encode(handoff))["cause"] == "topic_grew"
