"""Switch off rules about routers: what a freeze waits for, what thaws a partition, and what a router does by itself."""

from __future__ import annotations

from assigner.core.group import GroupState
from assigner.core.handoff import lifecycle
from assigner.core.handoff.deleted_freezes import DeletedFreezes
from assigner.core.routers import quorum
from assigner.core.routing import table
from assigner.core.routing.cutover import Cutovers, CutoverStep, Flush, Switch
from assigner.core.routing.permit import RoutingPermit
from assigner.core.routing.table import RowChange
from assigner.model.keys import TopicPartition
from assigner.model.records import Handoff, Router, Stored
from assigner.model.routes import Route
from assigner.routers.registration import RouterService
from assigner.routing.stash import Stash, StashQueue
from tests.chaos.ablation.mutations import Patch


def acks_count_for_any_handoff(patch: Patch) -> None:
    def changed(state: GroupState, tp: TopicPartition, handoff: Handoff, router: Stored[Router]) -> bool:
        return router.record.router_name in state.acks.get(tp, {})

    patch.setattr(quorum, "has_acked", changed)


def routers_that_lost_their_name_do_not_count(patch: Patch) -> None:
    patch.setattr(quorum, "still_at_work", lambda state: [key.name for key in state.unreadable_routers])


def unreadable_routers_do_not_count(patch: Patch) -> None:
    patch.setattr(quorum, "still_at_work", lambda state: [key.name for key in state.displaced_routers])


def departures_are_not_noticed(patch: Patch) -> None:
    """The quorum is the one of the first look."""
    seen: dict[TopicPartition, set[str]] = {}
    original = quorum.missing

    def changed(state: GroupState, tps: list[TopicPartition]) -> list[str]:
        for tp in tps:
            acked = set(state.acks.get(tp, {}))
            seen[tp] = (seen.get(tp, set()) | set(original(state, tp))) - acked
        return sorted(set().union(*(seen[tp] for tp in tps)))

    patch.setattr(lifecycle, "missing_of_all", changed)


def deleted_freezes_are_left_alone(patch: Patch) -> None:
    patch.setattr(DeletedFreezes, "is_stuck", lambda self, tp: False)


def renewals_do_not_look_for_the_registration(patch: Patch) -> None:
    async def changed(self: RouterService, group: str, name: str, session: str, *, principal: str = "") -> float:
        async with self._mirror(group, name, session):
            return self._leases.ttl

    patch.setattr(RouterService, "renew", changed)


# --- in the library of router processes ----------------------------------------------------------------------------


def routers_do_not_look_at_the_clock(patch: Patch) -> None:
    patch.setattr(RoutingPermit, "holds", lambda self, now: not self.needs_table)


def newcomers_do_not_stash(patch: Patch) -> None:
    original = Cutovers.changed

    def changed(self: Cutovers, change: RowChange) -> list[CutoverStep]:
        if change.before is None and change.after is not None and change.after.frozen:
            return [Switch(change.tp, change.after), Flush(change.tp)]
        return original(self, change)

    patch.setattr(Cutovers, "changed", changed)


def deleted_handoffs_thaw(patch: Patch) -> None:
    def changed(held: Route | None, shown: Route) -> Route:
        return shown if held is None or shown.epoch >= held.epoch else held

    patch.setattr(table, "succeeding", changed)


def stashes_have_no_limits(patch: Patch) -> None:
    def changed(self: Stash, queue: StashQueue, size: int) -> None:
        pass

    patch.setattr(Stash, "_check", changed)
