"""The ownership event log's files: bounded, complete when they have a name, and never in anybody's way."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assigner.observability import event_log
from assigner.observability.event_log import EventLog, EventSettings, LoggedEvent, Sync
from assigner.observability.metrics import Metrics

Open = Callable[..., EventLog]


def a_line(seq: int) -> LoggedEvent:
    return LoggedEvent(
        ts_us=1_000 + seq, group="g", topic="t", partition=0, member="a", session="s", epoch=seq, event="assigned",
        cause="joined", instance="i", mode="overlap", term=1, part=0, seq=seq,
    )  # fmt: skip


def counted(metrics: Metrics, name: str, outcome: str) -> float:
    return metrics.registry.get_sample_value(f"{name}_total", {"outcome": outcome}) or 0.0


def events_in(directory: Path) -> list[int]:
    """The numbers of all events in complete segments, in order."""
    return [
        json.loads(line)["seq"] for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def opened(tmp_path: Path, metrics: Metrics) -> Iterator[Open]:
    logs: list[EventLog] = []

    def open_log(instance: str = "i", **settings: Any) -> EventLog:
        log = EventLog(EventSettings(directory=str(tmp_path), **settings), instance, metrics)
        log.open()
        logs.append(log)
        return log

    yield open_log
    for log in logs:
        log.close()


@pytest.fixture
def stuck_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Writing reports that it began and waits to be let go: (began, let go)."""
    began, let_go = threading.Event(), threading.Event()
    write = event_log._Segments.write

    def stuck(segments: Any, events: Any) -> None:
        if events:
            began.set()
            let_go.wait(10)
        write(segments, events)

    monkeypatch.setattr(event_log._Segments, "write", stuck)
    yield began, let_go
    let_go.set()


def test_what_is_appended_is_in_a_complete_segment_after_closing(opened: Open, tmp_path: Path) -> None:
    log = opened()
    assert log.append([a_line(1), a_line(2)], 0)
    assert log.append([a_line(3)], 0)
    log.close()
    assert events_in(tmp_path) == [1, 2, 3]
    (segment,) = tmp_path.iterdir()
    assert segment.name == "i-0000000001.jsonl"
    assert json.loads(segment.read_text().splitlines()[0]) == {
        "ts_us": 1001, "group": "g", "topic": "t", "partition": 0, "member": "a", "session": "s", "epoch": 1,
        "event": "assigned", "cause": "joined", "instance": "i", "mode": "overlap", "term": 1, "part": 0, "seq": 1,
    }  # fmt: skip


def test_a_segment_holds_no_more_events_than_it_may(opened: Open, tmp_path: Path) -> None:
    log = opened(segment_events=3)
    log.append([a_line(number) for number in range(8)], 0)
    log.close()
    assert [len(path.read_bytes().splitlines()) for path in sorted(tmp_path.iterdir())] == [3, 3, 2]
    assert events_in(tmp_path) == list(range(8))


def test_a_segment_holds_no_more_bytes_than_it_may(opened: Open, tmp_path: Path) -> None:
    log = opened(segment_bytes=1_000)
    log.append([a_line(number) for number in range(50)], 0)
    log.close()
    assert len(list(tmp_path.iterdir())) > 5
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 1_001
    assert events_in(tmp_path) == list(range(50))


def test_an_old_segment_is_completed_without_further_events(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "_POLL", 0.01)
    completed = threading.Event()
    complete = event_log._Segments.complete

    def told(segments: Any) -> None:
        complete(segments)
        completed.set()

    monkeypatch.setattr(event_log._Segments, "complete", told)
    opened(segment_seconds=0.02).append([a_line(1)], 0)
    assert completed.wait(10)
    assert events_in(tmp_path) == [1]


def test_beyond_the_number_to_keep_the_oldest_segments_go(opened: Open, tmp_path: Path, metrics: Metrics) -> None:
    (tmp_path / "i-x-0000000001.jsonl").write_text('{"seq": 100}\n')
    log = opened(segment_events=1, keep_segments=3)
    log.append([a_line(number) for number in range(10)], 0)
    log.close()
    assert events_in(tmp_path) == [7, 8, 9, 100], "and nobody else's"
    assert counted(metrics, "assigner_event_segments", "deleted") == 7


def test_while_it_grows_a_segment_is_hidden_from_readers(
    opened: Open, tmp_path: Path, stuck_disk: tuple[threading.Event, threading.Event]
) -> None:
    began, let_go = stuck_disk
    log = opened()
    let_go.set()
    log.append([a_line(1)], 0)
    assert began.wait(10)
    log.append([a_line(2)], 0)
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    log.close()
    assert events_in(tmp_path) == [1, 2]


def test_what_a_full_queue_does_not_take_is_refused_and_the_appender_does_not_wait(
    opened: Open, tmp_path: Path, stuck_disk: tuple[threading.Event, threading.Event]
) -> None:
    began, let_go = stuck_disk
    log = opened(queue=10)
    assert log.append([a_line(0)], 0)
    assert began.wait(10)
    assert log.append([a_line(number) for number in range(1, 9)], 0)
    assert not log.has_room
    assert not log.append([a_line(number) for number in range(20, 23)], 0), "eight wait, and three more are too many"
    assert log.append([a_line(9)], 0)
    let_go.set()
    log.close()
    assert events_in(tmp_path) == list(range(10))


def test_a_batch_larger_than_the_queue_is_taken_while_nothing_waits(opened: Open, tmp_path: Path) -> None:
    log = opened(queue=10)
    assert log.append([a_line(number) for number in range(100)], 0)
    log.close()
    assert events_in(tmp_path) == list(range(100))


def test_when_the_disk_refuses_everything_that_waits_is_dropped_and_nothing_follows_the_hole(
    opened: Open, tmp_path: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "_RETRY", 0.01)
    write, refusing = event_log._Segments.write, threading.Event()
    refusing.set()

    def full(segments: Any, events: Any) -> None:
        if events and refusing.is_set():
            refusing.clear()
            raise OSError(28, "No space left on device")
        write(segments, events)

    monkeypatch.setattr(event_log._Segments, "write", full)
    log = opened()
    log.append([a_line(1), a_line(2)], 0)
    wait_until(lambda: log.failures == 1)
    assert not log.append([a_line(3)], 0), "appended by somebody who does not know of the hole"
    assert log.append([a_line(4)], 1)
    log.close()
    assert events_in(tmp_path) == [4]
    assert counted(metrics, "assigner_ownership_events", "dropped") == 2
    assert counted(metrics, "assigner_ownership_events", "written") == 1


def test_what_a_killed_process_left_is_completed_by_its_successor_without_the_torn_line(
    opened: Open, tmp_path: Path
) -> None:
    (tmp_path / ".i-0000000007.jsonl.open").write_bytes(b'{"seq": 70}\n{"seq": 71}\n{"se')
    (tmp_path / ".other-0000000001.jsonl.open").write_bytes(b'{"seq": 99}\n')
    log = opened()
    log.append([a_line(72)], 0)
    log.close()
    assert events_in(tmp_path) == [70, 71, 72]
    assert (tmp_path / "i-0000000008.jsonl").exists()
    assert (tmp_path / ".other-0000000001.jsonl.open").exists(), "its process may be alive"


@pytest.mark.parametrize(("sync", "least"), [(Sync.SEGMENT, 2), (Sync.BATCH, 3), (Sync.NEVER, 0)])
def test_events_are_forced_to_the_disk_as_often_as_set(
    opened: Open, monkeypatch: pytest.MonkeyPatch, sync: Sync, least: int
) -> None:
    forced: list[int] = []
    monkeypatch.setattr(os, "fsync", forced.append)
    log = opened(sync=sync)
    log.append([a_line(1)], 0)
    log.close()
    assert len(forced) == least


def test_a_name_that_is_no_file_name_is_encoded(opened: Open, tmp_path: Path) -> None:
    log = opened("a/b*c")
    log.append([a_line(1)], 0)
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a%2Fb%2Ac-0000000001.jsonl"]


def wait_until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1_000):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError("not within 10 s")
