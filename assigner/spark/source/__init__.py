"""Implements the data source `assigned_kafka`: plans batches on the driver, fetches records on executors.

- `reader`: the classes that Spark calls. Only the process that plans batches joins the group.
- `planner`: where each batch ends and which ranges it reads; its member is in `assigner.spark.member`.
- `tasks`: ranges and control rows, cut and packed into Spark's tasks.
- `fetch`: on executors, ranges of offsets from Kafka; `rows`: as Arrow record batches.
- `batch_reader`: `spark.read`, which joins no group.

Executors import `reader`, `fetch` and `rows` and neither the client nor a database. Not promised: an order between the
rows of different partitions.
"""
