"""Shows the progress of a pipeline: its steps, and how many of Spark's tasks of each are done.

On a terminal one line is updated; elsewhere a line is printed when a step is done. Progress goes to stderr, results go
to stdout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.console import Console
from rich.status import Status

POLL_SECONDS = 0.5


class JobProgress:
    def __init__(self, spark: SparkSession, console: Console) -> None:
        self._spark = spark
        self._console = console
        self.steps: list[tuple[str, float]] = []
        """The steps done, and the seconds that each took."""

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(title) as status, self._updating(status, title):
                yield
        else:
            yield
        seconds = time.monotonic() - began
        self.steps.append((title, seconds))
        self._console.print(f"{title}: {seconds:.1f} s", style="dim", markup=False)

    @contextmanager
    def _updating(self, status: Status, title: str) -> Iterator[None]:
        over = threading.Event()

        def follow() -> None:
            while not over.wait(POLL_SECONDS):
                if tasks := self._tasks():
                    status.update(f"{title} ({tasks})")

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
