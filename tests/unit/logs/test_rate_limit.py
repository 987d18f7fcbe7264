"""Lines that peers can provoke are bounded per kind; those of the service itself are not."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from assigner import logs
from assigner.logs import LogSettings, rate_limit


class Watch:
    now = 1000.0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(rate_limit, "_now", lambda: watch.now)
    return watch


@pytest.fixture
def stream(watch: Watch) -> Iterator[io.StringIO]:
    root = logging.getLogger()
    level = root.level
    stream = io.StringIO()
    logs.configure(LogSettings(), stream)
    yield stream
    logs.close()
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    logs.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    "name", ["asyncio", "aiohttp.server", "grpclib.server", "assigner.server.transport.connection"]
)
def test_of_one_kind_only_so_many_lines_a_minute_are_written(stream: io.StringIO, name: str) -> None:
    for number in range(500):
        logging.getLogger(name).error("failed for the %d. time", number)
    logging.getLogger(name).error("something else")
    written = lines(stream)
    assert len(written) == rate_limit.PER_MINUTE + 1
    assert written[-1]["event"] == "something else"


def test_the_next_minute_logs_how_many_were_left_out(stream: io.StringIO, watch: Watch) -> None:
    log = logs.get_logger("assigner.server.x")
    for _ in range(rate_limit.PER_MINUTE + 7):
        log.warning("refused", address="a")
    watch.now += 61
    log.warning("refused", address="b")
    last = lines(stream)[-1]
    assert last["address"] == "b"
    assert last["left_out"] == 7


def test_what_no_peer_provokes_is_never_left_out(stream: io.StringIO) -> None:
    for _ in range(500):
        logs.get_logger("assigner.leader.coordinator").warning("moved")
        logging.getLogger("asyncio").info("not even heard")
    assert len(lines(stream)) == 500


def test_kinds_are_bounded_too(stream: io.StringIO) -> None:
    for number in range(3 * rate_limit.MAX_KINDS):
        logging.getLogger("asyncio").error(f"kind {number}")
    assert len(lines(stream)) == 3 * rate_limit.MAX_KINDS
