"""Divides a batch into Spark's tasks: long ranges are split for parallel work, short ones share a task."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from assigner.spark.options import SourceOptions
from assigner.spark.positions import OffsetRange, packed, split
from assigner.spark.state.handover import Control

TASK_ROWS = 10_000
"""Ranges share a task up to so many rows, unless the user sets minPartitions."""
TASK_BYTES = 16 * 2**20
"""Control rows share a task up to about so many bytes of states."""


class Task(InputPartition):
    """Ranges of offsets that one task reads."""

    def __init__(self, value: tuple[OffsetRange, ...]) -> None:
        super().__init__(value)


class ControlTask(InputPartition):
    """Control rows that one task emits; they are not read from Kafka."""

    def __init__(self, value: tuple[Control, ...]) -> None:
        super().__init__(value)


def tasks_for(ranges: list[OffsetRange], options: SourceOptions) -> list[InputPartition]:
    pieces = split(ranges, at_least=options.min_partitions, at_most_rows=options.max_records_per_partition)
    if options.min_partitions:
        return [Task((one,)) for one in pieces]
    return [Task(several) for several in packed(pieces, options.max_records_per_partition or TASK_ROWS)]


def control_tasks(controls: list[Control]) -> list[InputPartition]:
    tasks: list[tuple[Control, ...]] = []
    room = 0
    for one in controls:
        if not tasks or room <= 0:
            tasks.append(())
            room = TASK_BYTES
        tasks[-1] += (one,)
        room -= len(one.state or b"")
    return [ControlTask(several) for several in tasks]
