"""Where a pipeline writes: a directory of its own, claimed before anything is computed."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from assigner.errors import InvalidInput
from assigner.spark.jobs.errors import cause


def claim(spark: SparkSession, output: str, *, overwrite: bool) -> None:
    """Make the directory, on whatever file system it is. Raises `InvalidInput` when something is there already."""
    jvm, context = spark._jvm, spark._jsc
    assert jvm is not None
    place = jvm.org.apache.hadoop.fs.Path(output)
    try:
        files = place.getFileSystem(context.hadoopConfiguration())
        there = files.exists(place)
        if there and not files.getFileStatus(place).isDirectory():
            raise InvalidInput(f"--output {output} is a file; give a directory that does not exist yet")
        if there and not overwrite and len(files.listStatus(place)):
            raise InvalidInput(f"--output {output} has something in it; choose another one, or pass --overwrite")
        if not there and not files.mkdirs(place):
            raise InvalidInput(f"--output {output} can't be made; choose a directory that you may write to")
    except Py4JJavaError as error:
        raise InvalidInput(f"--output {output} can't be written: {cause(error)}; choose another one") from error
