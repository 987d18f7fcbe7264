"""Describes the state of the demo at one moment, as plain data. Rendering uses nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from assigner.api import GroupDescription
from assigner.demo.traffic import Traffic
from assigner.model.records import Status, Step


class State(str, Enum):
    """The state of a worker, as it is displayed."""

    NOT_YET = "not yet"
    """Not started yet."""
    STARTING = "starting"
    """Started, and not registered yet."""
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


FROZEN = frozenset({Step.FREEZING.value, Step.RELEASING.value, Step.RELEASED.value})
"""The steps from the freeze to the flip, in which routers hold requests back."""


class Cell(msgspec.Struct, frozen=True):
    """A partition: its owner and, during a handoff, its next owner."""

    owner: str = ""
    next: str = ""
    step: str = ""
    epoch: int = 0

    @property
    def frozen(self) -> bool:
        return self.step in FROZEN


class Moving(msgspec.Struct, frozen=True):
    partition: int
    old: str
    new: str
    step: str
    cause: str


class EventLine(msgspec.Struct, frozen=True):
    """A line of the displayed log."""

    at: float
    text: str
    cause: str = ""
    partitions: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    at: float = 0.0
    title: str = ""
    workers: tuple[Worker, ...] = ()
    cells: tuple[Cell, ...] = ()
    moving: tuple[Moving, ...] = ()
    lines: tuple[EventLine, ...] = ()
    generation: int = 0
    moves: int = 0
    traffic: Traffic | None = None
    """Of the demo with routers."""

    @property
    def unowned(self) -> int:
        return sum(not cell.owner for cell in self.cells)

    @property
    def frozen(self) -> int:
        return sum(cell.frozen for cell in self.cells)


class ProcessStates(msgspec.Struct, frozen=True):
    """Which worker processes were started, killed or drained; the service does not know that."""

    started: frozenset[str] = frozenset()
    killed: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


def snapshot_of(
    description: GroupDescription | None,
    partitions: int,
    names: Sequence[str],
    processes: ProcessStates,
    *,
    at: float,
    title: str,
    lines: Iterable[EventLine],
    moves: int,
) -> Snapshot:
    """Make a snapshot from the group's description."""
    cells = [Cell()] * partitions
    moving: list[Moving] = []
    if description is not None:
        for ownership in description.ownership:
            cells[ownership.tp.partition] = Cell(ownership.owner, epoch=ownership.epoch)
        for handoff in description.handoffs:
            cell = cells[handoff.partition]
            # After the flip the new owner owns the partition, and only the old owner's release is pending.
            next_owner = "" if handoff.at is Step.COMPLETE else handoff.new_owner
            cells[handoff.partition] = Cell(cell.owner, next_owner, handoff.at.value, cell.epoch)
            moving.append(
                Moving(handoff.partition, handoff.old_owner, handoff.new_owner, handoff.at.value, handoff.cause.value)
            )
    return Snapshot(
        at=at,
        title=title,
        workers=tuple(_worker(name, description, processes) for name in names),
        cells=tuple(cells),
        moving=tuple(moving),
        lines=tuple(lines),
        generation=description.summary.generation if description else 0,
        moves=moves,
    )


def _worker(name: str, description: GroupDescription | None, processes: ProcessStates) -> Worker:
    members = {one.consumer.consumer_name: one for one in description.members} if description else {}
    owned = sum(one.owner == name for one in description.ownership) if description else 0
    member = members.get(name)
    if member is None:
        return Worker(name, _absent(name, owned, processes), owned)
    if name in processes.killed:
        return Worker(name, State.KILLED, owned)
    state = State.DRAINING if member.consumer.status is Status.DRAINING else State.READY
    return Worker(name, state, owned, member.warming)


def _absent(name: str, owned: int, processes: ProcessStates) -> State:
    if name in processes.killed and owned:
        return State.KILLED
    if name in processes.killed | processes.left:
        return State.GONE
    return State.STARTING if name in processes.started else State.NOT_YET
