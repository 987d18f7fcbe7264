"""Consumers as processes that get a signal: they hand over if they can, and end by themselves if not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes.test_serve import WITHIN, Start, line_with, serving, start

__all__ = ["start"]
pytestmark = pytest.mark.processes

WORKER = """
import asyncio
import sys
from assigner.client import AssignerConsumer, Handler, Ownership


class Worker(Handler):
    async def assigned(self, partition: Ownership) -> None:
        print("mine now:", partition, flush=True)

    async def revoked(self, partition: Ownership, reason: str) -> None:
        await asyncio.sleep(float(sys.argv[3]))


async def main() -> None:
    consumer = AssignerConsumer(sys.argv[1], "g", sys.argv[2], ["t"], Worker())
    print("ended:", (await consumer.run_until_signal(drain_within=float(sys.argv[4]))).value, flush=True)


asyncio.run(main())
"""

Work = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """Start a worker that is written as the README's is."""
    program = tmp_path / "worker.py"
    program.write_text(WORKER)
    started: list[subprocess.Popen[str]] = []

    def run(address: str, name: str, revoking: float = 0.0, drain_within: float = 30.0) -> subprocess.Popen[str]:
        command = [sys.executable, str(program), address, name, str(revoking), str(drain_within)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line_that_begins(stream: Any, words: str) -> str:
    deadline, seen = time.monotonic() + WITHIN, list[str]()
    while time.monotonic() < deadline and (line := stream.readline()):
        seen.append(line)
        if line.startswith(words):
            return str(line).rstrip()
    raise AssertionError(f"no line with {words!r} in {''.join(seen)}")


# --- assigner consume --------------------------------------------------------------------------------------------


def test_a_draining_consumer_whose_service_is_gone_ends_by_itself_and_says_so(start: Start) -> None:
    service, facts = serving(start, "--topic", "g/t=1", "--debounce", "0.1")
    options = ["--address", facts["grpc"], "-o", "json", "--drain", "--drain-timeout", "1"]
    consumer = start("consume", "g", "--name", "c", *options)
    line_with(consumer.stdout, "assigned")
    service.kill()
    service.wait(WITHIN)
    consumer.send_signal(signal.SIGTERM)
    assert line_with(consumer.stdout, "left")["how"] == "left"
    _, errors = consumer.communicate(timeout=WITHIN)
    assert consumer.returncode == 4
    told = json.loads(errors.splitlines()[-1])["error"]
    assert told["kind"] == "not_drained"
    assert "within 1 s" in told["message"]
    assert "Traceback" not in errors


def test_a_second_signal_ends_a_draining_consumer_at_once(start: Start) -> None:
    service, facts = serving(start, "--topic", "g/t=1", "--debounce", "0.1")
    options = ["--address", facts["grpc"], "-o", "json", "--drain", "--drain-timeout", "3600"]
    consumer = start("consume", "g", "--name", "c", *options)
    line_with(consumer.stdout, "assigned")
    service.kill()
    service.wait(WITHIN)
    consumer.send_signal(signal.SIGTERM)
    line_with(consumer.stdout, "draining")
    consumer.send_signal(signal.SIGTERM)
    assert line_with(consumer.stdout, "left")["how"] == "left"
    assert consumer.wait(WITHIN) == 4


def test_a_consumer_stopped_while_it_looks_for_its_service_ends_without_a_traceback(start: Start) -> None:
    consumer = start("consume", "g", "--address", "127.0.0.1:1", "--timeout", "3600", "-o", "json")
    assert consumer.stderr is not None
    line_that_begins(consumer.stderr, "")
    consumer.send_signal(signal.SIGINT)
    _, errors = consumer.communicate(timeout=WITHIN)
    assert consumer.returncode == 0
    assert "Traceback" not in errors


# --- a program of one's own --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_hands_over_and_ends_without_a_traceback(
    start: Start, work: Work, number: signal.Signals
) -> None:
    _, facts = serving(start, "--topic", "g/t=1", "--debounce", "0.1")
    one = work(facts["grpc"], "one")
    line_that_begins(one.stdout, "mine now: t/0@1")
    two = work(facts["grpc"], "two")
    one.send_signal(number)
    line_that_begins(two.stdout, "mine now: t/0@2")
    assert line_that_begins(one.stdout, "ended:") == "ended: drained"
    _, errors = one.communicate(timeout=WITHIN)
    assert one.returncode == 0
    assert "Traceback" not in errors


def test_a_worker_whose_service_is_gone_leaves_after_its_deadline_even_if_its_handler_hangs(
    start: Start, work: Work
) -> None:
    service, facts = serving(start, "--topic", "g/t=1", "--debounce", "0.1")
    one = work(facts["grpc"], "one", revoking=3600.0, drain_within=0.5)
    line_that_begins(one.stdout, "mine now")
    service.kill()
    service.wait(WITHIN)
    one.send_signal(signal.SIGTERM)
    assert line_that_begins(one.stdout, "ended:") == "ended: left"
    assert one.wait(WITHIN) == 0


def test_a_worker_stopped_before_it_found_its_service_just_ends(work: Work) -> None:
    one = work("127.0.0.1:1", "one")
    line_that_begins(one.stderr, "")
    one.send_signal(signal.SIGTERM)
    assert line_that_begins(one.stdout, "ended:") == "ended: left"
    _, errors = one.communicate(timeout=WITHIN)
    assert one.returncode == 0
    assert "Traceback" not in errors
