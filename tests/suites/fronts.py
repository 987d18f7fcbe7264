"""Where the clients of a suite connect: to a broker itself, or to a gateway in front of it.

As a program, `python -m tests.suites.fronts DIRECTORY BOOTSTRAP` starts a gateway in front of those brokers, prints
`ready ADDRESS`, and ends it when its input ends: so Kafka's own tests, which start their clusters, get theirs.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.support.kafka_groups.gateway_process import GatewayProcess
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED

SETTINGS = {
    # Kafka's own default for new groups, and its quickest answer to one that joins.
    "gateway.initial_rebalance_delay": 0.0,
    # What the brokers of Kafka's own tests have; some of them depend on it.
    "gateway.heartbeat_interval": 0.5,
    # The suites' brokers allow sessions as short as their tests want.
    "gateway.min_session_timeout": 0.1,
    # A broker knows at once that a topic has grown; the assigner looks.
    "kafka.refresh_interval": 1.0,
    "group.handoff_mode": "exclusive",
    "group.debounce": 0.1,
    "log.level": "info",
}
"""What a gateway is started with for suites."""

_BROKER = {
    # What the suites' own brokers have.
    "auto.create.topics.enable": "true",
    "num.partitions": "4",
    "delete.topic.enable": "true",
    "offset.metadata.max.bytes": "4096",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.session.timeout.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
}


_TOPIC_WITHIN = 60.0


class Side(str, Enum):
    BROKER = "broker"
    GATEWAY = "gateway"


@contextmanager
def served(side: Side, directory: Path) -> Iterator[str]:
    """A broker of its own, and, on that side, a gateway in front of it; the bootstrap servers for clients."""
    directory.mkdir(parents=True, exist_ok=True)
    # What an earlier run has left there belongs to another cluster.
    shutil.rmtree(directory / "broker", ignore_errors=True)
    with KafkaBroker(directory / "broker", node_id=0, settings=_BROKER) as broker:
        _make_internal_topic(broker.bootstrap)
        if side is Side.BROKER:
            yield broker.bootstrap
            return
        gateway = GatewayProcess(directory, broker.bootstrap, settings=SETTINGS)
        try:
            gateway.start()
            yield gateway.bootstrap
        finally:
            gateway.stop()


def _make_internal_topic(bootstrap: str) -> None:
    """Have the broker make the topic of its groups' offsets, which tests read: no group behind a gateway is its own."""
    asking = Consumer({"bootstrap.servers": bootstrap, "group.id": "the-first", **LOGGED})
    deadline = time.monotonic() + _TOPIC_WITHIN
    while True:
        try:
            asking.committed([TopicPartition("none", 0)], timeout=_TOPIC_WITHIN)
            break
        except KafkaException as not_yet:
            # The topic is there, and its partitions have no leader yet.
            if time.monotonic() > deadline:
                raise OSError(f"the brokers at {bootstrap} have no topic of offsets: {not_yet}") from not_yet
            time.sleep(0.1)
    asking.close()


def main(directory: str, upstream: str) -> None:
    own = Path(tempfile.mkdtemp(dir=directory, prefix="gateway-"))
    gateway = GatewayProcess(own, upstream, settings=SETTINGS)
    try:
        _make_internal_topic(upstream)
        gateway.start()
        print(f"ready {gateway.bootstrap}", flush=True)
        sys.stdin.read()
    finally:
        gateway.stop(5.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
