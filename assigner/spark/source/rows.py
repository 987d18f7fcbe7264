"""Converts Kafka's messages to Arrow record batches, column by column, because Python calls per row are slow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from assigner.spark.positions import OffsetRange
from assigner.spark.schema import CONTROL, EPOCH, HEADERS, control_row
from assigner.spark.state.handover import Control

MAX_BYTES = 256 * 2**20
"""Keys and values in a record batch. A column of Arrow's binary type holds at most 2 GiB."""


def batches_of(messages: list[Any], one: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if not messages:
        return
    keys = [message.key() for message in messages]
    values = [message.value() for message in messages]
    for first, end in _slices(keys, values):
        yield _batch(messages[first:end], keys[first:end], values[first:end], one, schema)


def _slices(keys: list[bytes | None], values: list[bytes | None]) -> Iterator[tuple[int, int]]:
    # One sum instead of a look at each row: batches that are too large are rare.
    if sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values))) <= MAX_BYTES:
        yield 0, len(keys)
        return
    first, size = 0, 0
    for at, (key, value) in enumerate(zip(keys, values, strict=True)):
        more = len(key or b"") + len(value or b"")
        if size + more > MAX_BYTES and at > first:
            yield first, at
            first, size = at, 0
        size += more
    yield first, len(keys)


def _batch(
    messages: list[Any], keys: list[bytes | None], values: list[bytes | None], one: OffsetRange, schema: pa.Schema
) -> pa.RecordBatch:
    rows = len(messages)
    kinds = [message.timestamp()[0] for message in messages]
    columns: dict[str, Any] = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.repeat(pa.scalar(one.tp.topic, pa.string()), rows),
        "partition": pa.repeat(pa.scalar(one.tp.partition, pa.int32()), rows),
        "offset": pa.array([message.offset() for message in messages], pa.int64()),
        "timestamp": pa.array(_micros(messages, kinds), schema.field("timestamp").type),
        # Kafka's client counts from 1 what Spark counts from 0; what has no time is one less.
        "timestampType": pa.array([kind - 1 for kind in kinds], pa.int32()),
    }
    if HEADERS in schema.names:
        headers = [_headers(message) for message in messages]
        columns[HEADERS] = pa.array(headers, schema.field(HEADERS).type)
    if EPOCH in schema.names:
        columns[EPOCH] = pa.repeat(pa.scalar(one.epoch, pa.int64()), rows)
    if CONTROL in schema.names:
        columns[CONTROL] = pa.nulls(rows, pa.string())
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def control_batch(controls: Iterable[Control], schema: pa.Schema) -> pa.RecordBatch:
    rows = [control_row(one.kind, one.tp, epoch=one.epoch, offset=one.offset, state=one.state) for one in controls]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def _micros(messages: list[Any], kinds: list[int]) -> list[int | None]:
    if 0 not in kinds:
        return [message.timestamp()[1] * 1000 for message in messages]
    return [message.timestamp()[1] * 1000 if kind else None for message, kind in zip(messages, kinds, strict=True)]


def _headers(message: Any) -> list[dict[str, Any]] | None:
    found = message.headers()
    return [{"key": key, "value": value} for key, value in found] if found else None
