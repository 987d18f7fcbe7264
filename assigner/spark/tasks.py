"""What the tasks of a batch read: long ranges are cut for parallel work, short ones are put together."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from assigner.spark.options import SourceOptions
from assigner.spark.positions import Range, packed, split

TASK_ROWS = 10_000
"""Ranges below this are read by one task together, unless the user says how many tasks there are to be."""


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, value: tuple[Range, ...]) -> None:
        super().__init__(value)


def tasks_for(ranges: list[Range], options: SourceOptions) -> list[InputPartition]:
    pieces = split(ranges, at_least=options.min_partitions, at_most_rows=options.max_records_per_partition)
    if options.min_partitions:
        return [Task((one,)) for one in pieces]
    return [Task(several) for several in packed(pieces, options.max_records_per_partition or TASK_ROWS)]
