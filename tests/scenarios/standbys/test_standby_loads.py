"""Two standbys of everything, consumers that come and go: wherever the group comes to rest, its loads are even."""

from __future__ import annotations

import random

import pytest

from assigner.core.group import GroupState
from assigner.model.records import GroupOptions, Standbys, encode
from tests.support.cluster import Cluster, tp
from tests.support.faulty_stores import key_of

TOPICS = {"audits": 8, "carts": 9, "clicks": 16, "mails": 5, "orders": 12, "payments": 7}
OPTIONS = GroupOptions(debounce=1.0, standby_count=2)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


def rests_evenly(state: GroupState, names: set[str]) -> bool:
    """Everything is owned by these, no two of them more than one apart; and every partition has its two copies."""
    total = state.partitions()
    counts = [len(state.owned.get(name, ())) for name in names]
    copied = [tp for tp, record in state.standbys.items() if len(set(record.record.holders) & names) == 2]
    settled = not state.handoffs and sum(counts) == total and len(copied) == total
    return settled and max(counts) - min(counts) <= 1


async def test_three_who_hold_two_copies_each_of_what_nobody_owns_get_one_each_at_once(any_cluster: Cluster) -> None:
    """Everybody went away and comes back at once: each partition could go to either of its two holders. No second plan
    has to even out what the first one did."""
    cluster = any_cluster
    await cluster.add_topic(partitions=3)
    for number, holders in enumerate((("a", "b"), ("a", "c"), ("b", "c"))):
        record = Standbys(topic="t", partition=number, holders=holders)
        await cluster.store.put(cluster.group.standby(tp(number)), encode(record))
    instance = await cluster.start_instance(leads=False)
    for name in "abc":
        await cluster.join(name, instance)
    await cluster.start_instance("i2")
    await cluster.until("even", lambda state: rests_evenly(state, {"a", "b", "c"}), within=60)
    assert not [
        event for event in await cluster.history(cluster.began) if key_of(event).startswith(cluster.group.handoffs)
    ]


@pytest.mark.parametrize("seed", range(2))
async def test_wherever_a_group_with_two_standbys_rests_its_loads_are_even(cluster: Cluster, seed: int) -> None:
    chooser = random.Random(seed)
    for topic, partitions in TOPICS.items():
        await cluster.add_topic(topic, partitions)
    await cluster.start_instance()
    names: set[str] = set()
    for number in range(20):
        if len(names) >= 7 or (len(names) > 4 and chooser.random() < 0.5):
            gone = chooser.choice(sorted(names))
            names.remove(gone)
            await cluster.consumers[gone].deregister(gates_closed=True)
        else:
            names.add(f"c{number}")
            await cluster.join(f"c{number}")
        if len(names) >= 4:
            await cluster.until(f"even over {sorted(names)}", lambda state: rests_evenly(state, names), within=60)
