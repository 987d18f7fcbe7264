"""Which sink's ledger a source asks, from its options: `fence.path`, or `fence.url` and `fence.table`; `fence.sink`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from assigner.errors import InvalidInput

if TYPE_CHECKING:
    from assigner.spark.sinks.ledger import Ledger

URL, TABLE, PATH, SINK = "fence.url", "fence.table", "fence.path", "fence.sink"
LEDGER_OPTIONS = (URL, TABLE, PATH, SINK)


def ledger_of(options: Mapping[str, str], group: str) -> Ledger | None:
    """The ledger that the options name, or None if they name none."""
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
