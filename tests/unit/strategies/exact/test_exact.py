"""`sticky_balanced` against an integer programme: nothing is better, level by level, in the order of its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assigner.errors import InvalidInput
from assigner.strategies.exact import solver
from assigner.strategies.problem.options import BALANCES, RACKS, objective_order
from assigner.strategies.sticky_balanced import strategy
from assigner.strategy import NONE, Problem
from tests.support.strategies.move_oracle import cost, least_cost, missed
from tests.support.strategies.problems import assert_valid, loads, problem, problems

pytestmark = pytest.mark.slow

some = settings(max_examples=15, deadline=None, derandomize=True)
every_balance = pytest.mark.parametrize("balance", BALANCES)


def assert_best(given: Problem, **options: str) -> None:
    asked = replace(given, options=options)
    solution = strategy.assign(asked)
    assert_valid(asked, solution)
    levels = objective_order(strategy.name, options).objectives
    assert cost(asked, solution.owner, levels) == pytest.approx(least_cost(asked, levels), abs=1e-4)
    assert solution.explanation.lower_bound == solution.explanation.moves
    again = strategy.assign(replace(asked, owner=solution.owner))
    assert again.owner.tolist() == solution.owner.tolist()


@st.composite
def in_racks(draw: st.DrawFn, inner: st.SearchStrategy[Problem]) -> Problem:
    """Members in three racks or none, replicas in up to two of four."""
    plain = draw(inner)
    rack = draw(st.lists(st.integers(NONE, 2), min_size=plain.members.count, max_size=plain.members.count))
    total = len(plain.owner)
    replicas = draw(st.lists(st.sets(st.integers(0, 3), max_size=2), min_size=total, max_size=total))
    return with_racks(plain, rack, [sorted(one) for one in replicas])


def with_racks(plain: Problem, rack: Sequence[int], replicas: Sequence[Sequence[int]]) -> Problem:
    starts = np.cumsum([0, *(len(one) for one in replicas)]).astype(np.int32)
    ids = np.array([number for one in replicas for number in one], np.int32)
    members = replace(plain.members, rack=np.asarray(rack, np.int32))
    return replace(plain, members=members, topics=replace(plain.topics, replica_racks=(starts, ids)))


# --- against the programme ---------------------------------------------------------------------------------------


@every_balance
@some
@given(given=problems(topics=4, members=5, most=6))
def test_members_that_want_the_same(balance: str, given: Problem) -> None:
    assert_best(given, balance=balance)


@every_balance
@some
@given(given=problems(topics=4, members=5, most=6, mixed=True))
def test_members_that_want_different_topics(balance: str, given: Problem) -> None:
    assert_best(given, balance=balance)


@every_balance
@some
@given(given=problems(topics=4, members=5, most=5, mixed=True, capacities=True))
def test_members_of_different_capacity(balance: str, given: Problem) -> None:
    assert_best(given, balance=balance)


@every_balance
@some
@given(given=problems(topics=4, members=5, most=5, mixed=True, capacities=True, restricted=True))
def test_pins_holds_and_caps(balance: str, given: Problem) -> None:
    assert_best(given, balance=balance)


@pytest.mark.parametrize("racks", RACKS)
@every_balance
@settings(max_examples=8, deadline=None, derandomize=True)
@given(given=in_racks(problems(topics=3, members=5, most=5)))
def test_racks(balance: str, racks: str, given: Problem) -> None:
    if overlapping(given):
        assert_best(given, balance=balance, racks=racks)


@pytest.mark.parametrize("racks", RACKS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(given=in_racks(problems(topics=3, members=5, most=4, mixed=True, capacities=True, restricted=True)))
def test_racks_with_everything_else(racks: str, given: Problem) -> None:
    if overlapping(given):
        assert_best(given, racks=racks)


def overlapping(given: Problem) -> bool:
    """Racks are looked at only where some member is where some replica is."""
    assert given.topics.replica_racks is not None
    return bool(np.isin(given.members.rack[given.members.rack != NONE], given.topics.replica_racks[1]).any())


def test_what_is_pinned_to_others_is_not_counted_as_assigned() -> None:
    # Only the first member may take what is loose; two others have one partition each pinned to them.
    wants = [[1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1]]
    given = problem([0, 5, 0], 4, [2, 2, 3, 0, 2], subscription=wants, capacity=[3, 0.1, 1, 2], pinned=[0, 2, 3])
    assert strategy.assign(given).owner.tolist() == [2, 0, 3, 0, 0]


# --- tables ------------------------------------------------------------------------------------------------------

EVENTS = [
    ([24, 24, 96], 2, (48, 48, 48), (0, 0, 0)),
    ([2, 5, 7], 3, (3, 2, 3), (0, 0, 0)),
    ([100] * 10, 40, (24, 20, 24), (0, 0, 0)),
    ([12] * 50, 8, (66, 50, 66), (0, 0, None)),
    ([3] * 200, 16, (35, 0, 35), (0, 0, 0)),
    ([1] * 60 + [8] * 20 + [64] * 5, 20, (25, 15, 25), (0, 0, 0)),
]
"""(partitions, members, fewest moves when one joins, when one leaves), by `global`, `topic_only`, `both`, from a start
that is even in both ways. None: depends on which start."""


@pytest.mark.parametrize(("partitions", "members", "joins", "leaves"), EVENTS)
def test_the_fewest_moves_of_known_events(
    partitions: list[int], members: int, joins: tuple[int, ...], leaves: tuple[int | None, ...]
) -> None:
    start = strategy.assign(problem(partitions, members)).owner
    last = np.where(start == members - 1, NONE, start)
    for balance, join, leave in zip(("global", "topic_only", "both"), joins, leaves, strict=True):
        joined = strategy.assign(replace(problem(partitions, members + 1, start), options={"balance": balance}))
        assert joined.explanation.moves == joined.explanation.lower_bound == join
        left = strategy.assign(replace(problem(partitions, members - 1, last), options={"balance": balance}))
        assert left.explanation.moves == left.explanation.lower_bound
        if leave is not None:
            assert left.explanation.moves == leave


def test_the_fewest_moves_of_a_repair() -> None:
    # One whole topic each; and 72 of the third topic's 96 on one of two.
    assert strategy.assign(problem([4, 4], 2, [0] * 4 + [1] * 4)).explanation.moves == 4
    owner = [0] * 24 + [0] * 24 + [0] * 24 + [1] * 72
    assert strategy.assign(problem([24, 24, 96], 2, owner)).explanation.moves == 48
    # Even over all, so nothing is wrong by `global`.
    assert (
        strategy.assign(replace(problem([24, 24, 96], 2, owner), options={"balance": "global"})).explanation.moves == 0
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(given=problems(topics=4, members=8, most=20))
def test_the_formulas_of_moves(given: Problem) -> None:
    """Over all: what members have above the floor, less one for each that may keep the remainder; and per topic."""
    members = given.members.count
    over_all = strategy.assign(replace(given, options={"balance": "global"})).explanation.moves
    assert over_all == _above(loads(members, given.owner), len(given.owner))
    per_topic = 0
    for number, count in enumerate(given.topics.partitions.tolist()):
        mine = given.owner[given.offsets[number] : given.offsets[number + 1]]
        per_topic += _above(loads(members, mine), count)
    assert strategy.assign(replace(given, options={"balance": "topic_only"})).explanation.moves == per_topic


def _above(have: np.ndarray[tuple[int], np.dtype[np.int32]], total: int) -> int:
    floor, rest = divmod(total, len(have))
    return int((have - floor).clip(min=0).sum()) - min(rest, int((have > floor).sum()))


# --- racks by example --------------------------------------------------------------------------------------------


def test_racks_before_moves_and_after() -> None:
    # Each of two members has what lies in the other's rack.
    given = with_racks(problem([4], 2, [0, 0, 1, 1]), [0, 1], [[1], [1], [0], [0]])
    before = strategy.assign(given)
    assert (before.explanation.rack_mismatches, before.explanation.moves) == (0, 4)
    after = strategy.assign(replace(given, options={"racks": "after_moves"}))
    assert (after.explanation.rack_mismatches, after.explanation.moves) == (4, 0)


def test_what_is_free_goes_where_its_replicas_are_even_if_moves_come_first() -> None:
    given = with_racks(problem([4], 2), [0, 1], [[1], [0], [1], [0]])
    solution = strategy.assign(replace(given, options={"racks": "after_moves"}))
    assert solution.owner.tolist() == [1, 0, 1, 0]


def test_racks_that_no_replica_is_in_are_not_looked_at() -> None:
    given = with_racks(problem([4], 2, [0, 0, 1, 1]), [7, 8], [[1], [1], [0], [0]])
    assert strategy.assign(given).explanation.moves == 0


def test_a_slot_of_a_set_goes_where_most_of_its_topics_have_replicas() -> None:
    given = problem([2, 2, 2], 2, copartition=[0, 0, 0])
    # Slot 0: rack 1 for two topics of three; slot 1: rack 0 for two.
    given = with_racks(given, [0, 1], [[1], [0], [1], [0], [0], [1]])
    solution = strategy.assign(given)
    assert solution.owner.tolist() == [1, 0, 1, 0, 1, 0]
    assert solution.explanation.rack_mismatches == int(missed(given)[np.arange(6), solution.owner].sum()) == 2


# --- limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["MOST_CELLS", "BUDGET"])
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=in_racks(problems(topics=5, members=6, most=8, mixed=True, restricted=True)))
def test_beyond_the_limits_plans_are_still_valid_honest_and_final(
    limit: str, monkeypatch: pytest.MonkeyPatch, given: Problem
) -> None:
    monkeypatch.setattr(solver, limit, 1)
    for asked in (given, replace(given, options={"racks": "ignore"})):
        solution = strategy.assign(asked)
        assert_valid(asked, solution)
        assert solution.explanation.lower_bound <= solution.explanation.moves
        again = strategy.assign(replace(asked, owner=solution.owner))
        assert again.owner.tolist() == solution.owner.tolist()


# --- options and busy nodes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"balance": "even"}, "balance is 'even'; it must be one of both, topic, topic_only, global"),
        ({"racks": True}, "racks is True; it must be one of before_moves, after_moves, ignore"),
        ({"ballance": "both"}, "does not know the option 'ballance'; its options are balance, racks, tolerance"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        strategy.assign(replace(problem([3], 2), options=options))


def busy(given: Problem, load: Sequence[float]) -> Problem:
    return replace(given, members=replace(given.members, load=np.asarray(load, np.float64)))


def test_of_equals_the_less_busy_is_served_first() -> None:
    solution = strategy.assign(busy(problem([4], 3), [5.0, 1.0, float("nan")]))
    assert loads(3, solution.owner).tolist() == [1, 2, 1]


@some
@given(given=problems(topics=3, members=5, most=6, mixed=True, restricted=True), data=st.data())
def test_how_busy_nodes_are_never_causes_a_move(given: Problem, data: st.DataObject) -> None:
    numbers = st.sampled_from([0.0, 0.1, 1.0, 50.0, float("nan")])
    load = data.draw(st.lists(numbers, min_size=given.members.count, max_size=given.members.count))
    told = strategy.assign(busy(given, load))
    assert_valid(given, told)
    assert told.explanation.moves == strategy.assign(given).explanation.moves
    later = strategy.assign(busy(replace(given, owner=told.owner), load[::-1]))
    assert later.owner.tolist() == told.owner.tolist()
