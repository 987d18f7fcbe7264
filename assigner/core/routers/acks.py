"""Decides what a router's ack of a freeze does.

    the handoff is ready or freezing, and the ack names it    the ack is recorded, under the router's lease
    the router has acked it already                           nothing
    the handoff is over, or past its freeze, or another one   nothing: the ack is late
    the handoff is still warming                              refused: nobody was asked to hold anything back

The record is written only if the handoff and the router's registration still are what the ack was decided on. So an ack
can't be counted for a later handoff, and not for a session that lost its name meanwhile. What counts is for
`core.routers.quorum` to say.
"""

from __future__ import annotations

from assigner.core.writes import Purpose, Write
from assigner.errors import FailedPrecondition, InvalidInput
from assigner.model.keys import GroupKeys
from assigner.model.records import Handoff, Phase, Router, RouterAck, Stored, encode
from assigner.model.routes import FreezeAck
from assigner.store import ModRevisionIs, Put


def check_ack(ack: FreezeAck) -> None:
    """Raise `InvalidInput` for an ack without a handoff's id, which could be about any."""
    if not ack.handoff_id:
        raise InvalidInput(f"the ack of {ack.tp} names no handoff; name the id that the table gave with the freeze")


def freeze_ack(
    keys: GroupKeys,
    handoff: Stored[Handoff],
    router: Stored[Router],
    known: Stored[RouterAck] | None,
    ack: FreezeAck,
    now: int,
) -> Write | None:
    """The write that records the ack; None: it changes nothing. `known`: the ack of this router that is on record.
    `now`: wall time, for people. Raises `FailedPrecondition` for a handoff that does not freeze anything yet."""
    record = handoff.record
    if record.identity != ack.handoff_id:
        return None
    if record.at.phase is Phase.WARMING:
        raise FailedPrecondition(
            f"partition {ack.tp} is not frozen: handoff {ack.handoff_id} is at {record.at.value}; ack what the table "
            "says is frozen"
        )
    if not record.awaits_routers or _is_recorded(known, record, router):
        return None
    name = router.record.router_name
    written = RouterAck(
        router_name=name,
        topic=ack.tp.topic,
        partition=ack.tp.partition,
        handoff_id=ack.handoff_id,
        session=router.record.session,
        epoch=record.old_epoch,
        acked_at=now,
    )
    compares = (ModRevisionIs(handoff.key, handoff.mod_revision), ModRevisionIs(router.key, router.mod_revision))
    put = Put(keys.ack(ack.tp, name), encode(written, known.extra if known else None), router.lease)
    return Write(Purpose.ACK, compares, (put,))


def _is_recorded(known: Stored[RouterAck] | None, handoff: Handoff, router: Stored[Router]) -> bool:
    """Whether the ack is on record, and under the lease that the router has now: an ack under one that ends would be
    deleted with it."""
    if known is None or known.lease != router.lease:
        return False
    return known.record.handoff_id == handoff.identity and known.record.session == router.record.session
