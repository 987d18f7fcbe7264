"""A Spark query that is a member of a group: each batch's records are said as lines of JSON once it is processed.

    python -m tests.support.kafka_groups.spark_member assigner=... bootstrap=... group=g topics=t client_id=s

Words: assigner, bootstrap, group, topics, client_id (its name in the group), checkpoint. It leaves on SIGTERM. What it
owns is not said: a query's partitions change between two batches, and only their records tell.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame

import assigner.spark
from tests.support.kafka_groups.events import Kind, options_of, say
from tests.support.spark import jvms
from tests.support.spark.driver_process import session


def _process(rows: DataFrame, batch_id: int) -> None:
    for row in rows.select("topic", "partition", "offset", "key").collect():
        key = bytes(row.key or b"").decode()
        say(Kind.RECORD, partition=f"{row.topic}/{row.partition}", offset=row.offset, key=key)


def main(options: dict[str, str]) -> None:
    # Before the JVM starts, which passes them on to the workers.
    os.environ.update(jvms.environment())
    spark = session()
    assigner.spark.register(spark)
    given = {
        "assigner": options["assigner"],
        "group": options["group"],
        "member": options["client_id"],
        "kafka.bootstrap.servers": options["bootstrap"],
        "subscribe": options["topics"],
        "startingOffsets": "earliest",
        "includeEpoch": "true",
    }
    rows = spark.readStream.format("assigned_kafka").options(**given).load()
    writer = rows.writeStream.foreachBatch(_process).option("checkpointLocation", options["checkpoint"])
    query = writer.trigger(processingTime="300 milliseconds").start()
    say(Kind.UP)
    assigner.spark.drain_on_sigterm(query)
    query.awaitTermination()
    say(Kind.CLOSED)
    spark.stop()


if __name__ == "__main__":
    main(options_of(sys.argv[1:]))
