"""Kafka's topics by name and by id."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence

import pytest

from assigner.core.group import GroupState
from assigner.errors import SourceUnavailable
from assigner.gateway import topics as module
from assigner.gateway.topics import KafkaTopic, KafkaTopics, parse_topic_id
from assigner.model.keys import Keys
from assigner.model.records import TopicConfig, encode
from assigner.store import Entry, PutEvent
from tests.support.gateway.wired import SetClock

FIRST, SECOND = uuid.UUID(int=2**127 + 1), uuid.UUID(int=2**127 + 2)


def test_a_topic_is_known_both_ways() -> None:
    topics = KafkaTopics(SetClock())
    topics.learn([KafkaTopic("t", FIRST), KafkaTopic("old")])

    assert (topics.id_of(None, "t"), topics.name_of(None, FIRST)) == (FIRST, "t")
    assert (topics.id_of(None, "old"), topics.name_of(None, SECOND)) == (None, None)


def test_a_topic_that_was_made_again_has_another_id() -> None:
    topics = KafkaTopics(SetClock())
    topics.learn([KafkaTopic("t", FIRST)])
    topics.learn([KafkaTopic("t", SECOND)])

    assert topics.name_of(None, FIRST) is None
    assert topics.id_of(None, "t") == SECOND


def test_those_seen_the_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOPICS", 3)
    topics = KafkaTopics(SetClock())
    topics.learn(KafkaTopic(f"t{number}", uuid.UUID(int=number)) for number in range(1, 6))

    assert len(topics) == 3
    assert topics.name_of(None, uuid.UUID(int=1)) is None
    assert topics.name_of(None, uuid.UUID(int=5)) == "t5"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (base64.urlsafe_b64encode(FIRST.bytes).decode().rstrip("="), FIRST),
        (str(FIRST), FIRST),
        ("", None),
        ("no id", None),
        ("!" * 22, None),
    ],
)
def test_ids_on_record_have_two_spellings(text: str, expected: uuid.UUID | None) -> None:
    assert parse_topic_id(text) == expected


def test_a_groups_own_topics_are_known_without_brokers() -> None:
    keys = Keys("/r/").group("g")
    state = GroupState(keys)
    record = encode(TopicConfig(topic="t", partition_count=3, topic_id=str(FIRST)))
    state.apply(PutEvent(Entry(keys.topic("t"), record, 1, 1, 1, 0)))
    topics = KafkaTopics(SetClock())

    assert topics.id_of(state, "t") == FIRST
    assert topics.name_of(state, FIRST) == "t"
    assert topics.name_of(state, SECOND) is None

    topics.learn([KafkaTopic("t", SECOND)])
    assert topics.id_of(state, "t") == FIRST, "what it has assigned is of that one"
    assert topics.name_of(state, SECOND) == "t"


async def test_the_brokers_are_asked_once_in_a_while() -> None:
    clock, asked = SetClock(), list[int]()

    async def list_topics() -> Sequence[KafkaTopic]:
        asked.append(1)
        return [KafkaTopic("t", FIRST)]

    topics = KafkaTopics(clock, list_topics)
    assert await topics.current() == frozenset({"t"})
    await topics.know(None, [FIRST])
    await topics.know(None, [SECOND])
    assert len(asked) == 1
    clock.time += 2
    await topics.know(None, [SECOND])
    assert len(asked) == 2


async def test_brokers_that_are_away_leave_an_id_unknown() -> None:
    async def list_topics() -> Sequence[KafkaTopic]:
        raise SourceUnavailable("away")

    topics = KafkaTopics(SetClock(), list_topics)
    await topics.know(None, [FIRST])
    assert topics.name_of(None, FIRST) is None
    with pytest.raises(SourceUnavailable):
        await topics.current()


def test_partitions_are_known_as_far_as_they_were_listed() -> None:
    topics = KafkaTopics(SetClock())
    topics.learn([KafkaTopic("t", FIRST, 2), KafkaTopic("of a broker without ids", None, 1)])

    assert [topics.has("t", number) for number in (-1, 0, 1, 2)] == [False, True, True, False]
    assert topics.has("of a broker without ids", 0)
    assert not topics.has("another", 0)


def test_a_topic_that_grew_has_its_new_partitions() -> None:
    topics = KafkaTopics(SetClock())
    topics.learn([KafkaTopic("t", FIRST, 2)])
    topics.learn([KafkaTopic("t", FIRST, 5)])

    assert topics.has("t", 4)


def test_no_more_partition_counts_are_kept_than_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOPICS", 3)
    topics = KafkaTopics(SetClock())
    topics.learn(KafkaTopic(f"t{number}", None, 1) for number in range(1, 6))

    assert [topics.has(f"t{number}", 0) for number in range(1, 6)] == [False, False, True, True, True]


async def test_a_topic_is_gone_when_two_lists_some_seconds_apart_lack_it() -> None:
    clock, listed = SetClock(), [KafkaTopic("t", FIRST), KafkaTopic("u", SECOND)]

    async def list_topics() -> Sequence[KafkaTopic]:
        return listed

    topics = KafkaTopics(clock, list_topics)
    assert await topics.current() == frozenset({"t", "u"})
    listed = []
    for _ in range(2):
        clock.time += 1
        assert await topics.current() == frozenset({"t", "u"}), "a broker that has just started knows less"
    clock.time += 5
    assert await topics.current() == frozenset()
