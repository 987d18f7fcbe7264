"""No task may end unseen, and elections for those that hold one."""

from tests.support.scenario_fixtures import campaign, memory, no_task_unseen, votes

__all__ = ["campaign", "memory", "no_task_unseen", "votes"]
