"""State that moves with its partition: from the query that gives a partition up to the one that takes it over.

- `processor`: `PartitionProcessor`, one state per topic-partition, and `with_partition_state`; re-exported here.
- `handover`: which control rows a batch holds, and where reading begins for a state that another query left.
- `sink_record`: what the query's fenced sink has on record, read by the source.
"""

from assigner.spark.state.processor import PartitionProcessor, with_partition_state

__all__ = ["PartitionProcessor", "with_partition_state"]
