"""Reported loads as pure decisions: what is smoothed, what is worth writing, what is forgotten."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assigner.core.loads.records import (
    BLOCK,
)
from assigner.core.loads.samples import LoadSamples
from assigner.core.loads.weights import LoadSettings
from assigner.errors import LimitReached

WALL = 1_700_000_000.0
TOPICS = [("a", 4), ("b", 2)]
SETTINGS = LoadSettings()


def told(samples: LoadSamples, loads: dict[int, float], now: float, topic: str = "t", count: int = 4) -> None:
    numbers = np.asarray(list(loads), np.int32)
    samples.take("g", topic, count, numbers, np.asarray(list(loads.values())), now)


def changes_due(samples: LoadSamples, now: float, *, write: bool = True) -> list[dict[int, float]]:
    """What is worth writing, by record; as if it were written, unless told otherwise."""
    found = []
    for one in samples.partition_changes("g", now, WALL + now):
        found.append(dict(zip(one.numbers.tolist(), one.loads.tolist(), strict=True)))
        if write:
            samples.partitions_written("g", one, now)
    return found


def test_a_first_report_is_worth_writing_and_is_written_once() -> None:
    samples = LoadSamples(SETTINGS)
    told(samples, {1: 5.0}, 0)
    assert changes_due(samples, 60) == [{1: 5.0}]
    assert changes_due(samples, 120) == []


def test_what_could_not_be_written_is_worth_it_still() -> None:
    samples = LoadSamples(SETTINGS)
    told(samples, {1: 5.0}, 0)
    changes_due(samples, 60, write=False)
    assert changes_due(samples, 120) == [{1: 5.0}]


def test_a_report_is_smoothed_by_the_time_since_the_last_one() -> None:
    samples = LoadSamples(SETTINGS)
    told(samples, {0: 0.0}, 0)
    told(samples, {0: 100.0}, 60)
    assert changes_due(samples, 60) == [{0: pytest.approx(100 * (1 - math.exp(-1)))}]


def test_reporting_more_often_does_not_count_more() -> None:
    rare, often = LoadSamples(SETTINGS), LoadSamples(SETTINGS)
    for samples in (rare, often):
        told(samples, {0: 0.0}, 0)
    told(rare, {0: 100.0}, 60)
    for second in range(1, 61):
        told(often, {0: 100.0}, second)
    assert changes_due(often, 60)[0][0] == pytest.approx(changes_due(rare, 60)[0][0])


def test_a_report_after_a_long_silence_is_taken_as_it_is() -> None:
    samples = LoadSamples(SETTINGS)
    told(samples, {0: 100.0}, 0)
    told(samples, {0: 1.0}, SETTINGS.stale_after + 1)
    assert changes_due(samples, SETTINGS.stale_after + 1) == [{0: 1.0}]


def test_jitter_is_not_worth_a_write() -> None:
    samples = LoadSamples(SETTINGS)
    told(samples, {0: 100.0, 1: 1.0}, 0)
    changes_due(samples, 60)
    for now in range(61, 180, 10):
        told(samples, {0: 100.0 + 9 * (-1) ** now, 1: 1.5}, now)
        assert changes_due(samples, now) == []


def test_a_change_past_the_threshold_takes_everything_reported_since_along() -> None:
    samples = LoadSamples(SETTINGS)
    told(samples, {0: 100.0, 1: 1.0, 2: 7.0}, 0)
    changes_due(samples, 0)
    told(samples, {0: 400.0, 1: 1.1}, 60)
    assert [sorted(one) for one in changes_due(samples, 60)] == [[0, 1]]


def test_loads_that_do_not_change_are_written_before_they_are_stale() -> None:
    samples = LoadSamples(SETTINGS)
    written = []
    for now in range(0, 1200, 10):
        told(samples, {0: 3.0}, now)
        if now % 60 == 0 and changes_due(samples, now):
            written.append(now)
    assert written == [0, 300, 600, 900]


def test_a_report_counts_from_when_it_was_made_however_late_it_is_written() -> None:
    samples = LoadSamples(SETTINGS)
    told(samples, {0: 3.0}, 0)
    (one,) = samples.partition_changes("g", 500, WALL + 500)
    assert one.until.tolist() == [WALL + SETTINGS.stale_after]


def test_a_report_too_old_to_count_is_not_written_any_more() -> None:
    samples = LoadSamples(SETTINGS)
    told(samples, {0: 3.0}, 0)
    assert changes_due(samples, SETTINGS.stale_after) == []


def test_a_topic_that_grew_keeps_what_is_known() -> None:
    samples = LoadSamples(SETTINGS)
    told(samples, {0: 3.0}, 0, count=1)
    told(samples, {5: 4.0}, 1, count=6)
    assert changes_due(samples, 1) == [{0: 3.0, 5: 4.0}]


def test_a_topic_that_shrank_loses_what_is_gone() -> None:
    samples = LoadSamples(SETTINGS)
    told(samples, {5: 4.0}, 0, count=6)
    told(samples, {0: 3.0}, 1, count=1)
    assert changes_due(samples, 1) == [{0: 3.0}]
    assert len(samples) == 1


def test_each_block_of_a_large_topic_is_worth_a_write_of_its_own() -> None:
    samples = LoadSamples(SETTINGS)
    told(samples, {1: 1.0, BLOCK + 2: 2.0}, 0, count=BLOCK + 3)
    changes = list(samples.partition_changes("g", 0, WALL))
    assert [(one.block, one.numbers.tolist(), one.loads.tolist()) for one in changes] == [
        (0, [1], [1.0]),
        (1, [2], [2.0]),
    ]
    for one in changes:
        samples.partitions_written("g", one, 0)
    assert changes_due(samples, 60) == []


def test_more_partitions_of_a_group_than_the_limit_are_refused_and_the_rest_goes_on() -> None:
    samples = LoadSamples(SETTINGS, most=10)
    told(samples, {0: 1.0}, 0, topic="t", count=8)
    with pytest.raises(LimitReached, match="10 partitions of a group"):
        told(samples, {0: 1.0}, 0, topic="u", count=3)
    told(samples, {0: 1.0}, 0, topic="v", count=2)
    assert len(samples) == 10


def test_more_partitions_of_all_groups_than_the_limit_are_refused() -> None:
    samples = LoadSamples(SETTINGS, most=10)
    for group in "abcd":
        samples.take(group, "t", 10, np.asarray([0], np.int32), np.asarray([1.0]), 0)
    with pytest.raises(LimitReached, match="of all groups"):
        told(samples, {0: 1.0}, 0, count=1)


def test_what_nobody_reports_any_more_is_forgotten_and_leaves_room() -> None:
    samples = LoadSamples(SETTINGS, most=10)
    told(samples, {0: 1.0}, 0, topic="t", count=10)
    samples.take_node("g", "n", 1.0, 0)
    samples.forget(SETTINGS.stale_after)
    assert samples.groups == ()
    told(samples, {0: 1.0}, 0, topic="u", count=10)


def test_a_nodes_load_is_worth_a_write_when_it_changed() -> None:
    samples = LoadSamples(SETTINGS)
    for number in range(20):
        samples.take_node("g", f"n{number}", 0.5, 0)
    first = samples.node_change("g", 0, WALL)
    assert first is not None
    assert set(first.loads) == {f"n{number}" for number in range(20)}
    samples.nodes_written("g", first, 0)
    samples.take_node("g", "n3", 0.51, 60)
    assert samples.node_change("g", 60, WALL) is None
    samples.take_node("g", "n3", 0.99, 120)
    second = samples.node_change("g", 120, WALL)
    assert second is not None
    assert set(second.loads) == {"n3"}


def test_a_silent_node_is_forgotten_and_the_others_keep_their_loads() -> None:
    samples = LoadSamples(SETTINGS)
    samples.take_node("g", "old", 0.1, 0)
    samples.take_node("g", "new", 0.9, 500)
    samples.forget(700)
    change = samples.node_change("g", 700, WALL)
    assert change is not None
    assert {name: load for name, (load, _) in change.loads.items()} == {"new": 0.9}


def test_more_nodes_than_the_limit_are_refused() -> None:
    samples = LoadSamples(SETTINGS, most_nodes=2)
    samples.take_node("g", "a", 1.0, 0)
    samples.take_node("g", "b", 1.0, 0)
    samples.take_node("g", "a", 2.0, 1)
    with pytest.raises(LimitReached, match="2 nodes"):
        samples.take_node("g", "c", 1.0, 1)
