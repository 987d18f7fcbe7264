"""The measurements, one function for each; each returns the figures of one subject by name."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.gateway.raw import COMMIT, HEARTBEAT, MODERN, Connection, classic_group, coordinator, joined
from bench.gateway.subjects import Subject
from tests.support.servers.mock_kafka import LOGGED

PARTITIONS = 12
WITHIN = 60.0
_IN_FLIGHT = 8
"""Requests of one connection, where as many as possible are wanted."""

Figures = dict[str, float]


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


# --- joins and leaves --------------------------------------------------------------------------------------------


class Client:
    """An unmodified consumer of Kafka 4's protocol on a thread of its own, with the times of what it was told."""

    def __init__(self, bootstrap: str, group: str, topic: str, name: str) -> None:
        self.began = time.perf_counter()
        self.told: list[tuple[float, int]] = []
        """(when, how many partitions it has)."""
        self._count = 0
        self._left = threading.Event()
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "client.id": name,
                "enable.auto.commit": False,
                **LOGGED,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _assigned(self, _: Any, partitions: list[Any]) -> None:
        # Cooperative: it is told what it gets.
        self._count += len(partitions)
        self.told.append((time.perf_counter(), self._count))
        self._consumer.incremental_assign(partitions)

    def _revoked(self, _: Any, partitions: list[Any]) -> None:
        self._count -= len(partitions)
        self.told.append((time.perf_counter(), self._count))
        self._consumer.incremental_unassign(partitions)

    def _run(self) -> None:
        while not self._left.is_set():
            self._consumer.poll(0.02)
        self._consumer.close()

    def when(self, count: int, since: float) -> float:
        """When it had that many partitions, at the earliest after `since`."""
        until = time.perf_counter() + WITHIN
        while time.perf_counter() < until:
            for at, has in list(self.told):
                if has == count and at >= since:
                    return at
            time.sleep(0.005)
        raise TimeoutError(f"not {count} partitions within {WITHIN:g} s: {self.told}")

    def leave(self) -> float:
        began = time.perf_counter()
        self._left.set()
        return began

    def wait(self) -> None:
        self._thread.join(WITHIN)


def joins_and_leaves(subject: Subject, topic: str, rounds: int) -> Figures:
    """A second client joins one at work and leaves again, at the default heartbeat interval of 5 s."""
    group = fresh("joins")
    first = Client(subject.bootstrap, group, topic, "first")
    first.when(PARTITIONS, 0.0)
    joins, leaves = [], []
    for number in range(rounds):
        # Not in step with the first one's heartbeats.
        time.sleep(1.0 + number % 5)
        second = Client(subject.bootstrap, group, topic, f"second-{number}")
        joins.append(second.when(PARTITIONS // 2, 0.0) - second.began)
        time.sleep(1.0 + (number * 2) % 5)
        left = second.leave()
        leaves.append(first.when(PARTITIONS, left) - left)
        second.wait()
    first.leave()
    first.wait()
    return {
        "join to partitions, median s": statistics.median(joins),
        "join to partitions, worst s": max(joins),
        "leave to partitions, median s": statistics.median(leaves),
        "leave to partitions, worst s": max(leaves),
    }


# --- heartbeats and commits --------------------------------------------------------------------------------------


Sending = tuple[Connection, int, Callable[[int], bytes]]
"""A connection, the API of its requests, and the body of the n-th one."""


def _in_turn(bodies: Sequence[bytes]) -> Callable[[int], bytes]:
    return lambda number: bodies[number % len(bodies)]


async def _rate(
    subject: Subject, connections: Sequence[Sending], seconds: float, in_flight: int
) -> tuple[float, float]:
    """Requests per second, and per second of the subject's processor time."""
    done = 0
    over = asyncio.Event()

    async def sender(connection: Connection, api: int, make: Callable[[int], bytes]) -> None:
        nonlocal done
        number = 0
        while not over.is_set():
            number += 1
            await connection.send(api, make(number))
            done += 1

    tasks = [asyncio.ensure_future(sender(*one)) for one in connections for _ in range(in_flight)]
    # Until all of them are under way.
    await asyncio.sleep(0.2)
    before, began, cpu = done, time.perf_counter(), subject.cpu()
    await asyncio.sleep(seconds)
    count, took, busy = done - before, time.perf_counter() - began, subject.cpu() - cpu
    over.set()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return count / took, count / max(busy, 0.01)


async def heartbeats(subject: Subject, topic: str, seconds: float) -> Figures:
    """12 members that have nothing to say, on 4 connections, as fast as they are answered."""
    group = fresh("beats")
    address = await coordinator(subject.bootstrap, group)
    members = await joined(address, group, topic, PARTITIONS, PARTITIONS)
    shared = [await Connection.open(address, f"beats-{number}") for number in range(4)]
    beats = [member.partial() for member in members]
    sending = [(one, MODERN, _in_turn(beats[index::4])) for index, one in enumerate(shared)]
    _, modern = await _rate(subject, sending, seconds, _IN_FLIGHT)
    old = await classic_group(address, fresh("old-beats"), topic, PARTITIONS)
    sending = [(one.connection, HEARTBEAT, _in_turn([one.heartbeat()])) for one in old[:4]]
    _, classic = await _rate(subject, sending, seconds, _IN_FLIGHT)
    for connection in (*shared, *(one.connection for one in members), *(one.connection for one in old)):
        await connection.close()
    return {"heartbeats per CPU second, Kafka 4 members": modern, "heartbeats per CPU second, classic": classic}


async def commits(subject: Subject, topic: str, seconds: float) -> Figures:
    """One partition in each commit. 1 committer sends the next one when the last is answered; 32 do so side by side."""
    group, old_group = fresh("commits"), fresh("old-commits")
    address = await coordinator(subject.bootstrap, group)
    (member,) = await joined(address, group, topic, PARTITIONS, 1)
    (old,) = await classic_group(address, old_group, topic, 1)
    shared = [await Connection.open(address, f"commits-{number}") for number in range(32)]

    async def rate(make: Callable[[int, int], bytes], committers: int) -> float:
        sending = [(one, COMMIT, partial(make, index % PARTITIONS)) for index, one in enumerate(shared[:committers])]
        return (await _rate(subject, sending, seconds, 1))[0]

    found = {
        "commits per s, Kafka 4 member, 1 committer": await rate(member.commit, 1),
        "commits per s, Kafka 4 member, 32 committers": await rate(member.commit, 32),
        "commits per s, classic member, 1 committer": await rate(old.commit, 1),
        "commits per s, classic member, 32 committers": await rate(old.commit, 32),
    }
    for one in (*shared, member.connection, old.connection):
        await one.close()
    return found


async def storm(subject: Subject, topic: str, members: int) -> Figures:
    """So many classic members join at once; the delay for the first of them, 3 s, is part of it."""
    group = fresh("storm")
    address = await coordinator(subject.bootstrap, group)
    cpu, began = subject.cpu(), time.perf_counter()
    found = await classic_group(address, group, topic, members)
    took, busy = time.perf_counter() - began, subject.cpu() - cpu
    for one in found:
        await one.connection.close()
    return {f"{members} classic members join at once, s": took, f"{members} classic members, CPU s": busy}


# --- records -----------------------------------------------------------------------------------------------------


def records(subject: Subject, topic: str, megabytes: int, singles: int) -> Figures:
    """1 kB each: in bulk, and one at a time, where each waits for the ack of the one before."""
    value = b"x" * 1_000
    count = megabytes * 1_000
    producer: Any = Producer(
        {
            "bootstrap.servers": subject.bootstrap,
            "linger.ms": 5,
            "acks": 1,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 200_000,
            **LOGGED,
        }
    )
    producer.list_topics(topic, timeout=WITHIN)
    cpu, began = subject.cpu(), time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value=value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(WITHIN) == 0
    written = megabytes / (time.perf_counter() - began)
    consumer: Any = Consumer(
        {
            "bootstrap.servers": subject.bootstrap,
            "group.id": fresh("reads"),
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 65_536,
            **LOGGED,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    began, got = time.perf_counter(), 0
    while got < count:
        got += sum(one.error() is None for one in consumer.consume(10_000, 0.5))
    read = got / 1_000 / (time.perf_counter() - began)
    busy = subject.cpu() - cpu
    consumer.close()
    waits = _single(subject, topic, singles)
    return {
        "written, MB/s": written,
        "read, MB/s": read,
        "CPU s per GB, written and read": busy / (2 * megabytes) * 1_000,
        "one record and its ack, median ms": statistics.median(waits) * 1_000,
        "one record and its ack, p99 ms": sorted(waits)[int(len(waits) * 0.99)] * 1_000,
    }


def _single(subject: Subject, topic: str, singles: int) -> list[float]:
    producer: Any = Producer({"bootstrap.servers": subject.bootstrap, "linger.ms": 0, "acks": 1, **LOGGED})
    waits = []
    for number in range(singles + 50):
        began = time.perf_counter()
        producer.produce(topic, value=b"x" * 100, partition=0)
        producer.flush(WITHIN)
        if number >= 50:
            waits.append(time.perf_counter() - began)
    return waits
