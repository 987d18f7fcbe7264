"""The Kafka source where no Kafka is needed."""

from __future__ import annotations

import sys

import pytest

from assigner.errors import InvalidInput
from assigner.topics import KafkaSource, TopicUnavailable


async def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(InvalidInput, match=r"pip install '\.\[kafka\]'"):
        await KafkaSource("127.0.0.1:9092").describe(["t"])


async def test_a_property_that_librdkafka_refuses_is_named() -> None:
    with pytest.raises(InvalidInput, match=r'refused: No such configuration property: "no\.such"'):
        await KafkaSource("127.0.0.1:9092", {"no.such": "1"}).describe(["t"])


def test_no_servers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="name at least one as host:port"):
        KafkaSource(" ")


async def test_names_that_kafka_can_not_have_are_answered_without_it() -> None:
    source = KafkaSource("127.0.0.1:1")
    answers = await source.describe(["", "a b", "x" * 300])
    assert {type(answer) for answer in answers.values()} == {TopicUnavailable}
    await source.aclose()


async def test_no_topics_need_no_answer() -> None:
    source = KafkaSource("127.0.0.1:1")
    assert await source.describe([]) == {}
    await source.aclose()
