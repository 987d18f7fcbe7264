"""The streams at this instance: which consumer sits where, and the group mirrors they need.

A seat is taken by name, and only by the session on record. A newer stream takes it over, and the older one's end never
touches the newer. Where both are of one session, the older is told to connect again: which of the two its process still
listens to, nobody here can know, because a call may arrive long after the one that followed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack

from assigner.errors import LimitReached, StreamReplaced
from assigner.mirror import GroupMirror, Mirrors
from assigner.records import Consumer, Stored
from assigner.relay import GroupRelay, StreamSeat, superseded

MAX_SEATS = 50_000


class Registry:
    def __init__(self, mirrors: Mirrors, *, max_seats: int = MAX_SEATS) -> None:
        self._mirrors = mirrors
        self._max_seats = max_seats
        self._relays: dict[str, GroupRelay] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def seats(self) -> Iterable[StreamSeat]:
        return [seat for relay in self._relays.values() for seat in relay.seats.values()]

    def seat(self, group: str, name: str) -> StreamSeat | None:
        relay = self._relays.get(group)
        return relay.seats.get(name) if relay else None

    @property
    def backlog(self) -> int:
        return sum(seat.backlog for seat in self.seats())

    def check_room(self) -> None:
        if self._count >= self._max_seats:
            raise LimitReached(f"this instance serves {self._max_seats} streams already; connect to another one")

    def take(self, mirror: GroupMirror, name: str, session: str, ttl: float, hold: AsyncExitStack) -> StreamSeat:
        """Seat a consumer. What `hold` keeps is the seat's from then on, and is let go when it is left. Raises
        `Superseded` if another session has the name by now, whose seat is left alone."""
        current = mirror.state.consumers.get(name)
        _check_on_record(current, session, mirror.group)
        relay = self._relays.get(mirror.group)
        if relay is None:
            relay = self._relays[mirror.group] = GroupRelay(mirror)
            mirror.listen(relay)
        before = relay.seats.get(name)
        if before:
            before.end(
                superseded(mirror.group, current.record)
                if current and before.session != session
                else StreamReplaced(f"a later stream of {name!r} took this one's place; connect again")
            )
        else:
            self._count += 1
        seat = StreamSeat(mirror, name, session, ttl, lambda left: self._left(mirror, relay, left))
        seat.hold = hold.pop_all()
        relay.seats[name] = seat
        relay.judge(seat)
        return seat

    def _left(self, mirror: GroupMirror, relay: GroupRelay, seat: StreamSeat) -> None:
        if relay.seats.get(seat.name) is not seat:
            return
        del relay.seats[seat.name]
        self._count -= 1
        if not relay.seats:
            mirror.unlisten(relay)
            del self._relays[mirror.group]


def _check_on_record(current: Stored[Consumer] | None, session: str, group: str) -> None:
    if current and current.record.session != session:
        raise superseded(group, current.record)
