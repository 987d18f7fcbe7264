"""Which partitions requests without a key go to: the lighter ones more often, or all in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from assigner.core.routing import balance as balance_of
from assigner.core.routing.balance import KeylessBalance
from assigner.model.routes import PublishedLoads


def any_partition(_: int) -> bool:
    return True


def picks(
    balance: KeylessBalance,
    count: int,
    *,
    now: float = 0.0,
    partitions: int = 4,
    suits: Callable[[int], bool] = any_partition,
) -> Counter[int]:
    return Counter(balance.pick("t", partitions, now, suits) for _ in range(count))


def published(*loads: float, valid_for: float = 10.0) -> KeylessBalance:
    balance = KeylessBalance()
    balance.published([PublishedLoads("t", tuple(range(len(loads))), loads)], valid_for, 0.0)
    return balance


def test_without_loads_every_partition_gets_its_turn() -> None:
    balance = KeylessBalance()
    assert [balance.pick("t", 3, 0.0, any_partition) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_lighter_partition_is_picked_more_often_and_a_heavy_one_still_is() -> None:
    found = picks(published(0.0, 10.0, 10.0, 20.0), 700)
    assert found[0] > max(found[1], found[2])
    assert min(found[1], found[2]) > found[3] > 0
    assert found[0] == pytest.approx(4 * found[3], rel=0.1)


def test_loads_that_are_too_old_are_no_loads() -> None:
    balance = published(0.0, 10.0, 10.0, 20.0)
    picks(balance, 70)
    late = picks(balance, 400, now=10.0)
    assert max(late.values()) - min(late.values()) <= 2


def test_partitions_that_do_not_suit_are_passed_over_and_do_not_make_up_for_it() -> None:
    balance = KeylessBalance()
    assert set(picks(balance, 30, suits=lambda one: one != 1)) == {0, 2, 3}
    after = picks(balance, 40)
    assert set(after) == {0, 1, 2, 3}
    assert max(after.values()) - min(after.values()) <= 2


def test_where_none_suits_one_is_picked_anyway() -> None:
    assert sum(picks(KeylessBalance(), 8, suits=lambda _: False).values()) == 8


def test_no_more_partitions_are_looked_at_than_make_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance_of, "TRIES", 3)
    balance, looked = KeylessBalance(), 0

    def no(_: int) -> bool:
        nonlocal looked
        looked += 1
        return False

    found = [balance.pick("t", 10, 0.0, no) for _ in range(10)]
    assert sorted(found) == list(range(10)), "all of them get their turn"
    assert looked <= 10 * 4
    assert set(picks(balance, 10, partitions=10)) == set(range(10)), "and none is forgotten"


def test_loads_that_come_while_requests_flow_count_from_then_on() -> None:
    balance = KeylessBalance()
    picks(balance, 8)
    balance.published([PublishedLoads("t", (0, 1, 2, 3), (0.0, 10.0, 10.0, 20.0))], 10.0, 0.0)
    found = picks(balance, 700)
    assert found[0] == pytest.approx(4 * found[3], rel=0.1)


def test_partitions_of_which_none_has_any_load_take_turns() -> None:
    found = picks(published(0.0, 0.0, 0.0, 0.0), 400)
    assert max(found.values()) - min(found.values()) <= 2


def test_of_a_list_without_its_other_half_what_is_there_counts() -> None:
    balance = KeylessBalance()
    balance.published([PublishedLoads("t", (0, 1, 2), (0.0, 20.0))], 10.0, 0.0)
    found = picks(balance, 400, partitions=3)
    assert found[0] > found[2] > found[1]


def test_a_topic_that_is_gone_leaves_no_loads_to_one_of_its_name() -> None:
    balance = published(0.0, 10.0, 10.0, 20.0)
    picks(balance, 10)
    balance.forget(["t"])
    found = picks(balance, 400)
    assert max(found.values()) - min(found.values()) <= 2


def test_a_partition_without_a_load_counts_as_an_average_one() -> None:
    balance = KeylessBalance()
    balance.published([PublishedLoads("t", (0, 1), (0.0, 20.0))], 10.0, 0.0)
    found = picks(balance, 400, partitions=3)
    assert found[0] > found[2] > found[1]


@pytest.mark.parametrize("load", [float("nan"), float("inf"), -1.0])
def test_a_load_that_is_none_is_left_out(load: float) -> None:
    found = picks(published(load, 10.0, 10.0, 10.0), 400)
    assert max(found.values()) - min(found.values()) <= 2


def test_loads_as_large_as_numbers_get_are_loads() -> None:
    """The service takes none of them; another one's records may hold them."""
    found = picks(published(0.0, 1e308, 1e308, 1.7e308), 400)
    assert found[0] > found[1] > found[3] > 0


def test_the_load_of_a_partition_that_is_published_no_more_gets_too_old_by_itself() -> None:
    balance = published(10.0, 10.0, 10.0, 40.0)
    for now in (5.0, 10.0):
        balance.published([PublishedLoads("t", (0, 1, 2), (10.0, 10.0, 10.0))], 10.0, now)
    found = picks(balance, 400, now=11.0)
    assert max(found.values()) - min(found.values()) <= 2


def test_loads_that_count_for_no_time_are_none() -> None:
    balance = KeylessBalance()
    balance.published([PublishedLoads("t", (0, 1), (1.0, 9.0))], 0.0, 0.0)
    found = picks(balance, 100, partitions=2)
    assert found[0] == found[1]


def test_a_topic_that_grows_has_turns_for_all_of_its_partitions() -> None:
    balance = published(1.0, 1.0)
    picks(balance, 10, partitions=2)
    assert set(picks(balance, 20, partitions=5)) == {0, 1, 2, 3, 4}
    balance.forget(["t"])
    assert set(picks(balance, 2, partitions=2)) == {0, 1}
