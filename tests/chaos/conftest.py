"""The fixtures of scenarios, `cluster` and `any_cluster` above all, and what courses from a seed need."""

from collections.abc import Callable
from typing import Any

import anyio.to_thread
import pytest

from tests.support.scenario_fixtures import (
    any_cluster,
    campaign,
    cluster,
    cluster_in_either_mode,
    memory,
    no_task_unseen,
    votes,
)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread takes as long as it takes, and a course from a seed must not depend on that."""

    async def here(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        return work(*args)

    monkeypatch.setattr(anyio.to_thread, "run_sync", here)


__all__ = [
    "any_cluster",
    "campaign",
    "cluster",
    "cluster_in_either_mode",
    "memory",
    "no_task_unseen",
    "no_threads",
    "votes",
]
