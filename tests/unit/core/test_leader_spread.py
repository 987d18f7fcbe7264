"""Leadership spreads evenly, moves little, and is handed over with patience."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assigner.core.leader_spread import NO_SPREAD, Handover, LeaderSpread, SpreadSettings, campaign_delay, score, spread

GROUPS = [f"group-{number}" for number in range(100)]
names = st.text(min_size=1, max_size=12)


def shares(wanted: LeaderSpread) -> list[int]:
    counts = Counter(wanted.preferred_leaders.values())
    return [counts[instance] for instance in wanted.instances]


@pytest.mark.parametrize("naming", ["assigner-{}", "pod-7f9c-{}", "{}.example:50051", "node{}{}{}"])
def test_a_hundred_groups_over_three_instances_are_25_to_42_each_whatever_the_names(naming: str) -> None:
    for trial in range(50):
        instances = [naming.format(*[f"{trial}{number}"] * 3) for number in range(3)]
        groups = [f"{trial}/{group}" for group in GROUPS]
        assert all(25 <= share <= 42 for share in shares(spread(groups, instances)))


def test_the_share_is_not_rounded_up_by_the_arithmetic() -> None:
    for trial in range(50):
        assert min(shares(spread(GROUPS, [f"{trial}a", f"{trial}b"]))) >= 45


@given(st.sets(names, max_size=60), st.sets(names, min_size=1, max_size=6))
def test_every_group_has_a_preferred_leader_and_no_instance_more_than_its_share(
    groups: set[str], instances: set[str]
) -> None:
    wanted = spread(groups, instances)
    assert set(wanted.preferred_leaders) == groups
    assert all(share <= 1.1 * len(groups) / len(instances) + 1 for share in shares(wanted))


@given(st.sets(names, max_size=40), st.sets(names, min_size=1, max_size=6))
def test_the_answer_is_that_of_taking_all_pairs_from_the_highest_score_down(
    groups: set[str], instances: set[str]
) -> None:
    share = math.ceil(1.1 * len(groups) / len(instances) - 1e-9)
    homes: dict[str, str] = {}
    for _, group, instance in sorted(((score(g, i), g, i) for g in groups for i in instances), reverse=True):
        if group not in homes and Counter(homes.values())[instance] < share:
            homes[group] = instance
    assert spread(groups, instances).preferred_leaders == homes


@given(st.permutations(GROUPS[:20]), st.permutations(["a", "b", "c", "d"]))
def test_every_instance_comes_to_the_same_answer_whatever_the_order(groups: list[str], instances: list[str]) -> None:
    assert spread(groups, instances) == spread(GROUPS[:20], ["a", "b", "c", "d"])


def test_the_answer_is_the_same_in_every_process_and_version() -> None:
    assert score("orders", "assigner-0") == 0x9FF077A41154D74


def test_a_joining_instance_takes_its_share_and_hardly_anything_else_moves() -> None:
    for trial in range(30):
        before = spread(GROUPS, [f"{trial}a", f"{trial}b"])
        after = spread(GROUPS, [f"{trial}a", f"{trial}b", f"{trial}c"])
        moved = [group for group in GROUPS if before.preferred(group) != after.preferred(group)]
        among_the_old = [group for group in moved if after.preferred(group) != f"{trial}c"]
        assert len(moved) <= 42
        assert len(among_the_old) <= 6


def test_a_new_group_hardly_moves_the_others() -> None:
    for trial in range(30):
        instances = [f"{trial}{letter}" for letter in "abc"]
        before, after = spread(GROUPS, instances), spread([*GROUPS, "new"], instances)
        assert sum(before.preferred(group) != after.preferred(group) for group in GROUPS) <= 4


def test_the_preferred_leader_campaigns_at_once_and_each_other_rank_a_little_later() -> None:
    wanted = spread(GROUPS, ["a", "b", "c"])
    for group in GROUPS:
        delays = sorted((campaign_delay(group, me, wanted, 0.5), me) for me in "abc")
        assert [delay for delay, _ in delays] == [0.0, 0.5, 1.0]
        assert delays[0][1] == wanted.preferred(group)


def test_an_instance_outside_the_set_comes_last() -> None:
    wanted = spread(GROUPS, ["a", "b", "c"])
    assert campaign_delay("group-1", "draining", wanted, 0.5) == 1.5
    assert campaign_delay("group-1", "alone", NO_SPREAD, 0.5) == 0.0


# --- handing over ------------------------------------------------------------------------------------------

ELSEWHERE = LeaderSpread(dict.fromkeys(GROUPS, "other"), ("me", "other"))


def test_nothing_is_handed_over_before_the_instances_have_settled() -> None:
    handover = Handover(SpreadSettings(settle=10.0), now=0.0)
    assert handover.due(9.9, "me", GROUPS, ELSEWHERE) == ((), 10.0)
    handover.instances_changed(now=9.9)
    assert handover.due(10.0, "me", GROUPS, ELSEWHERE) == ((), 19.9)
    assert len(handover.due(19.9, "me", GROUPS, ELSEWHERE)[0]) == 5


def test_a_few_groups_are_handed_over_at_a_time() -> None:
    handover = Handover(SpreadSettings(settle=0.0, batch=5, pause=1.0), now=0.0)
    led, now = set(GROUPS), 0.0
    while led:
        chosen, wake_at = handover.due(now, "me", led, ELSEWHERE)
        assert len(chosen) == 5
        assert handover.due(now + 0.5, "me", led - set(chosen), ELSEWHERE)[0] == ()
        led -= set(chosen)
        assert not led or wake_at == now + 1.0
        now += 1.0
    assert handover.due(now, "me", led, ELSEWHERE) == ((), None)


def test_a_group_at_its_preferred_leader_or_without_one_stays() -> None:
    handover = Handover(SpreadSettings(settle=0.0), now=0.0)
    assert handover.due(1.0, "me", ["at home", "unknown"], LeaderSpread({"at home": "me"}, ("me",))) == ((), None)


def test_a_group_that_keeps_returning_is_handed_over_ever_more_rarely() -> None:
    handover = Handover(SpreadSettings(settle=0.0, handover_backoff=60.0), now=0.0)
    given_at, now = [], 0.0
    for _ in range(4):
        chosen, wake_at = handover.due(now, "me", ["group-1"], ELSEWHERE)
        assert chosen == ("group-1",)
        given_at.append(now)
        assert wake_at is not None
        now = wake_at
    assert given_at == [0.0, 60.0, 180.0, 420.0]


def test_a_new_set_of_instances_clears_the_backoff_of_returned_groups() -> None:
    handover = Handover(SpreadSettings(settle=10.0, handover_backoff=600.0), now=-10.0)
    assert handover.due(0.0, "me", ["group-1"], ELSEWHERE)[0] == ("group-1",)
    handover.instances_changed(now=1.0)
    assert handover.due(11.0, "me", ["group-1"], ELSEWHERE)[0] == ("group-1",)
