"""A Java process that runs Kafka's assignors on our problems.

Kafka's jars are those that the tests' broker uses (`tools/install_kafka.py` fetches them by Maven); the Java source is
compiled by the launcher at each start, so nothing is kept. The process is told a problem once and then asked for one
assignor after the other. An assignor that takes longer than it may is ended with its process, and a new process is
started for the next. Where Java, its compiler or the jars are missing, `unavailable` says so.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from assigner.strategy import Problem
from bench.strategies.grid import kinds_of
from bench.strategies.timed_calls import Answer, Effort, Failed
from tools import install_kafka

SOURCE = Path(__file__).with_name("KafkaAssignors.java")
ASSIGNORS = ("uniform", "range", "cooperative-sticky")
JAVA_AT_LEAST = 17
LARGE_HEAP = ("-Xms4g", "-Xmx6g")

_PROBLEM, _RUN = 1, 2


def unavailable() -> str | None:
    """Why Kafka's assignors can't be run here, if they can't. Fetches the jars when Maven can."""
    missing = install_kafka.missing_tool()
    if missing is not None:
        return missing
    version = _java_version()
    if version < JAVA_AT_LEAST:
        return f"Java is {version}; Kafka's assignors need {JAVA_AT_LEAST}"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = install_kafka.main()
    return said.getvalue().strip() if status else None


def _java_version() -> int:
    said = subprocess.run(["java", "-version"], check=False, capture_output=True, text=True).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else 0


class KafkaAssignors:
    """Use as a context manager: `load` a problem, then `run` assignors on it."""

    def __init__(
        self, warm_up_on: Sequence[Problem] = (), seconds: float = 0.0, heap: Sequence[str] = LARGE_HEAP
    ) -> None:
        """Each new process first runs every assignor on these problems for so long, because compiling takes time."""
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        self._heap = heap
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._warm_up_on = warm_up_on
        self._warm_up = Effort(warm_up=seconds, measure=0.0, rounds=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()
        self._said.close()

    def load(self, problem: Problem) -> None:
        """Raises `Failed` where Java does not run at all."""
        if self._process is None:
            self._start()
            for other in self._warm_up_on:
                self._give(other)
                for assignor in ASSIGNORS:
                    self.run(assignor, self._warm_up)
        self._give(problem)

    def _give(self, problem: Problem) -> None:
        self._count = len(problem.owner)
        self._send(_encoded(problem))

    def run(self, assignor: str, effort: Effort) -> Answer:
        """Raises `Failed`; after that a problem must be loaded again."""
        self._send(
            struct.pack(">iiddi", _RUN, ASSIGNORS.index(assignor), effort.warm_up, effort.measure, effort.rounds)
        )
        deadline = time.monotonic() + effort.patience + effort.warm_up + effort.measure
        (calls,) = struct.unpack(">i", self._receive(4, deadline))
        if calls == 0:
            (length,) = struct.unpack(">H", self._receive(2, deadline))
            raise Failed(self._receive(length, deadline).decode())
        times = struct.unpack(f">{calls}d", self._receive(8 * calls, deadline))
        owner = np.frombuffer(self._receive(4 * self._count, deadline), ">i4").astype(np.int32)
        return Answer(times, owner)

    def _start(self) -> None:
        java = shutil.which("java") or "java"
        libs = install_kafka.kafka_home() / "libs"
        command = [java, *self._heap, "-cp", f"{libs}/*", "-Dlog4j2.level=error", str(SOURCE)]
        self._said.seek(0)
        self._said.truncate()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _ended(self) -> Failed:
        self._stop()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().splitlines()
        return Failed(f"the Java process ended: {said[0] if said else 'it said nothing'}")

    def _send(self, message: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            raise Failed("no Java process runs; load a problem first")
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error

    def _receive(self, size: int, deadline: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        # Read without a buffer: what lies in one would not be seen by `select`.
        pipe, parts = self._process.stdout.fileno(), bytearray()
        while len(parts) < size:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._stop()
                raise Failed("took too long")
            piece = os.read(pipe, min(size - len(parts), 1 << 20))
            if not piece:
                raise self._ended()
            parts += piece
        return bytes(parts)


def _encoded(problem: Problem) -> bytes:
    members = problem.members
    kinds, cohort = kinds_of(members.subscription)
    wanted = b"".join(_ints(np.flatnonzero(kind)) for kind in kinds)
    nothing = np.empty(0, np.int32)
    starts, racks = problem.topics.replica_racks or (nothing, nothing)
    return b"".join(
        (
            struct.pack(">ii", _PROBLEM, members.count),
            _ints(problem.topics.partitions),
            _ints(problem.owner),
            _ints(cohort),
            struct.pack(">i", len(kinds)),
            wanted,
            _ints(members.rack),
            _ints(starts),
            _ints(racks),
        )
    )


def _ints(numbers: NDArray[np.integer]) -> bytes:
    return struct.pack(">i", len(numbers)) + numbers.astype(">i4").tobytes()
