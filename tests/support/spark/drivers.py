"""Queries of a group, seen from a test: in the session of the tests, or in driver processes of their own.

A driver is started long before its query: a JVM takes most of the time, and it can take it beside other things.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pyspark
from pyspark.sql import SparkSession

from assigner.spark import drain
from tests.support.servers.process import ServerProcess
from tests.support.spark import driver_process
from tests.support.spark.driver_process import BATCHES, DOOM, GO, HELD, HOLD, UP, Batch, Order

SPARK_SUBMIT = (str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--driver-memory", "512m")
PATIENCE = 300.0
"""Seconds, for anything that involves a JVM on a machine that is busy with other things."""
_LOOK_AGAIN = 0.1


class Member(ABC):
    """A query that runs, or will run, as a member of a group, and what it has noted of its batches."""

    def __init__(self, order: Order) -> None:
        self.member = order.options["member"]
        self._directory = Path(order.directory)
        self._directory.mkdir(parents=True)

    @property
    @abstractmethod
    def is_running(self) -> bool: ...

    @abstractmethod
    def log(self) -> str:
        """What it said last, for those who want to know why it ended."""

    @abstractmethod
    def close(self) -> None:
        """End what is left of it."""

    def batches(self) -> list[Batch]:
        path = self._directory / BATCHES
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [msgspec.json.decode(line, type=Batch) for line in lines]

    @property
    def written(self) -> int:
        return sum(batch.written for batch in self.batches())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that needs this query alive."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.is_running, f"{self.member} ended before {what}\n{self.log()}"
            assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}\n{self.log()}"
            time.sleep(_LOOK_AGAIN)


class Driver(Member):
    """A driver process with one query."""

    def __init__(self, order: Order, launcher: tuple[str, ...] = (sys.executable,)) -> None:
        """`launcher`: Python, which starts the JVM, or `SPARK_SUBMIT`, where it is the other way round."""
        super().__init__(order)
        command = [*launcher, driver_process.__file__, msgspec.json.encode(order).decode()]
        self._process = ServerProcess(command, self._directory / "log")

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    def log(self) -> str:
        return self._process.log_tail()

    def wait_until_up(self) -> None:
        self.until((self._directory / UP).exists, "its session is there")

    def go(self) -> None:
        """Start the query."""
        self._tell(GO)

    def hold(self) -> None:
        """Hold the next batch when its rows are written."""
        self._tell(HOLD)

    def wait_until_held(self) -> None:
        self.until((self._directory / HELD).exists, "a batch is held")

    def go_on(self) -> None:
        (self._directory / HELD).unlink()
        (self._directory / HOLD).unlink()

    def die_after_writing(self) -> int:
        """Let it be killed with -9, with all its processes, when it has written rows and told nobody. Its status."""
        self._tell(DOOM)
        return self._process.wait(PATIENCE)

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def ended(self) -> int:
        """The status with which it ended by itself."""
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        family = psutil.Process(self._process.pid).children(recursive=True) if self._process.is_running else []
        self._process.kill()
        for one in family:
            if one.is_running():
                one.kill()

    def _tell(self, what: str) -> None:
        (self._directory / what).touch()


class SessionQuery(Member):
    """A query in the session of the tests, which is there already and knows its work."""

    def __init__(self, order: Order, spark: SparkSession) -> None:
        super().__init__(order)
        self._query = driver_process.start(spark, order)

    @property
    def is_running(self) -> bool:
        return self._query.isActive

    def log(self) -> str:
        return str(self._query.exception())

    def drain(self) -> None:
        drain(self._query, PATIENCE)
        assert not self.is_running
        assert self._query.exception() is None

    def close(self) -> None:
        self._query.stop()
