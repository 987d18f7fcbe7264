"""Each safety rule is switched off in the code, and its own test is seen to fail."""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.chaos.ablation.ablations import ABLATIONS, Ablation
from tests.support.cluster import Cluster, cluster_on
from tests.support.scenario_fixtures import marked_arguments

pytestmark = pytest.mark.virtual_time
RULES = range(1, 21)


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: f"{ablation.rule}: {ablation.what}")
async def test_without_its_rule_the_test_fails(ablation: Ablation, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        arguments = {name: await _argument(name, ablation, monkeypatch, stack) for name in _wanted(ablation)}
        ablation.switch_off(monkeypatch)
        failed = False
        try:
            await ablation.noticed_by(**arguments)
        except AssertionError:
            failed = True
        except pytest.fail.Exception:
            # `pytest.raises` that saw nothing raised.
            failed = True
        for cluster in arguments.values():
            if isinstance(cluster, Cluster):
                _nothing_crashed(cluster)
    assert failed, f"{ablation.noticed_by.__name__} passes although {ablation.what}"


def _nothing_crashed(cluster: Cluster) -> None:
    """A test that fails because the change is a broken one tells nothing of the rule."""
    for instance in cluster.instances.values():
        if instance.leadership:
            assert instance.leadership.statistics().crashes == 0


async def _argument(name: str, ablation: Ablation, patch: pytest.MonkeyPatch, stack: AsyncExitStack) -> Any:
    match name:
        case "cluster" | "any_cluster" | "cluster_in_either_mode":
            arguments = marked_arguments(getattr(ablation.noticed_by, "pytestmark", ()))
            return await stack.enter_async_context(cluster_on("memory", **arguments))
        case "monkeypatch":
            return patch
        case _:
            return ablation.arguments[name]


def _wanted(ablation: Ablation) -> list[str]:
    return list(inspect.signature(ablation.noticed_by).parameters)


def test_every_rule_is_switched_off_at_least_once_and_noticed_by_a_test_of_its_own() -> None:
    assert {ablation.rule for ablation in ABLATIONS} == set(RULES)
    for ablation in ABLATIONS:
        assert ablation.noticed_by.__name__.startswith(f"test_rule_{ablation.rule}_")
