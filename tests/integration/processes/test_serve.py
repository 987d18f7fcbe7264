"""`assigner serve` and `assigner consume` as processes: they come up, say where, and leave in order when told to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

WITHIN = 60.0

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `assigner` with arguments; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "assigner.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line_with(stream: Any, event: str) -> dict[str, Any]:
    """The first JSON line about the event."""
    deadline = time.monotonic() + WITHIN
    seen = []
    while time.monotonic() < deadline and (line := stream.readline()):
        seen.append(line)
        if line.startswith("{") and json.loads(line).get("event") == event:
            found: dict[str, Any] = json.loads(line)
            return found
    raise AssertionError(f"no {event!r} in {''.join(seen)}")


def serving(start: Start, *arguments: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    process = start("serve", "--grpc-port", "0", "--http-port", "0", *arguments)
    return process, line_with(process.stderr, "service_started")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_where_it_serves_and_exits_with_0_on_a_signal(start: Start, number: signal.Signals) -> None:
    process, facts = serving(start)
    assert facts["store"] == "memory"
    assert facts["grpc"].startswith("127.0.0.1:")
    assert facts["http"].startswith("http://127.0.0.1:")
    process.send_signal(number)
    _, errors = process.communicate(timeout=WITHIN)
    assert process.returncode == 0
    assert number.name in errors


def test_a_consumer_prints_what_happens_to_it_and_leaves_on_a_signal(start: Start) -> None:
    _, facts = serving(start, "--topic", "g/t=2", "--debounce", "0.1")
    consumer = start("consume", "g", "--name", "c", "--address", facts["grpc"], "-o", "json")
    assert line_with(consumer.stdout, "joined")["consumer"] == "c"
    assert line_with(consumer.stdout, "assigned")["topic"] == "t"
    consumer.send_signal(signal.SIGTERM)
    assert line_with(consumer.stdout, "left")["how"] == "left"
    assert consumer.wait(WITHIN) == 0


def test_a_consumer_that_drains_hands_everything_over_first(start: Start) -> None:
    _, facts = serving(start, "--topic", "g/t=1", "--debounce", "0.1")
    one = start("consume", "g", "--name", "one", "--address", facts["grpc"], "-o", "json", "--drain")
    line_with(one.stdout, "assigned")
    other = start("consume", "g", "--name", "two", "--address", facts["grpc"], "-o", "json")
    line_with(other.stdout, "joined")
    one.send_signal(signal.SIGTERM)
    assert line_with(other.stdout, "assigned")["partition"] == 0
    assert line_with(one.stdout, "left")["how"] == "drained"
    assert one.wait(WITHIN) == 0


def test_a_consumer_whose_name_is_taken_over_is_refused_with_exit_code_1(start: Start) -> None:
    _, facts = serving(start, "--topic", "g/t=1")
    first = start("consume", "g", "--name", "same", "--address", facts["grpc"], "-o", "json")
    line_with(first.stdout, "joined")
    second = start("consume", "g", "--name", "same", "--address", facts["grpc"], "-o", "json")
    line_with(second.stdout, "joined")
    assert first.wait(WITHIN) == 1
    assert first.stderr is not None
    assert json.loads(first.stderr.read().splitlines()[-1])["error"]["kind"] == "Superseded"


def test_a_consumer_without_a_service_is_exit_code_3(start: Start) -> None:
    consumer = start("consume", "g", "--address", "127.0.0.1:1", "--timeout", "0.5")
    _, errors = consumer.communicate(timeout=WITHIN)
    assert consumer.returncode == 3
    assert "is `assigner serve` running?" in errors


def test_wrong_settings_are_exit_code_2(start: Start) -> None:
    process = start("serve", "--grpc-port", "99999")
    _, errors = process.communicate(timeout=WITHIN)
    assert process.returncode == 2
    assert "grpc.port must be at most 65535" in errors


def test_an_unknown_store_is_exit_code_2_and_names_those_there_are(start: Start) -> None:
    process = start("serve", "--store", "zookeeper", "--grpc-port", "0", "--http-port", "0")
    _, errors = process.communicate(timeout=WITHIN)
    assert process.returncode == 2
    assert "installed: etcd, memory" in errors


def test_a_taken_http_port_is_exit_code_2_with_the_remedy(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start("serve", "--grpc-port", "0", "--http-port", str(taken.getsockname()[1]))
        _, errors = process.communicate(timeout=WITHIN)
    assert process.returncode == 2
    assert "choose another --http-port" in errors


def test_a_taken_grpc_port_is_exit_code_2_with_the_remedy(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start("serve", "--http-port", "0", "--grpc-port", str(taken.getsockname()[1]))
        _, errors = process.communicate(timeout=WITHIN)
    assert process.returncode == 2
    assert "choose another --grpc-port" in errors
    assert "Traceback" not in errors


def test_an_open_address_without_tls_is_refused(start: Start) -> None:
    process = start("serve", "--grpc-host", "0.0.0.0", "--grpc-port", "0", "--http-port", "0")
    _, errors = process.communicate(timeout=WITHIN)
    assert process.returncode == 2
    assert "insecure" in errors
    assert "--auth-required false" in errors


def test_an_open_address_without_keys_is_refused_until_the_flag_says_that_everybody_may_call(start: Start) -> None:
    open_address = ("serve", "--grpc-host", "0.0.0.0", "--insecure", "--grpc-port", "0", "--http-port", "0")
    process = start(*open_address)
    _, errors = process.communicate(timeout=WITHIN)
    assert process.returncode == 2
    assert "auth.keys" in errors
    assert "insecure" not in errors
    process = start(*open_address, "--auth-required", "false")
    assert process.stderr is not None
    line = next(line for line in process.stderr if "service_started" in line)
    assert "Traceback" not in line
    process.terminate()
    process.communicate(timeout=WITHIN)
    assert process.returncode == 0


def test_a_service_that_waits_for_its_store_still_ends_on_a_signal(start: Start) -> None:
    with socket.socket() as silent:
        # It accepts connections and never answers: a hung store.
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        process = start("serve", "--store", "etcd", "--endpoints", endpoint, "--grpc-port", "0", "--http-port", "0")
        silent.settimeout(WITHIN)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=WITHIN)
    assert process.returncode == 0
