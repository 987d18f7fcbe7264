"""The log of changes that the streams of a group share: each takes what has changed since, once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.model.keys import TopicPartition
from assigner.routers import change_log
from assigner.routers.change_log import ChangeLog, LogReader

PARTITIONS = 12
SLACK = 8
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(0, PARTITIONS - 1), max_size=6)),
    st.tuples(st.just("take"), st.integers(0, 4), st.integers(1, 5)),
    st.tuples(st.just("skip"), st.integers(0, 4)),
    st.tuples(st.just("close"), st.integers(0, 4)),
    st.tuples(st.just("open")),
)


def tps(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in numbers]


def drained(reader: LogReader, most: int = 3) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    while part := reader.take(most):
        found += part
    return found


@pytest.fixture(autouse=True)
def _little_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "SLACK", SLACK)


@settings(max_examples=300)
@given(st.lists(OPERATIONS, max_size=80))
def test_each_reader_takes_every_partition_that_has_changed_since_and_no_other(operations: Iterable[tuple]) -> None:  # type: ignore[type-arg]
    log = ChangeLog()
    readers: list[tuple[LogReader, set[TopicPartition]]] = []
    for name, *details in operations:
        chosen = readers[details[0] % len(readers)] if readers and name in ("take", "skip", "close") else None
        if name == "add":
            changed = dict.fromkeys(tps(*details[0]))
            log.add(changed)
            for _, pending in readers:
                pending.update(changed)
        elif name == "open":
            readers.append((log.reader(), set()))
        elif chosen is None:
            continue
        elif name == "take":
            taken = chosen[0].take(details[1])
            assert taken == sorted(set(taken))
            assert len(taken) <= details[1]
            assert set(taken) <= chosen[1]
            chosen[1].difference_update(taken)
        elif name == "skip":
            chosen[0].skip()
            chosen[1].clear()
        else:
            chosen[0].close()
            readers.remove(chosen)
        assert len(log) <= 4 * PARTITIONS + SLACK
        for reader, pending in readers:
            assert bool(reader) == bool(pending)
            assert len(reader) <= PARTITIONS
    for reader, pending in readers:
        assert sorted(drained(reader)) == sorted(pending)
        assert not reader


def test_what_a_reader_has_before_it_is_kept_and_the_rest_is_dropped() -> None:
    log = ChangeLog()
    slow, quick = log.reader(), log.reader()
    for number in range(100):
        log.add(tps(number))
        quick.take(10)
    assert len(slow) == 100
    slow.take(1_000)
    for number in range(100, 400):
        log.add(tps(number))
        assert quick.take(10) == slow.take(10) == tps(number)
    assert len(log) <= 2 * SLACK


def test_a_reader_that_takes_nothing_keeps_each_partition_once() -> None:
    log = ChangeLog()
    slow = log.reader()
    for number in range(10_000):
        log.add(tps(number % 5))
    assert len(slow) == 5
    assert len(log) <= 4 * 5 + SLACK
    assert drained(slow) == tps(*range(5))


def test_a_closed_reader_takes_nothing_and_holds_nothing() -> None:
    log = ChangeLog()
    reader = log.reader()
    log.add(tps(1, 2))
    reader.close()
    reader.close()
    assert reader.take(10) == []
    assert len(reader) == 0
    for number in range(1_000):
        log.add(tps(number))
    assert len(log) <= SLACK
    assert reader.take(10) == []


def test_a_partition_that_changes_again_comes_after_those_that_did_not() -> None:
    log = ChangeLog()
    reader = log.reader()
    log.add(tps(1, 2, 3))
    log.add(tps(1))
    assert reader.take(2) == tps(2, 3)
    assert reader.take(2) == tps(1)
