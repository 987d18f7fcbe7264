"""The rows: Spark's own Kafka columns, and on request the headers, the epoch under which a row was read, and what a
control row says."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from assigner.spark.control_rows import CONTROL, EPOCH

_COLUMNS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
HEADERS = "headers"


def row_schema(*, headers: bool, epoch: bool, control: bool = False) -> StructType:
    fields = list(_COLUMNS)
    if headers:
        fields.append(StructField(HEADERS, ArrayType(_HEADER)))
    if epoch:
        fields.append(StructField(EPOCH, LongType()))
    if control:
        fields.append(StructField(CONTROL, StringType()))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark expects record batches of this schema to be."""
    return to_arrow_schema(schema, timezone="UTC")
