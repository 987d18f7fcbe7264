"""A mixed group under load: Kafka clients and a gRPC consumer, joins, leaves, a kill, a freeze, a lost gateway.

    python -m tests.kafka_groups.mixed --seconds 60 --store memory|etcd|broker [--protocol classic] [--spark]

Prints what happened, what became of each record, and the faults, with which it exits with status 1. `broker` runs the
same course on Kafka's own group, for comparison; classic members form a group of Kafka clients alone.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.kafka_groups.checks import check, table
from tests.support.kafka_groups.course import Course, Stream
from tests.support.kafka_groups.members import Members, until
from tests.support.kafka_groups.scene import CONSUMER_TTL, TOPIC, Place, Scene

GROUP = "mixed"
JOINED_WITHIN = 60.0
FINISHED_WITHIN = 20.0
# Long enough for its partitions to be given to others.
FROZEN_FOR = CONSUMER_TTL + 4.0


class MixedGroup:
    """One course of events, stretched over the given seconds."""

    def __init__(self, scene: Scene, course: Course, seconds: float, protocol: str, with_spark: bool) -> None:
        self._scene = scene
        self._course = course
        self._members = course.members
        self._seconds = seconds
        self._protocol = protocol
        self._with_spark = with_spark
        self._later = 0.0
        self._is_mixed = protocol == "consumer" and scene.place is not Place.BROKER

    def run(self) -> None:
        members, bootstrap = self._members, self._scene.bootstrap
        first = members.confluent("confluent-1", bootstrap, self._protocol)
        self._joined("confluent-1")
        self._at(0.05)
        members.confluent("confluent-2", bootstrap, self._protocol)
        self._joined("confluent-2")
        self._at(0.12)
        members.java("java-1", bootstrap, self._protocol)
        self._joined("java-1")
        self._at(0.22)
        if self._is_mixed:
            members.assigner("grpc-1", self._scene.broker.bootstrap, self._scene.assigner_addresses)
            self._joined("grpc-1")
        elif self._protocol == "classic":
            # They know no other protocol, and try no bootstrap server again: the gateway that they know is not lost.
            members.kafka_python("kafka-python-1", self._scene.steady)
            members.aiokafka("aiokafka-1", self._scene.steady)
            self._joined("kafka-python-1")
            self._joined("aiokafka-1")
        else:
            members.java("java-2", bootstrap, self._protocol)
            self._joined("java-2")
        if self._with_spark and self._is_mixed:
            members.spark("spark-1", self._scene.broker.bootstrap, self._scene.assigner_addresses[0])
            until(lambda: members.all["spark-1"].processed(), 120.0, "the Spark query has records")
            self._course.tell("spark-1 joined")
            # A JVM and a first batch take their time: what follows waits for it.
            self._later = max(0.0, self._course.seconds - 0.3 * self._seconds)
        self._at(0.35)
        first.kill()
        self._course.tell("confluent-1 was killed")
        self._at(0.45)
        members.confluent("confluent-3", bootstrap, self._protocol)
        self._joined("confluent-3")
        self._at(0.55)
        members.all["java-1"].leave()
        self._course.tell("java-1 left")
        self._freeze("confluent-2", 0.62)
        self._lose_gateway(0.88)
        self._at(1.0)

    def _freeze(self, name: str, when: float) -> None:
        self._at(when)
        if self._seconds < 30:
            # There is no time for it to be missed.
            return
        member = self._members.all[name]
        member.freeze()
        self._course.tell(f"{name} was frozen")
        self._at(when, more=FROZEN_FOR)
        member.thaw(session=CONSUMER_TTL)
        self._course.tell(f"{name} was thawed")

    def _lose_gateway(self, when: float) -> None:
        self._at(when)
        if self._scene.place is not Place.ETCD:
            return
        gateway = self._scene.gateways[0]
        gateway.kill()
        self._course.tell(f"{gateway.name} was killed")
        gateway.start()
        self._course.tell(f"{gateway.name} is back")

    def _joined(self, name: str) -> None:
        member = self._members.all[name]
        took = until(lambda: member.owned() or not member.is_running, JOINED_WITHIN, f"{name} has partitions")
        assert member.is_running, f"{name} ended\n{member.log_tail()}"
        self._course.tell(f"{name} joined, and had partitions after {took:.1f} s")

    def _at(self, share: float, more: float = 0.0) -> None:
        self._course.sleep_until(share * self._seconds + more + self._later)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    directory = Path(options.keep or tempfile.mkdtemp(prefix="mixed-group-"))
    try:
        return _run(options, directory)
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)


def _run(options: argparse.Namespace, directory: Path) -> int:
    with Scene(Place(options.store), directory, options.partitions) as scene:
        members = Members(directory / "members", GROUP, TOPIC, session=CONSUMER_TTL)
        stream = Stream(scene.broker.bootstrap, TOPIC, options.partitions, options.rate)
        with Course(stream, members) as course:
            try:
                MixedGroup(scene, course, options.seconds, options.protocol, options.spark).run()
            except AssertionError:
                print("\n".join([*course.story, *course.complaints()[:10], scene.logs()]))
                raise
            ledger = course.finish(FINISHED_WITHIN)
    findings = check(ledger)
    print("\n".join(course.story))
    print(f"\n{table(findings)}\n")
    for name, counted in course.counts().items():
        print(f"{name}: {', '.join(f'{count} {what}' for what, count in counted.items())}")
    print("\n".join(course.complaints()[:20]))
    for fault in findings.faults:
        print(f"FAULT: {fault}")
    return 1 if findings.faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.kafka_groups.mixed", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--store", choices=[place.value for place in Place], default=Place.ETCD.value)
    parser.add_argument("--protocol", choices=("consumer", "classic"), default="consumer")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--rate", type=float, default=200.0, help="records per second")
    parser.add_argument("--spark", action="store_true", help="with a Spark query in the group")
    parser.add_argument("--keep", metavar="DIR", help="keep all logs there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
