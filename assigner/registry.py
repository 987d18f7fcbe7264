"""The streams at this instance: which consumer sits where, and the group mirrors they need.

A seat is taken by name. A newer stream of the same name takes it over, and the older one's end never touches the newer.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack

from assigner.errors import LimitReached, Superseded
from assigner.mirror import GroupMirror, Mirrors
from assigner.relay import GroupRelay, StreamSeat

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
        """Seat a consumer. `hold` keeps the mirror; it is closed when the seat is left."""
        relay = self._relays.get(mirror.group)
        if relay is None:
            relay = self._relays[mirror.group] = GroupRelay(mirror)
            mirror.listen(relay)
        before = relay.seats.get(name)
        if before:
            before.end(Superseded(f"a newer stream of {name!r} took this one's place"))
        else:
            self._count += 1
        seat = StreamSeat(mirror, name, session, ttl, lambda left: self._left(mirror, relay, left))
        seat.hold = hold
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
