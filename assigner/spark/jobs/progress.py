"""What a pipeline is doing, for whoever waits for it: steps, and how many of Spark's tasks of each are done.

On a terminal one line that moves; elsewhere a line when a step is done. It goes to stderr, results go to stdout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.console import Console
from rich.status import Status

EVERY = 0.5


class JobProgress:
    def __init__(self, spark: SparkSession, console: Console) -> None:
        self._spark = spark
        self._console = console
        self.steps: list[tuple[str, float]] = []
        """What was done, and the seconds it took."""

    @contextmanager
    def step(self, says: str) -> Iterator[None]:
        began = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(says) as status, self._followed(status, says):
                yield
        else:
            yield
        seconds = time.monotonic() - began
        self.steps.append((says, seconds))
        self._console.print(f"{says}: {seconds:.1f} s", style="dim", markup=False)

    @contextmanager
    def _followed(self, status: Status, says: str) -> Iterator[None]:
        over = threading.Event()

        def follow() -> None:
            while not over.wait(EVERY):
                if told := self._tasks():
                    status.update(f"{says} ({told})")

        thread = threading.Thread(target=follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _tasks(self) -> str:
        tracker = self._spark.sparkContext.statusTracker()
        stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
        if not stages:
            return ""
        done, of = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
        return f"task {done} of {of}"
