"""Each rule about routers is switched off in the code, and courses with routers are seen to notice.

What notices is a check of `tests/chaos/routers/request_checks.py`, or that the course does not come to its end: by the
first word of the violation it is one that the rule is about, and not a change that broke something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.chaos.ablation.mutations import requests, routers
from tests.chaos.checks import Violation
from tests.chaos.routers.course import RouterCourse, course
from tests.chaos.routers.router import AckManner

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("no_threads")]
SEEDS, STEPS = 40, 50


# How often a course notices depends on what happens in it. With these, at least every fourth one does.
REPEATED_ACKS = {
    **dict.fromkeys(("router_acks_otherwise", "router_dies", "router_leaves", "restart", "replace_instance"), 0),
    **dict.fromkeys(("disturb_calls", "hang_store", "depose"), 0),
    "delete_handoff": 6,
    "router_hangs": 2,
    "burst_of_joins": 3,
    "drain": 3,
}
MANY_NEWCOMERS = {"router_joins": 5, "router_leaves": 5, "drain": 3, "burst_of_joins": 2}
MANY_DELETIONS = {"delete_handoff": 5}


@pytest.mark.parametrize(
    ("switch_off", "noticed_as", "emphasis"),
    [
        (requests.gates_admit_any_epoch, {"gates"}, {}),
        (requests.late_acks_are_recorded_for_the_present_handoff, {"quorum"}, REPEATED_ACKS),
        (requests.freezes_wait_for_nobody, {"quorum"}, {}),
        (requests.acks_do_not_wait_for_the_drain, {"drain"}, {}),
        (routers.newcomers_do_not_stash, {"frozen", "acked"}, MANY_NEWCOMERS),
        (routers.routers_do_not_look_at_the_clock, {"lease"}, {}),
        (routers.deleted_handoffs_thaw, {"frozen", "acked"}, MANY_DELETIONS),
    ],
)
async def test_courses_notice_a_missing_rule_of_routers(
    switch_off: Callable[[pytest.MonkeyPatch], None],
    noticed_as: set[str],
    emphasis: Mapping[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def emphasize(running: RouterCourse) -> None:
        running.emphasis = emphasis
        running.acks = AckManner.TWICE if emphasis is REPEATED_ACKS else AckManner.PROMPTLY

    switch_off(monkeypatch)
    noticed = ""
    seeds = iter(range(SEEDS))
    while not noticed and (seed := next(seeds, None)) is not None:
        try:
            await course(seed, steps=STEPS, begun=emphasize)
        except* Violation as violations:
            noticed = str(first(violations))
    assert noticed, f"{SEEDS} courses notice nothing"
    assert noticed.split(":")[0] in noticed_as, noticed


def first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
