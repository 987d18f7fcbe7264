"""Opens the Spark session of a pipeline: the active one, a cluster's, or one on this machine.

Under `spark-submit`, and in a program that already has a session, nothing is configured here. On one machine Spark uses
this process's package and interpreter; on a cluster both have to be installed on every node.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from assigner.errors import InvalidInput
from assigner.spark.requirements import require_java

LOOPBACK = "127.0.0.1"
_LEAST, _MOST = 1, 8
"""Least and most memory of Spark on one machine, in GiB."""


_STANDALONE = "spark://"
_MASTER_WITHIN = 10.0
_SMALL = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    "spark.sql.codegen.wholeStage": "false",
}


@contextmanager
def session(
    name: str, master: str = "", conf: Mapping[str, str] | None = None, *, small: bool = False
) -> Iterator[SparkSession]:
    """Open a session. `master`: where to run, unless `spark-submit` decides it; empty: all cores of this machine.
    `small`: for data so small that compiling a query takes longer than running it."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    require_java()
    _require_master(master)
    spark = _new_session(name, master, conf or {}, small=small)
    # Locally an error is shown once, by the command line; on a cluster operators read the logs.
    spark.sparkContext.setLogLevel("OFF" if (spark.sparkContext.master or "").startswith("local") else "WARN")
    try:
        yield spark
    finally:
        spark.stop()


def _require_master(master: str) -> None:
    """Check that the master accepts connections. Spark itself would retry for a minute, with a stack trace each time,
    and then hang."""
    if not master.startswith(_STANDALONE):
        return
    failed = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidInput(f"--master {master} is no address of a cluster; give spark://HOST:PORT")
        try:
            socket.create_connection((host, int(port)), timeout=_MASTER_WITHIN).close()
        except (OSError, OverflowError) as error:
            failed.append(f"{address}: {error}")
        else:
            return
    raise InvalidInput(
        f"--master {master} can't be reached ({'; '.join(failed)}); is the cluster's master running there?"
    )


def _new_session(name: str, master: str, conf: Mapping[str, str], *, small: bool) -> SparkSession:
    builder = SparkSession.builder.appName(f"assigner pipeline {name}").config("spark.sql.session.timeZone", "UTC")
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        if master:
            raise InvalidInput("--master is given twice: leave it to spark-submit")
    else:
        where = master or "local[*]"
        builder = builder.master(where)
        here = _on_this_machine(small=small) if where.startswith("local") else _from_this_machine()
        for key, value in here.items():
            builder = builder.config(key, value)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _on_this_machine(*, small: bool) -> dict[str, str]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.memory": f"{_memory()}g",
        # Enough for a sort of a whole log to fit into memory; Spark coalesces small partitions.
        "spark.sql.shuffle.partitions": str(16 * (os.cpu_count() or 1)),
        **_from_this_machine(),
        **(_SMALL if small else {}),
    }


def _from_this_machine() -> dict[str, str]:
    return {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def _memory() -> int:
    """A quarter of the machine's memory in GiB, between `_LEAST` and `_MOST`."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return _LEAST
    return max(_LEAST, min(_MOST, total // 4 // 2**30))
