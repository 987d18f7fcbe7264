"""What a scrape says of the instance itself: what it leads, how its terms went, its tasks and its restarted loops."""

from __future__ import annotations

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from assigner.instance import Instance
from assigner.testing.waiting import eventually
from tests.support.cluster import Cluster

pytestmark = pytest.mark.virtual_time


async def scraped(instance: Instance) -> dict[str, float]:
    """By name, with the value of the label after it where there is one."""
    text = (await instance.metrics.render()).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


async def test_terms_won_lost_and_handed_over_are_counted(cluster: Cluster) -> None:
    await cluster.add_topic("t", 4)
    instance = await cluster.start_instance("i1")
    await cluster.join("a", instance)
    await cluster.until_counts(a=4)
    said = await scraped(instance)
    assert said["assigner_instances"] == said["assigner_groups"] == said["assigner_groups_led"] == 1
    assert said["assigner_terms_won_total"] == 1
    assert (
        said["assigner_terms_lost_total"]
        == said["assigner_terms_failed_total"]
        == said["assigner_handovers_total"]
        == 0
    )

    await cluster.store.delete(cluster.group.leader)
    leadership = instance.leadership
    assert leadership is not None
    await eventually(lambda: leadership.statistics().terms_won == 2, within=60)
    said = await scraped(instance)
    assert said["assigner_terms_lost_total"] == 1
    assert said["assigner_terms_won_total"] == 2


async def test_a_group_led_by_the_wrong_instance_counts_as_misplaced_until_it_is_handed_over(cluster: Cluster) -> None:
    first = await cluster.start_instance("i1")
    for number in range(8):
        await first.operations.set_topic(f"g{number}", "t", 1)
    leadership = first.leadership
    assert leadership is not None
    await eventually(lambda: len(leadership.led) == 8, within=60)
    await cluster.start_instance("i2")
    await eventually(lambda: leadership.statistics().misplaced > 0, within=60)
    misplaced = (await scraped(first))["assigner_groups_misplaced"]
    assert misplaced > 0
    await eventually(lambda: leadership.statistics().misplaced == 0, within=120)
    said = await scraped(first)
    assert said["assigner_groups_misplaced"] == 0
    assert said["assigner_handovers_total"] >= misplaced
    assert said["assigner_groups_led"] == 8 - said["assigner_handovers_total"]
    assert said["assigner_instances"] == 2


async def test_work_that_fails_and_loops_that_are_restarted_are_counted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await cluster.start_instance("i1")
    assert not any(name.startswith("assigner_loop_restarts") for name in await scraped(instance))
    whole = instance.coordinators.run_term
    failures = 2

    async def failing(term: object) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise KeyError("a bug")
        await whole(term)  # type: ignore[arg-type]

    def broken(*_: object) -> None:
        monkeypatch.undo()
        raise KeyError("a bug")

    monkeypatch.setattr(instance.coordinators, "run_term", failing)
    await cluster.add_topic("t", 4)
    leadership = instance.leadership
    assert leadership is not None
    await eventually(lambda: leadership.statistics().terms_won == 3, within=60)
    assert (await scraped(instance))["assigner_terms_failed_total"] == 2
    monkeypatch.setattr(leadership, "_hand_over", broken)
    leadership._changed.notify()
    await eventually(lambda: bool(instance.supervisor.restarts), within=60)
    assert (await scraped(instance))["assigner_loop_restarts_total leadership"] == 1


async def test_the_tasks_of_the_process_are_counted(cluster: Cluster) -> None:
    instance = await cluster.start_instance("i1")
    before = (await scraped(instance))["assigner_tasks"]
    assert before > 5
    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(anyio.sleep_forever)
        await anyio.sleep(1)
        assert abs((await scraped(instance))["assigner_tasks"] - before - 100) < 10
        tasks.cancel_scope.cancel()
