"""The fixtures of scenarios, `cluster` and `any_cluster` above all."""

from tests.support.scenario_fixtures import (
    any_cluster,
    campaign,
    cluster,
    cluster_in_either_mode,
    memory,
    no_task_unseen,
    votes,
    wired_cluster,
)

__all__ = [
    "any_cluster",
    "campaign",
    "cluster",
    "cluster_in_either_mode",
    "memory",
    "no_task_unseen",
    "votes",
    "wired_cluster",
]
