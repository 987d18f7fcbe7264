"""Moves state with its partition: from the query that releases a partition to the one that takes it over.

- `processor`: `PartitionProcessor`, one state per topic-partition, and `with_partition_state`; re-exported here.
- `handover`: which control rows a batch holds, and where reading begins for a state that another query left.
- `sink_record`: the fences and states of the query's fenced sink, read by the source.

The state travels through the sink: the old owner stores it in the transaction of its last batch, and the new owner
reads it from there (docs/decisions/2026-11-16-states-move-through-the-sink.md). Not promised: states larger than some
megabytes per partition; each is read and written whole.
"""

from assigner.spark.state.processor import PartitionProcessor, with_partition_state

__all__ = ["PartitionProcessor", "with_partition_state"]
