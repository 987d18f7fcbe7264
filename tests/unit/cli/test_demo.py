"""The demo's picture is a function of a snapshot; its log tells each change once, with its cause."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from assigner.api import GroupDescription, PartitionOwner
from assigner.cli import main
from assigner.demo.environment import NAMES, Pace, listed
from assigner.demo.ownership_changes import CAUSE_TIMEOUT, OwnershipChanges
from assigner.demo.recording import animated, frame_text, save
from assigner.demo.rendering import HEIGHT, NARROW, ROWS, WIDE, Layout, layout_for, render
from assigner.demo.routed_script import ROUTED_STEPS
from assigner.demo.script import STEPS, DemoStep, StepFailed, run_script
from assigner.demo.show import selection
from assigner.demo.snapshot import Cell, EventLine, Moving, ProcessStates, Snapshot, State, Worker, snapshot_of
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause, Handoff, Step
from tests.support.fakes.cli_service import description


def snapshot(**fields: object) -> Snapshot:
    given = {
        "at": 12.0,
        "title": "A fourth joins",
        "workers": (Worker("w1", State.READY, 2), Worker("w2", State.KILLED, 1, 1)),
        "cells": (Cell("w1"), Cell("w1", "w2", "warming"), Cell("w2", "", "complete"), Cell()),
        "moving": (Moving(1, "w1", "w2", "warming", "joined"),),
        "lines": (EventLine(3, "w1 joined"), EventLine(4, "w1 → w2", "joined", "01")),
        "generation": 7,
        "moves": 9,
    }
    return Snapshot(**{**given, **fields})  # type: ignore[arg-type]


# --- the picture -------------------------------------------------------------------------------------------------


def drawn(made: Snapshot, layout: Layout, console_width: int = 200) -> list[str]:
    console = Console(file=io.StringIO(), record=True, width=console_width, force_terminal=True)
    console.print(render(made, layout))
    return console.export_text().splitlines()


def test_the_picture_shows_owners_handoffs_workers_and_events() -> None:
    text = "\n".join(drawn(snapshot(), WIDE))
    assert "00 01»02✓03" in text
    assert "01 w1 → w2 warming joined" in text
    assert "w2 killed" in text
    assert "4 w1 → w2 joined 01" in text
    assert "generation 7   moves 9   without owner 1" in text


def test_without_colours_a_partition_shows_its_owner() -> None:
    assert " 1  1» 2✓ - " in frame_text(snapshot())


def test_a_frozen_partition_looks_different_with_and_without_colours() -> None:
    frozen = snapshot(cells=(Cell("w1", "w2", "freezing"), Cell("w1", "w2", "releasing"), Cell("w1")))
    assert frozen.frozen == 2
    assert "00‖01‖02 " in "\n".join(drawn(frozen, WIDE))
    assert " 1‖ 1‖ 1 " in frame_text(frozen)


def test_the_same_scene_makes_the_same_picture() -> None:
    assert frame_text(snapshot()) == frame_text(snapshot())


@pytest.mark.parametrize("layout", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("count", [0, 1, ROWS - 1, ROWS, ROWS + 5])
def test_the_picture_keeps_its_size_whatever_happens(count: int, layout: Layout) -> None:
    moving = tuple(Moving(number, "worker-1", "worker-2", "complete", "draining") for number in range(count))
    lines = tuple(EventLine(number, "worker-1 → worker-2", "draining", "01-63") for number in range(count))
    workers = tuple(Worker(f"worker-{number}", State.DRAINING, count, count) for number in range(4))
    cells = tuple(Cell("worker-1", "worker-2", "warming") for _ in range(64))
    made = drawn(snapshot(moving=moving, lines=lines, workers=workers, cells=cells), layout)
    assert len(made) == HEIGHT
    assert max(len(line.rstrip()) for line in made) == layout.width


def test_the_narrow_picture_says_who_moved_and_why() -> None:
    line = EventLine(99, "worker-1 → worker-2", "draining", "01-63")
    assert " 99 worker-1 → worker-2 draining" in "\n".join(drawn(snapshot(lines=(line,)), NARROW))


@pytest.mark.parametrize("steps", [STEPS, ROUTED_STEPS], ids=["workers", "routers"])
def test_each_title_fits_into_the_narrow_picture(steps: Sequence[DemoStep[Any]]) -> None:
    for step in steps:
        text = "\n".join(drawn(snapshot(title=f"1/{len(steps)}  {step.title}"), NARROW))
        assert step.title in text


@pytest.mark.parametrize(("width", "expected"), [(250, WIDE), (100, WIDE), (99, NARROW), (80, NARROW), (40, NARROW)])
def test_the_layout_follows_the_width_of_the_terminal(width: int, expected: Layout) -> None:
    assert layout_for(Console(width=width, force_terminal=True, color_system="truecolor")) == expected


def test_a_pipe_and_no_color_get_a_picture_without_colours() -> None:
    assert not layout_for(Console(file=io.StringIO(), width=100)).coloured
    assert not layout_for(Console(force_terminal=True, no_color=True)).coloured


def test_only_the_latest_events_are_shown() -> None:
    lines = tuple(EventLine(number, f"event-{number}") for number in range(ROWS + 3))
    text = frame_text(snapshot(lines=lines))
    assert "event-2" not in text
    assert f"event-{ROWS + 2}" in text


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
    assert [worker.state for worker in made.workers] == [State.READY, State.DRAINING, State.NOT_YET]


def test_before_the_group_exists_there_is_nobody() -> None:
    made = take_snapshot(None, ProcessStates(started=frozenset({"a"})))
    assert made.unowned == 6
    assert [worker.state for worker in made.workers] == [State.STARTING, State.NOT_YET, State.NOT_YET]


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
        ("b", (4, 5), ""),
    ]
    assert list(ledger.changes(description(), now=9.0)) == []


def owned_by(owner: str, epoch: int, *handoffs: Handoff) -> GroupDescription:
    ownership = (PartitionOwner(TopicPartition("t", 4), owner, "s", epoch),)
    return msgspec.structs.replace(description(), ownership=ownership, handoffs=handoffs, history=())


def handoff(new_owner: str, cause: Cause) -> Handoff:
    return Handoff(topic="t", partition=4, old_owner="b", new_owner=new_owner, step=Step.RELEASING, cause=cause)


def test_a_change_has_the_cause_of_its_own_handoff_and_not_of_an_earlier_one() -> None:
    ledger, told = OwnershipChanges(), []
    shown = [
        owned_by("b", 1, handoff("a", Cause.JOINED)),
        owned_by("a", 2),
        owned_by("a", 2, handoff("c", Cause.DRAINING)),
        owned_by("c", 3),
        owned_by("a", 4),
    ]
    for number, found in enumerate([*shown, shown[-1]]):
        told += [(change.new, change.cause) for change in ledger.changes(found, number * CAUSE_TIMEOUT)]
    assert told == [("b", ""), ("a", "joined"), ("c", "draining"), ("a", "")]


@pytest.mark.parametrize(
    ("partitions", "text"), [((), ""), ((7,), "07"), ((8, 7), "07-08"), ((0, 1, 2, 5, 20, 21), "00-02,05,20-21")]
)
def test_partitions_are_listed_as_ranges(partitions: tuple[int, ...], text: str) -> None:
    assert listed(partitions) == text


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


def test_a_selection_keeps_what_changed_of_every_step_and_the_end() -> None:
    changing = [
        snapshot(at=float(number), title=f"step {number // 50}", cells=(Cell("w1", epoch=number // 5),))
        for number in range(100)
    ]
    chosen = selection(changing, 11)
    assert len(chosen) <= 11
    assert chosen[-1] is changing[-1]
    assert len({one.cells for one in chosen[:-1]}) == len(chosen) - 1
    assert [one.title for one in chosen[:-1]] == ["step 0"] * 5 + ["step 1"] * 5


def test_a_selection_prefers_moments_in_which_partitions_move_and_has_none_before_there_are_owners() -> None:
    frozen = snapshot(cells=(Cell("w1", "w2", "freezing"),))
    calm = [snapshot(cells=(Cell("w1", epoch=number),)) for number in range(9)]
    nothing = [snapshot(cells=(Cell(),)), snapshot(cells=(Cell(step="x"),))]
    assert selection([*nothing, *calm, frozen, calm[-1]], 2) == [frozen, calm[-1]]


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
        return Snapshot(cells=(Cell(),) * 4, workers=tuple(Worker(name, State.NOT_YET) for name in NAMES))


async def test_an_act_that_never_ends_fails_by_name() -> None:
    async def at_once(_seconds: float) -> None:
        pass

    with pytest.raises(StepFailed, match=STEPS[0].title):
        async for _ in run_script(EmptyStage(), STEPS, at_once):  # type: ignore[misc]
            pass


def test_a_wrong_speed_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["demo", "--speed", "0"]).exit_code == 2
