"""What the benchmark of cutovers concludes from a recording: every fault that it counts is seen in one made by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from io import StringIO
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from assigner.core.routing.partitioner import murmur2_partition
from bench.cutover.analysis import Findings, Move, analyse, handovers, lost, order, windows
from bench.cutover.course import COURSE, FIRST_PODS, PARTITIONS, QUICK, SECOND, USUAL, Action, requests
from bench.cutover.kafka_group import sent as sent_of_records
from bench.cutover.recording import Happened, Journal, Outcome, Recording, Sent, Served, served_in
from bench.cutover.report import MUST_BE_NONE, broken, middle, report
from bench.cutover.router import Backlog, keys
from bench.sheets import terminal

MS = SECOND // 1000


def served(sequence: int, at_ms: int, owner: str = "a", epoch: int = 1, *, lasting: int = 2, key: str = "k") -> Served:
    return Served(0, epoch, owner, key, sequence, at_ms * MS, (at_ms + lasting) * MS)


def sent(sequence: int, at_ms: int, outcome: Outcome = Outcome.ANSWERED, *, took: int = 3, **more: int) -> Sent:
    return msgspec.structs.replace(Sent("k", sequence, 0, at_ms * MS, (at_ms + took) * MS, outcome), **more)


def recording(sent: list[Sent], served: list[Served], *happened: Happened) -> Recording:
    return Recording(contestant="ours", sent=sent, served=served, happened=happened)


MOVED = [served(0, 0), served(1, 32), served(2, 90, "b", 2), served(3, 122, "b", 2)]
"""From a to b, which rests for 56 ms."""
ASKED = [sent(0, 0), sent(1, 32), sent(2, 64, took=28, stashed=26 * MS), sent(3, 122)]


def found(recorded: Recording) -> dict[str, int]:
    """The faults that were found."""
    result = analyse(recorded)
    return {name: number for name in MUST_BE_NONE if (number := getattr(result, name))}


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_clean_move_has_no_fault() -> None:
    result = analyse(recording(ASKED, MOVED, Happened(10 * MS, Action.JOIN, "b")))
    assert broken(result) == []
    assert (result.requests, result.moves, result.cut, result.failed, result.refused) == (4, 1, 0, 0, 0)
    assert result.pauses[Action.JOIN].p50 == pytest.approx(0.056)
    assert result.stashed == 1
    assert result.longest_stash == pytest.approx(0.026)


def test_a_request_without_an_end_is_lost() -> None:
    assert found(recording([*ASKED, sent(4, 200, Outcome.LOST)], MOVED)) == {"lost": 1}


def test_a_request_that_was_answered_without_an_effect_is_lost() -> None:
    assert found(recording(ASKED, MOVED[:3])) == {"lost": 1}
    assert lost(ASKED, MOVED) == 0


def test_an_effect_under_an_epoch_that_is_over_is_stale() -> None:
    assert found(recording(ASKED, [*MOVED, served(4, 130)])) == {"stale": 1}
    assert found(recording(ASKED, [*MOVED, served(4, 130, "b", 1)])) == {"stale": 1}


def test_an_owner_that_begins_while_another_one_works_is_the_second_of_two() -> None:
    slow = served(1, 32, lasting=60)
    assert found(recording(ASKED, [MOVED[0], slow, *MOVED[2:]])) == {"doubled": 1}


def test_two_owners_of_one_epoch_are_two_of_them() -> None:
    assert found(recording(ASKED, [*MOVED, served(4, 130, "c", 2)])) == {"doubled": 1}


def test_an_effect_after_a_later_one_of_its_key_is_out_of_order() -> None:
    overtaken = [served(1, 0), served(0, 10), served(2, 20)]
    assert found(recording([], overtaken)) == {"disordered": 1}
    other_key = served(0, 10, key="another")
    assert order([served(1, 0), other_key, served(2, 20)]).broken == 0


def test_an_effect_that_comes_twice_is_repeated_and_not_out_of_order() -> None:
    assert found(recording(ASKED, [*MOVED, served(2, 200, "b", 2), served(3, 210, "b", 2)])) == {"repeated": 2}


def test_requests_to_the_killed_and_refusals_are_counted_apart() -> None:
    asked = [
        *ASKED,
        sent(4, 200, Outcome.CUT),
        sent(5, 210, Outcome.FAILED),
        sent(6, 220, refused=2),
        sent(7, 230, waited=1),
    ]
    result = analyse(recording(asked, [*MOVED, served(6, 221, "b", 2), served(7, 231, "b", 2)]))
    assert (result.cut, result.failed, result.refused, result.waited, result.lost) == (1, 1, 1, 1, 0)


@pytest.mark.parametrize("fault", MUST_BE_NONE)
def test_each_fault_is_said_and_none_disappears_among_several_runs(fault: str) -> None:
    clean = analyse(recording(ASKED, MOVED))
    (line,) = broken(msgspec.structs.replace(clean, **{fault: 3}))
    assert line.startswith("ours: 3 ")
    among_others = middle([clean, msgspec.structs.replace(clean, **{fault: 1}), clean])
    assert len(broken(among_others)) == 1


# --- pauses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("happened", "cause"),
    [
        ([], Action.JOIN),
        ([Happened(0, Action.JOIN, "a"), Happened(0, Action.DRAIN, "c")], Action.JOIN),
        ([Happened(20 * MS, Action.DRAIN, "a")], Action.DRAIN),
        ([Happened(40 * MS, Action.KILL, "a")], Action.KILL),
        # It had stopped long before: for another pod that joined, whom the partition reached only now.
        ([Happened(5 * SECOND, Action.DRAIN, "a")], Action.JOIN),
    ],
)
def test_why_a_partition_moved_is_told_by_its_old_owner(happened: list[Happened], cause: Action) -> None:
    moved = [*MOVED[:2], served(2, 6_000, "b", 2)]
    (move,) = handovers(moved, happened).moves
    assert (move.old, move.new, move.cause) == ("a", "b", cause)
    assert move.pause == pytest.approx(5.966)


def test_a_higher_epoch_of_the_same_owner_is_no_move() -> None:
    assert handovers([served(0, 0), served(1, 10, epoch=2)], []) == handovers([served(0, 0)], [])


def test_a_partition_that_comes_back_has_moved_twice() -> None:
    moves = handovers([*MOVED, served(4, 200, "a", 3)], []).moves
    assert [(move.old, move.new) for move in moves] == [("a", "b"), ("b", "a")]
    assert moves[1].pause == pytest.approx(0.076)


# --- latency ---------------------------------------------------------------------------------------------------------


def test_latencies_count_from_when_a_request_was_due_by_what_went_on_then() -> None:
    happened = (Happened(20 * MS, Action.JOIN, "b"), Happened(200 * MS, Action.KILL, "b"))
    killed = [*MOVED, served(5, 250, "c", 3)]
    asked = [*ASKED, sent(4, 210, Outcome.CUT), sent(5, 230, took=22), sent(6, 300, took=4)]
    latencies = analyse(recording(asked, [*killed, served(6, 301, "c", 3)], *happened)).latencies
    assert latencies.quiet is not None
    assert latencies.moving is not None
    assert latencies.killed is not None
    assert (latencies.quiet.count, latencies.moving.count, latencies.killed.count) == (3, 2, 1)
    assert latencies.moving.most == pytest.approx(0.028)
    assert latencies.killed.most == pytest.approx(0.022)
    assert latencies.quiet.most == pytest.approx(0.004)


def test_a_window_lasts_until_the_last_move_of_its_step() -> None:
    happened = [Happened(0, Action.JOIN, "c"), Happened(100, Action.DRAIN, "a"), Happened(200, Action.JOIN, "d")]
    moves = [
        Move(0, "a", "c", Action.JOIN, 10, 50),
        Move(1, "b", "c", Action.JOIN, 20, 60),
        Move(2, "a", "b", Action.DRAIN, 110, 250),
        Move(3, "b", "d", Action.JOIN, 210, 290),
    ]
    assert [(one.begin, one.end) for one in windows(happened, moves)] == [(0, 60), (100, 250), (200, 290)]


def test_a_record_of_kafka_is_answered_when_it_is_served_first() -> None:
    scheduled = [("k", 0, 0, 0), ("k", 1, 0, 10 * MS)]
    records = sent_of_records(scheduled, [served(0, 5), served(0, 50, "b", 2)])
    assert [(one.outcome, one.finished) for one in records] == [(Outcome.ANSWERED, 7 * MS), (Outcome.LOST, 10 * MS)]


# --- the course ------------------------------------------------------------------------------------------------------


def test_pods_come_and_go_so_that_there_always_are_three_to_five() -> None:
    there = set(FIRST_PODS)
    for step in COURSE:
        if step.action is Action.JOIN:
            assert step.pod not in there
            there.add(step.pod)
        else:
            there.remove(step.pod)
        assert 3 <= len(there) <= 5
    assert {step.action for step in COURSE} == set(Action)


@pytest.mark.parametrize("effort", [USUAL, QUICK])
def test_requests_go_on_until_the_partitions_of_the_killed_have_moved(effort: object) -> None:
    assert isinstance(effort, type(USUAL))
    assert effort.lasting(effort.ttl) >= max(effort.seconds, effort.steps[-1].at + effort.ttl + 5)
    assert all(before.at < after.at for before, after in pairwise(effort.steps))


def test_sources_together_make_all_requests_at_equal_distances() -> None:
    made = sorted((due.at, due.partition) for source in (0, 1) for due in requests(2_000, 1.0, source, 2))
    assert [at for at, _ in made] == [number * SECOND // 2_000 for number in range(2_000)]
    shares = Counter(partition for _, partition in made)
    assert len(shares) == PARTITIONS
    assert max(shares.values()) - min(shares.values()) <= 2
    times = [at for at, partition in made if partition == 7]
    distances = {after - before for before, after in pairwise(times)}
    assert max(distances) - min(distances) <= 2 * MS


def test_the_requests_of_a_partition_are_counted() -> None:
    counts = [due.sequence for due in requests(640, 1.0) if due.partition == 5]
    assert counts == list(range(10))


# --- what is written and shown ---------------------------------------------------------------------------------------


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "served.jsonl"
    for one in MOVED:
        Journal(path).add(one)
    assert served_in(path) == MOVED
    assert served_in(tmp_path / "none") == []


def test_the_tables_show_every_contestant_with_medians_of_its_runs() -> None:
    runs = [_with_pause(milliseconds) for milliseconds in (50, 20, 30)]
    without_moves = analyse(recording([], []))
    console = Console(width=250, file=StringIO(), record=True)
    for sheet in report([middle(runs), msgspec.structs.replace(without_moves, contestant="peer")], QUICK, 3):
        console.print(terminal(sheet))
    shown = console.export_text()
    assert "30.0" in shown
    assert " 50.0" not in shown
    assert shown.count("ours") == shown.count("peer") == 3
    assert "400 requests a second" in shown


def _with_pause(milliseconds: int) -> Findings:
    moved = [served(0, 0), served(1, 2 + milliseconds, "b", 2)]
    return analyse(recording([sent(0, 0), sent(1, 1)], moved, Happened(0, Action.JOIN, "b")))


# --- the order of what is sent again ---------------------------------------------------------------------------------


async def test_requests_go_on_in_their_order_when_what_they_waited_for_has_passed() -> None:
    backlog, passed, gone_on = Backlog(), asyncio.Event(), list[int]()

    async def refused(number: int) -> None:
        await backlog.behind(passed.wait)
        gone_on.append(number)

    async def later(number: int) -> None:
        await backlog.turn()
        gone_on.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in (0, 1):
            tasks.create_task(refused(number))
        await asyncio.sleep(0)
        tasks.create_task(later(2))
        await asyncio.sleep(0)
        assert gone_on == []
        passed.set()
        # Others come in every turn of the loop from here on.
        for number in range(3, 10):
            tasks.create_task(later(number))
            await asyncio.sleep(0)
    assert gone_on == list(range(10))
    assert not await backlog.turn()


def test_each_source_has_a_key_of_its_own_for_each_partition() -> None:
    first, second = keys(0), keys(1)
    assert not set(first) & set(second)
    for partition in range(PARTITIONS):
        assert murmur2_partition(first[partition].encode(), PARTITIONS) == partition
