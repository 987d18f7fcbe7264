"""Let the JVMs of Spark start in half the time: an archive of the classes they load, made once and kept in the cache.

A JVM maps the archive into memory instead of reading and checking some ten thousand classes from jars. It is good for
one Java and one place where Spark is installed; each pair has its own. Nothing depends on it: without the archive, or
with one that does not fit, the tests that start Spark only take longer.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cache import cache_directory

# Each is some 200 MB, and every checkout with an environment of its own makes one.
KEPT = 3

# What tests do that start Spark: a query over files, a batch with a shuffle and a window, Python on Arrow batches.
RECORDED = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
builder = builder.config("spark.sql.catalogImplementation", "in-memory").config("spark.log.level", "ERROR")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
place = sys.argv[1]
numbers = spark.range(1000).selectExpr("id", "id % 7 AS key", "CAST(id AS STRING) AS text")
numbers.repartition(2).write.parquet(place + "/in")
numbers.createOrReplaceTempView("numbers")
spark.sql("SELECT key, sum(id) OVER (PARTITION BY key ORDER BY id) FROM numbers").collect()
numbers.groupBy("key").count().collect()
rows = spark.readStream.schema(numbers.schema).parquet(place + "/in")
rows = rows.mapInArrow(lambda batches: batches, numbers.schema)
writer = rows.writeStream.option("checkpointLocation", place + "/checkpoint").trigger(availableNow=True)
writer.foreachBatch(lambda batch, _: batch.persist().write.parquet(place + "/out")).start().awaitTermination()
spark.sparkContext._gateway.jvm.java.lang.System.exit(0)
"""


def archive() -> Path | None:
    """Return where the archive for this Java and this Spark is kept; it need not exist yet. None without the two."""
    java, spark = _java(), importlib.util.find_spec("pyspark")
    if java is None or spark is None or spark.origin is None:
        return None
    told = subprocess.run([java, "-version"], check=False, capture_output=True).stderr
    jars = Path(spark.origin).parent / "jars"
    identity = hashlib.sha256(told + str(jars).encode() + str(jars.stat().st_mtime_ns).encode())
    return cache_directory() / f"spark-{identity.hexdigest()[:16]}.jsa"


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")


def _say(text: str) -> None:
    print(f"spark: {text}", flush=True)


def _make(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="archive-") as scratch:
        draft = Path(scratch) / "draft.jsa"
        # The flags of those who will use it: an archive made with another collector does not fit as well.
        flags = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xlog:disable -XX:ArchiveClassesAtExit={draft}"
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": flags, "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, "-c", RECORDED, scratch]
        done = subprocess.run(command, cwd=scratch, env=environment, check=False, capture_output=True, text=True)
        if not draft.exists():
            raise OSError(f"Spark failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        # A rename, so that half an archive is never found.
        draft.rename(place)


def prune(directory: Path, keep: int = KEPT) -> None:
    """Remove all but the newest. A JVM that has one open goes on with it."""
    oldest_last = sorted(directory.glob("spark-*.jsa"), key=lambda one: one.stat().st_mtime, reverse=True)
    for one in oldest_last[keep:]:
        one.unlink(missing_ok=True)


def main() -> int:
    place = archive()
    if place is None:
        _say("Java or pyspark is not there. The tests marked `spark` are skipped.")
        return 1
    if place.exists():
        _say(f"an archive of its classes is there: {place}")
        return 0
    _say("archiving the classes that its sessions load ...")
    started = time.monotonic()
    try:
        _make(place)
    except OSError as failure:
        _say(f"{failure}\nThe tests marked `spark` take longer.")
        return 1
    prune(place.parent)
    _say(f"archived in {place} in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
