"""Decides which routers have to ack a freeze, and which of them have not.

The quorum is never stored: it is the set of routers that are registered at the moment of looking. Whoever sees a
handoff ready also sees every router that registered before it became so, because records are applied in the order of
revisions, and of a listing routers first. One that registers later starts with a table in which the partition is
frozen already; and one that leaves drops out by the deletion of its key. Three kinds of record count as a registered
router:

- a registration; its ack counts if it names the handoff and the registered session;
- a session that lost its name to another one, until its lease has ended: its process may still be sending;
- a record that can't be read, whose session nobody knows. So its ack can't be told from another's and never counts, and
  freezes last until their deadline: doubt never opens a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from assigner.core.group import GroupState
from assigner.model.keys import TopicPartition
from assigner.model.records import Handoff, Router, Stored

NAMED = 5
"""Routers that a text names; the rest is counted."""
NAMED_IN_RECORDS = 20
"""Routers that a record or an answer names for each partition that moves."""


def required(state: GroupState) -> list[str]:
    """The names of all routers that a freeze waits for, in order."""
    return sorted({*state.routers, *still_at_work(state)})


def still_at_work(state: GroupState) -> list[str]:
    """The names of routers that may be sending and whose acks do not count: they lost their name, or their record can't
    be read."""
    return [key.name for key in (*state.displaced_routers, *state.unreadable_routers)]


def missing(state: GroupState, tp: TopicPartition) -> list[str]:
    """The names of the routers that have not acked the partition's handoff, in order; empty: the quorum is complete."""
    handoff = state.handoffs[tp].record
    silent = {name for name, router in state.routers.items() if not has_acked(state, tp, handoff, router)}
    silent.update(still_at_work(state))
    return sorted(silent)


def missing_of_all(state: GroupState, tps: Iterable[TopicPartition]) -> list[str]:
    """The names of the routers that have not acked every one of these partitions, which are handed over as one."""
    return sorted({name for tp in tps for name in missing(state, tp)})


def has_acked(state: GroupState, tp: TopicPartition, handoff: Handoff, router: Stored[Router]) -> bool:
    """Whether the registered session of the router has acked this very handoff."""
    ack = state.acks.get(tp, {}).get(router.record.router_name)
    return bool(ack and ack.record.handoff_id == handoff.identity and ack.record.session == router.record.session)


def unacked(state: GroupState) -> dict[str, int]:
    """For each router that freezes wait for, how many frozen partitions it has not acked."""
    counts = dict.fromkeys(required(state), 0)
    for tp, handoff in state.handoffs.items() if counts else ():
        for name in missing(state, tp) if handoff.record.awaits_routers else ():
            counts[name] += 1
    return counts


def listed(names: Iterable[str]) -> str:
    """Name some routers in a text, the first of them in order."""
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - NAMED} more" if len(quoted) > NAMED else ""
    return ", ".join(quoted[:NAMED]) + more


def abridged(names: Sequence[str]) -> tuple[str, ...]:
    """Name some routers in a record or an answer, the first of them in order, and say how many more there are."""
    more = (f"and {len(names) - NAMED_IN_RECORDS} more",) if len(names) > NAMED_IN_RECORDS else ()
    return (*names[:NAMED_IN_RECORDS], *more)
