"""Loads on record as pure decisions: what is read, what counts, and when a plan goes by it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.core.loads.records import (
    BLOCK,
    LONGEST,
    MAX_NODES,
    SKEW,
    NodeChange,
    PartitionChange,
    read,
)
from assigner.core.loads.weights import FLOOR, GroupLoads, LoadSettings, RecordedLoads
from assigner.errors import UnreadableRecord
from assigner.model.records import Loads, decode, encode

WALL = 1_700_000_000.0
TOPICS = [("a", 4), ("b", 2)]
SETTINGS = LoadSettings()


def change(topic: str, loads: dict[int, float], until: float = WALL + 600, **how: Any) -> PartitionChange:
    numbers = np.asarray(sorted(loads), np.int32)
    values = np.asarray([loads[number] for number in sorted(loads)], np.float64)
    return PartitionChange(topic, how.pop("block", 0), numbers, values, np.full(len(loads), until), **how)


def record(topic: str, loads: dict[int, float], until: float = WALL + 600) -> Loads:
    return change(topic, loads, until).of(None, WALL)


def records(**topics: dict[int, float]) -> dict[str, Loads]:
    return {topic: record(topic, loads) for topic, loads in topics.items()}


def recorded(**topics: dict[int, float]) -> RecordedLoads:
    return RecordedLoads(records(**topics))


def weights(loads: RecordedLoads, wall: float = WALL) -> list[float] | None:
    found = loads.weights(TOPICS, wall)
    return None if found is None else [round(weight, 4) for weight in found.tolist()]


# --- the records -------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again_from_the_stored_json() -> None:
    stored, _ = decode(Loads, encode(record("a", {0: 1.5, 3: 7.0})))
    assert stored.topic == "a"
    assert np.array_equal(read(stored).at(WALL), [1.5, np.nan, np.nan, 7.0], equal_nan=True)


def test_a_write_changes_what_it_names_and_keeps_the_rest_while_it_counts() -> None:
    before = change("a", {0: 1.0, 1: 2.0}, WALL + 10).of(None, WALL)
    after = change("a", {1: 5.0, 2: 6.0}, WALL + 600).of(before, WALL)
    assert read(after).at(WALL).tolist() == [1.0, 5.0, 6.0]
    assert np.array_equal(read(after).at(WALL + 11), [np.nan, 5.0, 6.0], equal_nan=True)


def test_what_no_longer_counts_is_dropped_by_the_next_write() -> None:
    before = change("a", {0: 1.0}, WALL + 10).of(None, WALL)
    after = change("a", {1: 5.0}, WALL + 600).of(before, WALL + 20)
    assert np.isnan(read(after).loads[0])


def test_a_change_that_replaces_forgets_the_others() -> None:
    before = record("a", {0: 1.0, 3: 2.0})
    after = change("a", {1: 5.0}, replaces=True).of(before, WALL)
    assert np.array_equal(read(after).loads, [np.nan, 5.0], equal_nan=True)


def test_a_clock_ahead_within_reason_is_believed_and_one_far_ahead_is_not() -> None:
    ahead = record("a", {0: 1.0}, WALL + LONGEST + SKEW)
    beyond = record("a", {0: 1.0}, WALL + LONGEST + SKEW + 1)
    assert read(ahead).at(WALL).tolist() == [1.0]
    assert np.isnan(read(beyond).at(WALL)).all()


@pytest.mark.parametrize(
    "broken",
    [
        Loads(at=1, topic="a", loads=b"\0\0\0\0", until=b""),
        Loads(at=1, topic="a", loads=b"\0\0\0", until=b"\0\0\0"),
        Loads(at=1, topic="a", first=7, loads=b"\0\0\0\0", until=b"\0\0\0\0"),
        Loads(at=1, topic="a", loads=np.asarray([-1], np.float32).tobytes(), until=b"\0\0\0\0"),
        Loads(at=1, topic="a", loads=np.asarray([np.inf], np.float32).tobytes(), until=b"\0\0\0\0"),
        Loads(at=1, nodes=("n", "m"), loads=b"\0\0\0\0", until=b"\0\0\0\0"),
        Loads(at=1, topic="a", loads=bytes(4 * (BLOCK + 1)), until=bytes(4 * (BLOCK + 1))),
    ],
)
def test_a_record_that_is_not_what_it_should_be_is_left_out_and_named(broken: Loads) -> None:
    with pytest.raises(UnreadableRecord):
        read(broken)
    name = broken.topic or "~nodes"
    loads = RecordedLoads({name: broken, "b": record("b", {0: 1.0})})
    assert list(loads.unreadable) == [name]
    assert loads.loads([("b", 1)], WALL).tolist() == [1.0]


def test_a_record_under_another_topics_key_is_left_out() -> None:
    assert list(RecordedLoads({"a": record("b", {0: 1.0})}).unreadable) == ["a"]


def test_a_large_topic_lies_in_several_blocks_each_of_which_fits_into_a_value() -> None:
    full = dict.fromkeys(range(BLOCK), 1.23456789e14)
    blocks = {"a": change("a", full).of(None, WALL), "a/1": change("a", {0: 2.0}, block=1).of(None, WALL)}
    assert max(len(encode(block)) for block in blocks.values()) < 400_000
    loads = RecordedLoads(blocks).loads([("a", BLOCK + 2)], WALL)
    assert loads[BLOCK] == 2.0
    assert np.isnan(loads[BLOCK + 1])


def test_of_more_nodes_than_fit_the_busiest_are_kept() -> None:
    many = {f"n{number}": (float(number), WALL + 600) for number in range(MAX_NODES + 5)}
    kept = NodeChange(many).of(None, WALL)
    assert len(kept.nodes) == MAX_NODES
    assert "n4" not in kept.nodes
    assert len(encode(kept)) < 1_000_000


def test_nodes_with_the_longest_names_still_fit_into_a_value() -> None:
    many = {f"{number:05}".ljust(249, '"'): (1.0, WALL + 600) for number in range(MAX_NODES)}
    kept = NodeChange(many).of(None, WALL)
    assert 900_000 > len(encode(kept)) > 700_000


def test_nodes_that_others_wrote_are_kept_while_they_count() -> None:
    before = NodeChange({"x": (1.0, WALL + 10), "y": (2.0, WALL + 600)}).of(None, WALL)
    after = NodeChange({"z": (3.0, WALL + 600)}).of(before, WALL + 20)
    assert set(after.nodes) == {"y", "z"}


# --- weights -----------------------------------------------------------------------------------------------------


def test_weights_are_the_loads_over_their_mean() -> None:
    assert weights(recorded(a={0: 1, 1: 2, 2: 3, 3: 4}, b={0: 1, 1: 1})) == [0.5, 1.0, 1.5, 2.0, 0.5, 0.5]


def test_a_partition_nothing_is_known_of_takes_its_topics_mean() -> None:
    assert weights(recorded(a={0: 1, 1: 3}, b={0: 2, 1: 2})) == [0.5, 1.5, 1.0, 1.0, 1.0, 1.0]


def test_a_topic_nothing_is_known_of_takes_the_mean_of_all() -> None:
    assert weights(recorded(a={0: 1, 1: 1, 2: 1, 3: 5})) == [0.5, 0.5, 0.5, 2.5, 1.0, 1.0]


def test_with_less_than_half_of_the_partitions_known_counts_decide() -> None:
    assert weights(recorded(a={0: 1, 1: 3})) is None
    assert weights(recorded(a={0: 1, 1: 3, 2: 2})) is not None


def test_no_record_at_all_means_counts() -> None:
    assert weights(RecordedLoads()) is None
    assert RecordedLoads().weights([], WALL) is None


def test_loads_that_are_all_zero_mean_counts() -> None:
    assert weights(recorded(a={0: 0, 1: 0, 2: 0, 3: 0}, b={0: 0, 1: 0})) is None


def test_an_idle_partition_still_weighs_something() -> None:
    found = weights(recorded(a={0: 0, 1: 1, 2: 1, 3: 1}, b={0: 1, 1: 1}))
    assert found is not None
    assert found[0] == FLOOR


def test_stale_loads_mean_counts() -> None:
    loads = recorded(a={0: 1, 1: 2, 2: 3, 3: 4})
    assert weights(loads, WALL + 599) is not None
    assert weights(loads, WALL + 601) is None


def test_loads_of_partitions_past_the_count_are_left_out() -> None:
    assert recorded(a={0: 1, 1: 1, 9: 50}).loads([("a", 2)], WALL).tolist() == [1.0, 1.0]


def test_a_node_is_as_busy_as_it_said_and_unknown_once_that_is_old() -> None:
    loads = RecordedLoads({"~nodes": NodeChange({"n": (0.7, WALL + 600)}).of(None, WALL)})
    assert loads.busy("n", WALL) == pytest.approx(0.7)
    assert math.isnan(loads.busy("n", WALL + 601))
    assert math.isnan(loads.busy("other", WALL))


@settings(max_examples=50)
@given(st.dictionaries(st.integers(0, 5), st.floats(0, 1e15), max_size=6), st.integers(0, 5))
def test_weights_are_positive_finite_and_of_mean_near_one_or_absent(loads: dict[int, float], count: int) -> None:
    found = recorded(a=loads).weights([("a", count)], WALL)
    if found is not None:
        assert len(found) == count
        assert np.isfinite(found).all()
        assert (found >= FLOOR).all()
        assert 1 - 1e-6 <= found.mean() <= 1 + FLOOR + 1e-6


# --- the weights in force ----------------------------------------------------------------------------------------


def in_force(loads: dict[str, Loads], *, now: float = 0.0) -> GroupLoads:
    group = GroupLoads(SETTINGS)
    group.update(loads)
    group.take_up([("a", 4)], 2, now, WALL)
    return group


def ask(group: GroupLoads, now: float) -> float | None:
    return group.wanted_at([("a", 4)], 2, now, WALL)


EVEN = {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}
HOT = {0: 9.0, 1: 1.0, 2: 1.0, 3: 1.0}


def test_a_small_change_is_no_reason_to_plan() -> None:
    group = in_force(records(a=EVEN))
    group.update(records(a={**EVEN, 0: 1.04}))
    assert ask(group, 1000) is None
    assert not group.take_up([("a", 4)], 2, 1000, WALL)


def test_a_group_whose_loads_change_all_the_time_is_not_worked_out_all_the_time() -> None:
    group = in_force(records(a=EVEN))
    group.update(records(a={**EVEN, 0: 1.04}))
    assert ask(group, 1000) is None
    group.update(records(a=HOT))
    assert ask(group, 1010) == 1000 + SETTINGS.interval
    assert ask(group, 1060) == 1060


def test_equal_growth_of_all_loads_is_no_reason_to_plan() -> None:
    group = in_force(records(a=HOT))
    group.update(records(a={number: 10 * load for number, load in HOT.items()}))
    assert ask(group, 1000) is None


def test_a_large_change_is_taken_up_no_sooner_than_the_interval_allows() -> None:
    group = in_force(records(a=EVEN))
    group.update(records(a=HOT))
    assert ask(group, 10) == SETTINGS.rebalance_interval
    assert not group.take_up([("a", 4)], 2, 10, WALL)
    assert group.weights([("a", 4)], WALL) == pytest.approx([1, 1, 1, 1])
    assert ask(group, 400) == 400
    assert group.take_up([("a", 4)], 2, 400, WALL)
    assert group.weights([("a", 4)], WALL) == pytest.approx([3, 1 / 3, 1 / 3, 1 / 3])
    assert ask(group, 1000) is None


def test_the_first_loads_of_a_group_are_taken_up_at_once() -> None:
    group = in_force({})
    assert ask(group, 10) is None
    group.update(records(a=HOT))
    assert ask(group, 10) == 10
    assert group.take_up([("a", 4)], 2, 10, WALL)


def test_an_operators_plan_takes_up_what_changed_at_once() -> None:
    group = in_force(records(a=EVEN))
    group.update(records(a=HOT))
    assert group.take_up([("a", 4)], 2, 10, WALL, at_once=True)
    assert not group.take_up([("a", 4)], 2, 11, WALL, at_once=True)


def test_only_records_that_changed_are_read_again() -> None:
    before = records(a=EVEN, b={0: 1.0})
    first = RecordedLoads(before)
    second = RecordedLoads({**before, "b": record("b", {0: 9.0})}, first)
    assert second._read["a"] is first._read["a"]
    assert second.loads(TOPICS, WALL)[4] == 9.0
    assert RecordedLoads({}, second).weights(TOPICS, WALL) is None


def test_loads_that_go_stale_make_plans_unweighted() -> None:
    group = in_force(records(a=HOT))
    assert group.wanted_at([("a", 4)], 2, 700, WALL + 700) == 700
    assert group.take_up([("a", 4)], 2, 700, WALL + 700)
    assert group.weights([("a", 4)], WALL + 700) is None


def test_loads_that_come_and_go_do_not_swing_plans_more_often_than_the_interval() -> None:
    group = in_force(records(a=HOT))
    taken = 0
    for now in range(0, 3000, 10):
        group.update(records(a=HOT) if now % 20 else {})
        taken += group.take_up([("a", 4)], 2, now, WALL)
    assert taken <= 3000 / SETTINGS.rebalance_interval


def test_other_topics_get_their_weights_at_once_and_load_is_not_the_reason() -> None:
    group = in_force(records(a=EVEN))
    group.update(records(a=HOT, b={0: 3.0, 1: 3.0}))
    assert not group.take_up(TOPICS, 2, 10, WALL)
    found = group.weights(TOPICS, WALL)
    assert found is not None
    assert found[0] == pytest.approx(3.0)


@settings(max_examples=50)
@given(
    st.lists(st.floats(0.1, 100), min_size=4, max_size=4),
    st.lists(st.floats(0.1, 100), min_size=4, max_size=4),
    st.lists(st.integers(0, 1), min_size=4, max_size=4),
)
def test_what_is_not_taken_up_changes_no_members_load_by_much(
    before: list[float], after: list[float], owner: list[int]
) -> None:
    group = in_force(records(a=dict(enumerate(before))))
    group.update(records(a=dict(enumerate(after))))
    old = group.weights([("a", 4)], WALL)
    new = RecordedLoads({"a": record("a", dict(enumerate(after)))}).weights([("a", 4)], WALL)
    assert old is not None
    assert new is not None
    if ask(group, 1000) is None:
        member = np.asarray(owner) == 0
        assert abs(old[member].sum() - new[member].sum()) <= 0.1 * 4 / 2 + 1e-9
