"""Defines `Ledger`, a sink's record of partitions: how far each is written, under which epoch, and its stored state.

A source that reads the ledger before it starts begins at the later of the committed offset and the sink's next offset:
rows written by an owner that died before it could report them are then not even read again. The source's options
`fence.*` name the sink whose ledger it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.model.names import check_name

if TYPE_CHECKING:
    # Executors read the source's options too, and have no use for Arrow and databases there.
    from assigner.spark.sinks.columns import StateRow
    from assigner.spark.sinks.fence import Fence

URL, TABLE, PATH, SINK = "fence.url", "fence.table", "fence.path", "fence.sink"
LEDGER_OPTIONS = (URL, TABLE, PATH, SINK)


class SinkId(msgspec.Struct, frozen=True):
    """A group's sink: several groups, and several sinks of one group, may share a database or a directory.

    All members of the group that write to one place use the same name, and no other writer does."""

    group: str
    name: str

    def __post_init__(self) -> None:
        check_name("group", self.group)
        check_name("sink", self.name)

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"


class Ledger(Protocol):
    """Reads and resets a sink's record, without writing rows."""

    def fences(self) -> dict[TopicPartition, Fence]:
        """Read the fence of every partition of which rows were written or rejected."""
        ...

    def states(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StateRow]:
        """Read the states that the last owners stored, for those partitions that have one."""
        ...

    def reset(self, topic: str) -> None:
        """Delete the fences of a topic that was recreated, or whose offsets or epochs began again. Rows stay."""
        ...


def next_offsets(ledger: Ledger) -> dict[TopicPartition, int]:
    """Compute the offset after the last row written, for each partition that has rows."""
    return {tp: fence.next_offset for tp, fence in ledger.fences().items() if fence.next_offset}


def ledger_of(options: Mapping[str, str], group: str) -> Ledger | None:
    """Open the ledger that the options name, or None if they name none."""
    # Here, because executors read options too, and have no use for databases.
    from assigner.spark.sinks.parquet.sink import ParquetLedger, parquet_place
    from assigner.spark.sinks.sql.sink import SqlLedger, sql_place

    url, table, path, sink = (options.get(name) for name in LEDGER_OPTIONS)
    if path and (url or table):
        raise InvalidInput(
            f"options {PATH} and {URL} are both given; a query has one ledger: name the sink it writes to"
        )
    if path:
        return ParquetLedger(parquet_place(path, group=group, sink=sink or "rows"))
    if url and table:
        return SqlLedger(sql_place(url, table, group=group, sink=sink))
    if url or table or sink:
        raise InvalidInput(f"a ledger is named by {PATH}, or by {URL} and {TABLE}; only a part of that is given")
    return None
