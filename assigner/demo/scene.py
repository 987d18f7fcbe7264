"""One moment of the demo as plain data: what the picture is drawn from, and all it is drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from assigner.api import GroupDescription
from assigner.model.records import Status, Step


class State(str, Enum):
    """What a worker is doing, as the audience sees it."""

    WAITING = "waiting"
    """Not there yet."""
    READY = "ready"
    DRAINING = "draining"
    KILLED = "killed"
    """Its process is gone; the service has not noticed yet."""
    GONE = "gone"


class Worker(msgspec.Struct, frozen=True):
    name: str
    state: State
    owned: int = 0
    warming: int = 0


class Cell(msgspec.Struct, frozen=True):
    """A partition: who owns it and, while it moves, who is next."""

    owner: str = ""
    next: str = ""
    step: str = ""
    epoch: int = 0


class Moving(msgspec.Struct, frozen=True):
    partition: int
    old: str
    new: str
    step: str
    cause: str


class SceneLine(msgspec.Struct, frozen=True):
    """Something that happened, for the log."""

    at: float
    text: str
    cause: str = ""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    at: float = 0.0
    title: str = ""
    workers: tuple[Worker, ...] = ()
    cells: tuple[Cell, ...] = ()
    moving: tuple[Moving, ...] = ()
    lines: tuple[SceneLine, ...] = ()
    generation: int = 0
    moves: int = 0

    @property
    def unowned(self) -> int:
        return sum(not cell.owner for cell in self.cells)


class Cast(msgspec.Struct, frozen=True):
    """What the stage knows and the service does not: which processes were started and which were killed."""

    started: frozenset[str] = frozenset()
    killed: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


def seen(
    description: GroupDescription | None,
    partitions: int,
    names: Sequence[str],
    cast: Cast,
    *,
    at: float,
    title: str,
    lines: Iterable[SceneLine],
    moves: int,
) -> Scene:
    """The scene that a group's description makes."""
    cells = [Cell()] * partitions
    moving: list[Moving] = []
    if description is not None:
        for ownership in description.ownership:
            cells[ownership.tp.partition] = Cell(ownership.owner, epoch=ownership.epoch)
        for handoff in description.handoffs:
            cell = cells[handoff.partition]
            # After the flip the partition is the new owner's; what is left is the old one's release.
            following = "" if handoff.at is Step.COMPLETE else handoff.new_owner
            cells[handoff.partition] = Cell(cell.owner, following, handoff.at.value, cell.epoch)
            moving.append(
                Moving(handoff.partition, handoff.old_owner, handoff.new_owner, handoff.at.value, handoff.cause.value)
            )
    return Scene(
        at=at,
        title=title,
        workers=tuple(_worker(name, description, cast) for name in names),
        cells=tuple(cells),
        moving=tuple(moving),
        lines=tuple(lines),
        generation=description.summary.generation if description else 0,
        moves=moves,
    )


def _worker(name: str, description: GroupDescription | None, cast: Cast) -> Worker:
    members = {one.consumer.consumer_name: one for one in description.members} if description else {}
    owned = sum(one.owner == name for one in description.ownership) if description else 0
    member = members.get(name)
    if member is None:
        return Worker(name, _absent(name, owned, cast), owned)
    if name in cast.killed:
        return Worker(name, State.KILLED, owned)
    state = State.DRAINING if member.consumer.status is Status.DRAINING else State.READY
    return Worker(name, state, owned, member.warming)


def _absent(name: str, owned: int, cast: Cast) -> State:
    if name in cast.killed and owned:
        return State.KILLED
    return State.GONE if name in cast.killed | cast.left else State.WAITING
