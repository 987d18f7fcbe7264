"""The same requests of Kafka 4 members to Kafka's own broker and to a gateway, one by one: both give the same answers.

Each dialogue is a fresh group. `OURS` lists where a gateway answers otherwise on purpose, and why."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from assigner.gateway.codec import milliseconds
from assigner.gateway.topics import parse_topic_id
from tests.support.gateway.modern_dialogue import UNKNOWN_ID, ModernFront
from tests.support.gateway.modern_service import modern_service
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED

PARTITIONS = 3
ALL = tuple(range(PARTITIONS))


@pytest.fixture(scope="module")
def gateway(kafka_broker: KafkaBroker) -> Iterator[str]:
    with modern_service(kafka_broker.bootstrap, ttl=30.0, interval=1.0) as service:
        yield service.bootstrap


@pytest.fixture(scope="module")
def topic(kafka_broker: KafkaBroker) -> tuple[str, uuid.UUID]:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, PARTITIONS)
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap, **LOGGED})
    described = admin.describe_topics(TopicCollection([name]))[name].result(30)
    topic_id = parse_topic_id(str(described.topic_id))
    assert topic_id is not None
    return name, topic_id


def requests_that_no_group_takes(front: ModernFront) -> None:
    a = front.member("a")
    a.join("no timeout", rebalance_timeout=milliseconds(-1))
    a.join("no subscription", subscribed_topic_names=None, subscribed_topic_regex=None)
    a.join("has partitions", topic_partitions=a._topics((0,)))
    a.join("does not say what it has", topic_partitions=None)
    a.join("no instance id", instance_id="")
    a.join("no rack", rack_id="")
    a.join("an assignor that there is not", server_assignor="no-such-assignor")
    a.join("a pattern that is none", subscribed_topic_regex="(")
    a.beat("leaves as a static one without an instance id", -2)
    a.beat("an epoch that means nothing", -3)
    a.member_id = ""
    a.join("no member id")
    a.beat("leaves without a member id", -1)


def one_member(front: ModernFront) -> None:
    a = front.member("a")
    a.join()
    a.beat("says what it has", owned=a.has)
    a.full()
    a.join("joins again")
    a.beat("says what it has", owned=a.has)
    a.beat("is ahead", a.epoch + 1)
    a.beat("is far behind", 0 if a.epoch < 2 else a.epoch - 100, owned=a.has)
    stranger = front.member("b")
    stranger.beat("was never here", a.epoch)
    stranger.beat("leaves and was never here", -1)
    a.describe("is described")
    a.beat("leaves", -1, owned=(), subscribed_topic_names=())
    a.beat("heartbeats after it has left")


def a_subscription_that_changes(front: ModernFront) -> None:
    a = front.member("a")
    a.join()
    a.beat("says what it has", owned=a.has)
    a.beat("wants nothing any more", owned=a.has, rebalance_timeout=milliseconds(300_000), subscribed_topic_names=())


def offsets_of_a_member(front: ModernFront) -> None:
    a = front.member("a")
    a.join()
    a.beat("says what it has", owned=a.has)
    a.commit("commits")
    a.commit("commits, ahead", epoch=a.epoch + 1)
    a.commit("commits by the older protocol", 8)
    a.commit("commits by id", 10)
    a.commit("commits by an id that nobody knows", 10, topic_id=UNKNOWN_ID)
    a.commit("commits for a topic that there is not", topic="no-such-topic")
    a.commit("commits for a partition that there is not", partition=77)
    a.commit("commits as somebody else", member_id="stranger")
    a.commit("commits as nobody", member_id="", epoch=-1)
    a.fetch("fetches")
    a.fetch("fetches by id", 10)
    a.fetch("fetches as nobody", member=False)
    a.fetch("fetches what was not committed", partition=1)
    a.fetch("fetches, ahead", epoch=a.epoch + 1)
    a.fetch("fetches by an id that nobody knows", 10, topic_id=UNKNOWN_ID)
    a.fetch("fetches of an unknown group", group=f"{front.group}-unknown")
    b = front.member("b")
    b.epoch = a.epoch
    b.fetch("fetches and was never here")
    b.commit("commits and was never here")


def a_static_member(front: ModernFront) -> None:
    a = front.member("a", "one")
    a.join()
    a.beat("says what it has", owned=a.has)
    b = front.member("b", "one")
    b.join("takes a name that is held")
    a.beat("heartbeats with its instance id", instance_id="one")
    a.beat("heartbeats with an unknown instance id", instance_id="two")
    b.beat("heartbeats as one who does not have the name", a.epoch, instance_id="one")
    b.beat("leaves as one who does not have the name", -1, instance_id="one")
    a.beat("leaves for a while", -2, instance_id="one")
    b.join("takes the name")
    b.describe("is described")
    a.beat("is not the one any more", instance_id="one")
    b.beat("leaves for good", -1, instance_id="one")


def groups_that_there_are_not(front: ModernFront) -> None:
    a = front.member("a")
    a.beat("heartbeats", 5)
    a.beat("leaves", -1)
    a.commit("commits", epoch=5)
    a.describe("is described")
    a.fetch("fetches", epoch=5)
    a.fetch("fetches as nobody", member=False)


DIALOGUES = [
    requests_that_no_group_takes,
    one_member,
    a_subscription_that_changes,
    offsets_of_a_member,
    a_static_member,
    groups_that_there_are_not,
]
OURS: dict[str, dict[str, tuple[object, ...]]] = {
    "groups_that_there_are_not": {
        # 69 ends clients for good, and they would only have to join again.
        "heartbeats": ("UNKNOWN_MEMBER_ID",),
        "leaves": ("UNKNOWN_MEMBER_ID",),
        "commits": ("UNKNOWN_MEMBER_ID",),
    },
}


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda dialogue: dialogue.__name__)
def test_both_say_the_same(
    dialogue: Callable[[ModernFront], None], kafka_broker: KafkaBroker, gateway: str, topic: tuple[str, uuid.UUID]
) -> None:
    group = f"{dialogue.__name__}-{uuid.uuid4().hex[:8]}"
    said = []
    for bootstrap in (kafka_broker.bootstrap, gateway):
        front = ModernFront(bootstrap, group, topic[0])
        front.topic_id = topic[1]
        try:
            front.until_ready()
            dialogue(front)
        finally:
            front.close()
        said.append(front.notes)
    ours = OURS.get(dialogue.__name__, {})
    expected = [
        (*note[:2], *ours[note[1]], *note[2 + len(ours[note[1]]) :]) if note[1] in ours else note for note in said[0]
    ]
    assert said[1] == expected
