"""What it costs to encode commands: `python -m bench.encoding` prints microseconds per partition, three ways.

One consumer is sent 10,000 partitions: owned ones as a list, owned ones packed by topic, and warms. The generated
classes, tags written by hand and protobuf's C runtime (what the server uses) take turns in the same run, and the best
of several repetitions counts, so that other load on the machine hits all three alike. Each must give the same bytes.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from assigner.model.commands import Commands, Warm
from assigner.model.keys import TopicPartition
from assigner.proto.kafka_assigner import v1
from assigner.server.services.assignment_encoding import Dialect, encode

PARTITIONS = 10_000
CHUNK = 500
T = TypeVar("T")

OWNED = tuple((TopicPartition("orders", number), 1000 + number) for number in range(PARTITIONS))
WARMS = tuple(Warm(tp, "0123456789abcdef", "old-owner", "joined") for tp, _ in OWNED)


class Case(msgspec.Struct, frozen=True):
    name: str
    ways: dict[str, Callable[[], bytes]]


def cases() -> list[Case]:
    owned, warms = Commands(assigned=OWNED), Commands(warms=WARMS)
    packed = Dialect(packed=True)
    return [
        _case("owned, listed", _generated_listed, _written_listed, lambda: _by_server(owned, Dialect())),
        _case("owned, packed", _generated_packed, _written_packed, lambda: _by_server(owned, packed)),
        _case("warms, in a batch", _generated_warms, _written_warms, lambda: _by_server(warms, packed)),
    ]


def _case(name: str, generated: Callable[[], bytes], written: Callable[[], bytes], c: Callable[[], bytes]) -> Case:
    return Case(name, {"generated classes": generated, "written by hand": written, "C runtime": c})


def measure(case: Case, repetitions: int) -> dict[str, float]:
    """Microseconds per partition, the best of so many repetitions."""
    first, *others = [way() for way in case.ways.values()]
    assert all(other == first for other in others), f"{case.name}: not the same bytes"
    best = dict.fromkeys(case.ways, float("inf"))
    for _ in range(repetitions):
        for name, way in case.ways.items():
            gc.collect()
            began = time.perf_counter()
            way()
            best[name] = min(best[name], (time.perf_counter() - began) * 1e6 / PARTITIONS)
    return best


# --- the C runtime, as the server uses it --------------------------------------------------------------------------


def _by_server(commands: Commands, dialect: Dialect) -> bytes:
    return b"".join(message for message in encode(commands, dialect) if message is not None)


# --- the generated classes -----------------------------------------------------------------------------------------


def _generated_listed() -> bytes:
    assigned = [v1.TopicPartition(topic=tp.topic, partition=tp.partition, epoch=epoch) for tp, epoch in OWNED]
    return bytes(v1.AssignmentCommand(assignment=v1.AssignmentUpdate(assigned=assigned)))


def _generated_packed() -> bytes:
    entries = [
        v1.TopicPartitions(topic="orders", partitions=[tp.partition for tp, _ in chunk], epochs=[e for _, e in chunk])
        for chunk in _chunks(OWNED, 10 * CHUNK)
    ]
    return bytes(v1.AssignmentCommand(assignment=v1.AssignmentUpdate(assigned_packed=entries)))


def _generated_warms() -> bytes:
    warms = [
        v1.WarmPartition(
            partition=v1.TopicPartition(topic=warm.tp.topic, partition=warm.tp.partition),
            current_owner=warm.current_owner,
            handoff_id=warm.handoff_id,
            cause=warm.cause,
        )
        for warm in WARMS
    ]
    return bytes(v1.AssignmentCommand(batch=v1.CommandBatch(warms=warms)))


# --- by hand: tags as literals, varints from a table, partitions from a cache --------------------------------------


def _written_listed() -> bytes:
    parts = [
        b"".join([_field(b"\x0a", _partition(tp, epoch)) for tp, epoch in chunk]) for chunk in _chunks(OWNED, CHUNK)
    ]
    return _field(b"\x0a", b"".join(parts))


def _written_packed() -> bytes:
    return _field(b"\x0a", b"".join(_written_groups()))


def _written_groups() -> Iterator[bytes]:
    for chunk in _chunks(OWNED, 10 * CHUNK):
        by_topic: dict[str, list[tuple[TopicPartition, int]]] = {}
        for one in chunk:
            by_topic.setdefault(one[0].topic, []).append(one)
        for topic, members in by_topic.items():
            partitions = b"".join([_varint(tp.partition) for tp, _ in members])
            epochs = b"".join([_varint(epoch) for _, epoch in members])
            yield _field(b"\x7a", _text(b"\x0a", topic) + _field(b"\x12", partitions) + _field(b"\x1a", epochs))


def _written_warms() -> bytes:
    parts = [b"".join([_field(b"\x1a", _warm(warm)) for warm in chunk]) for chunk in _chunks(WARMS, CHUNK)]
    return _field(b"\x5a", b"".join(parts))


def _warm(warm: Warm) -> bytes:
    return b"".join(
        (
            _field(b"\x0a", _partition(warm.tp, 0)),
            _text(b"\x12", warm.current_owner),
            _text(b"\x52", warm.handoff_id),
            _text(b"\x5a", warm.cause),
        )
    )


def _long_varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


_SHORT = [_long_varint(value) for value in range(1 << 14)]


def _varint(value: int) -> bytes:
    return _SHORT[value] if value < 1 << 14 else _long_varint(value)


def _field(tag: bytes, body: bytes) -> bytes:
    return tag + _varint(len(body)) + body


def _text(tag: bytes, text: str) -> bytes:
    return _field(tag, text.encode()) if text else b""


@lru_cache(maxsize=65_536)
def _place(tp: TopicPartition) -> bytes:
    return _text(b"\x0a", tp.topic) + (b"\x10" + _varint(tp.partition) if tp.partition else b"")


def _partition(tp: TopicPartition, epoch: int) -> bytes:
    return _place(tp) + b"\x50" + _varint(epoch) if epoch else _place(tp)


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=25)
    repetitions = parser.parse_args().repetitions
    table = Table(title=f"Encoding {PARTITIONS:,} partitions, us per partition, best of {repetitions}")
    table.add_column("message")
    for column in (*cases()[0].ways, "C runtime / by hand"):
        table.add_column(column, justify="right")
    for case in cases():
        best = measure(case, repetitions)
        ratio = best["C runtime"] / best["written by hand"]
        table.add_row(case.name, *(f"{figure:.2f}" for figure in best.values()), f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
