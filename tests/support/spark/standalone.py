"""A standalone Spark cluster on loopback: a master and workers, each a process that is ended by its id."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.support.servers.process import ServerProcess
from tests.support.spark import jvms

HOME = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
READY = 120.0


class StandaloneCluster:
    """`with StandaloneCluster(tmp_path) as cluster: cluster.url`. Each worker has a core and a gigabyte."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self._directory = directory
        self._count = workers
        self._processes: list[ServerProcess] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._master = self._start("master", "master.Master", "--host", LOOPBACK, "--port", "0", "--webui-port", "0")
        self.url = self._said("master", r"(spark://127\.0\.0\.1:\d+)")
        for number in range(self._count):
            place = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g")
            work = str(self._directory / f"work-{number}")
            self._start(f"worker-{number}", "worker.Worker", *place, "--work-dir", work, self.url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate(20)

    def submit(self, *arguments: str, within: float) -> tuple[int, str, str]:
        """Run a program on the cluster; returns its status, what it said and what it complained of. It comes up while
        the workers do, and waits for all of them."""
        confs = {
            "spark.cores.max": str(self._count),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{READY:.0f}s",
            "spark.driver.host": LOOPBACK,
            "spark.executor.extraJavaOptions": jvms.environment()["SPARK_SUBMIT_OPTS"],
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        given = [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
        said, complained = self._directory / "stdout", self._directory / "driver.log"
        program = shlex.join([str(HOME / "bin" / "spark-submit"), "--master", self.url, *given, *arguments])
        # The driver's stdout goes to a file of its own: its log is what ServerProcess keeps.
        driver = ServerProcess(
            ["/bin/sh", "-c", f"exec {program} >{shlex.quote(str(said))}"], complained, environment()
        )
        self._processes.append(driver)
        driver.wait_until(lambda: not driver.is_running, within)
        return driver.terminate(1), said.read_text(), complained.read_text()

    def executors(self) -> set[str]:
        """Workers that ran an executor."""
        return {path.parents[1].name for path in self._directory.glob("work-*/app-*/*") if path.is_dir()}

    def _start(self, name: str, kind: str, *arguments: str) -> ServerProcess:
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        process = ServerProcess(command, self._log(name), environment())
        self._processes.append(process)
        return process

    def _said(self, name: str, pattern: str) -> str:
        log, process = self._log(name), self._processes[-1]
        process.wait_until(lambda: re.search(pattern, log.read_text()) is not None, READY)
        found = re.search(pattern, log.read_text())
        assert found is not None
        return found[1]

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"


def environment() -> dict[str, str]:
    quick = jvms.environment()
    return {
        **os.environ,
        **quick,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_JAVA_OPTS": quick["SPARK_SUBMIT_OPTS"],
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
