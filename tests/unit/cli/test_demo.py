"""The demo's picture is a function of a snapshot; its log tells each change once, with its cause."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from assigner.api import GroupDescription
from assigner.cli import main
from assigner.demo.environment import NAMES, Pace
from assigner.demo.ownership_changes import CAUSE_TIMEOUT, OwnershipChanges
from assigner.demo.recording import animated, frame_text, save
from assigner.demo.rendering import LOG_LINES, MOVING_LINES
from assigner.demo.script import STEPS, StepFailed, run_script
from assigner.demo.show import selection
from assigner.demo.snapshot import Cell, EventLine, Moving, ProcessStates, Snapshot, State, Worker, snapshot_of
from tests.support.fakes.cli_service import description


def snapshot(**fields: object) -> Snapshot:
    given = {
        "at": 12.0,
        "title": "A fourth joins",
        "workers": (Worker("w1", State.READY, 2), Worker("w2", State.KILLED, 1, 1)),
        "cells": (Cell("w1"), Cell("w1", "w2", "warming"), Cell("w2", "", "complete"), Cell()),
        "moving": (Moving(1, "w1", "w2", "warming", "joined"),),
        "lines": (EventLine(3, "w1 joined"), EventLine(4, "01 w1 → w2", "joined")),
        "generation": 7,
        "moves": 9,
    }
    return Snapshot(**{**given, **fields})  # type: ignore[arg-type]


# --- the picture -------------------------------------------------------------------------------------------------


def test_the_picture_shows_owners_handoffs_workers_and_events() -> None:
    text = frame_text(snapshot())
    assert "00 01▸02✓03" in text
    assert "01 w1 → w2 warming joined" in text
    assert "w2 killed" in text
    assert "4 01 w1 → w2  joined" in text
    assert "generation 7   moves 9   without owner 1" in text


def test_the_same_scene_makes_the_same_picture() -> None:
    assert frame_text(snapshot()) == frame_text(snapshot())


@pytest.mark.parametrize("count", [0, 1, MOVING_LINES, MOVING_LINES + 5])
def test_the_picture_keeps_its_height_during_any_handoffs(count: int) -> None:
    moving = tuple(Moving(number, "w1", "w2", "warming", "joined") for number in range(count))
    lines = tuple(EventLine(number, "x") for number in range(count))
    heights = len(frame_text(snapshot(moving=moving, lines=lines)).splitlines())
    assert heights == len(frame_text(snapshot()).splitlines())


def test_only_the_latest_events_are_shown() -> None:
    lines = tuple(EventLine(number, f"event-{number}") for number in range(LOG_LINES + 3))
    text = frame_text(snapshot(lines=lines))
    assert "event-2" not in text
    assert f"event-{LOG_LINES + 2}" in text


def test_an_empty_scene_can_be_drawn() -> None:
    assert "without owner 0" in frame_text(Snapshot())


def test_names_are_not_taken_for_markup() -> None:
    assert "[red]" in frame_text(snapshot(lines=(EventLine(1, "[red] joined"),)))


# --- snapshots from descriptions ------------------------------------------------------------------------------------


def take_snapshot(found: GroupDescription | None, processes: ProcessStates = ProcessStates()) -> Snapshot:  # noqa: B008  (frozen)
    return snapshot_of(found, 6, ("a", "b [red]", "c"), processes, at=0, title="", lines=(), moves=0)


def test_a_description_becomes_cells_and_workers() -> None:
    made = take_snapshot(description())
    assert made.cells[0] == Cell("a", epoch=9)
    assert made.cells[4] == Cell("b", "a", "warming", 9)
    assert made.unowned == 1
    assert [worker.state for worker in made.workers] == [State.READY, State.DRAINING, State.WAITING]


def test_before_the_group_exists_there_is_nobody() -> None:
    made = take_snapshot(None)
    assert made.unowned == 6
    assert {worker.state for worker in made.workers} == {State.WAITING}


def test_a_killed_worker_is_shown_as_killed_until_its_partitions_are_gone() -> None:
    killed = ProcessStates(killed=frozenset({"a", "c"}))
    states = {worker.name: worker.state for worker in take_snapshot(description(), killed).workers}
    assert states["a"] is State.KILLED
    assert states["c"] is State.GONE


# --- the log -----------------------------------------------------------------------------------------------------


def test_each_change_is_shown_once_with_its_cause() -> None:
    ledger = OwnershipChanges()
    told = list(ledger.changes(description(), now=0.0))
    assert [(change.partitions, change.cause) for change in told] == [((0,), "joined")]
    rest = list(ledger.changes(description(), now=CAUSE_TIMEOUT))
    assert sorted((change.new, change.partitions, change.cause) for change in rest) == [
        ("a", (1, 2), ""),
        ("b", (4,), "draining"),
        ("b", (5,), ""),
    ]
    assert list(ledger.changes(description(), now=9.0)) == []


def test_first_owners_are_no_moves() -> None:
    ledger = OwnershipChanges()
    list(ledger.changes(description(), now=0.0))
    assert ledger.moves == 0


# --- recordings --------------------------------------------------------------------------------------------------


def test_a_recording_is_a_picture_that_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "demo.svg"
    save([snapshot(), snapshot(at=13.0)], path)
    root = ET.parse(path).getroot()
    assert root.tag.endswith("svg")
    assert path.read_text().count('class="frame"') == 2
    assert "url(" not in path.read_text().replace("url(#", "")


def test_frames_take_turns() -> None:
    assert "animation-delay:1.6s" in animated([snapshot(), snapshot()])


def test_a_recording_may_be_text(tmp_path: Path) -> None:
    path = tmp_path / "demo.txt"
    save([snapshot()], path)
    assert "A fourth joins" in path.read_text()


def test_a_selection_keeps_what_changed_and_the_end() -> None:
    changing = [snapshot(at=float(number), cells=(Cell("w1", epoch=number // 5),)) for number in range(100)]
    chosen = selection(changing, 10)
    assert len(chosen) <= 10
    assert chosen[-1] is changing[-1]
    assert len({one.cells for one in chosen[:-1]}) == len(chosen) - 1


# --- the script ---------------------------------------------------------------------------------------------------


class EmptyStage:
    """Nothing ever happens on it, but time passes."""

    pace = Pace()
    title = ""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 10
        return self.time

    async def start(self, *_names: str) -> None:
        pass

    async def take_snapshot(self) -> Snapshot:
        return Snapshot(cells=(Cell(),) * 4, workers=tuple(Worker(name, State.WAITING) for name in NAMES))


async def test_an_act_that_never_ends_fails_by_name() -> None:
    async def at_once(_seconds: float) -> None:
        pass

    with pytest.raises(StepFailed, match=STEPS[0].title):
        async for _ in run_script(EmptyStage(), STEPS, at_once):  # type: ignore[misc]
            pass


def test_a_wrong_speed_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["demo", "--speed", "0"]).exit_code == 2
