"""Counts connections from accept on, in all and by address, and decides which one is closed when a limit is reached.

A connection is silent until its peer has sent something, and has no consumer until one is registered over it. At the
limit the connection that has been silent longest is closed, else the oldest one without a consumer, if it had time to
register one. Connections with consumers are never closed to make room.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from enum import Enum

MAX_SILENT = 500
"""Silent connections; beyond that the oldest is closed. All of them may begin to send in one round of the loop, which
takes a tenth of a millisecond each."""
_MIN_STAY = 5.0
"""Seconds for which a connection without a consumer is not closed to make room."""


class ConnectionStage(Enum):
    SILENT = "silent"
    NO_CONSUMER = "no consumer"
    CONSUMERS = "consumers"


class Slot:
    """One admitted connection: its address, its stage, and since when it has been in it."""

    __slots__ = ("address", "close", "held", "since", "stage")

    def __init__(self, address: str, since: float) -> None:
        self.address = address
        self.since = since
        self.stage = ConnectionStage.SILENT
        self.held = True
        self.close: Callable[[], None] = lambda: None
        """Closes the connection, to make room."""


class _Places:
    """Connections in the order in which they would be closed to make room."""

    def __init__(self) -> None:
        self.count = 0
        self._ordered: dict[ConnectionStage, dict[Slot, None]] = {
            ConnectionStage.SILENT: {},
            ConnectionStage.NO_CONSUMER: {},
        }

    def add(self, slot: Slot) -> None:
        self.count += 1
        self.enter(slot)

    def remove(self, slot: Slot) -> None:
        self.count -= 1
        self.leave(slot)

    def enter(self, slot: Slot) -> None:
        if slot.stage in self._ordered:
            self._ordered[slot.stage][slot] = None

    def leave(self, slot: Slot) -> None:
        if slot.stage in self._ordered:
            self._ordered[slot.stage].pop(slot, None)

    def silent(self) -> list[Slot]:
        return list(self._ordered[ConnectionStage.SILENT])

    def next_to_close(self, now: float) -> Slot | None:
        """The connection to close for another one; None: none may be closed."""
        silent, no_consumer = (next(iter(slots), None) for slots in self._ordered.values())
        if silent is not None:
            return silent
        return no_consumer if no_consumer is not None and now - no_consumer.since >= _MIN_STAY else None


class Admission:
    """Admits connections up to the limits, in all and by address, and closes others to make room for them."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self.most = most
        self.most_per_address = most_per_address
        self._all = _Places()
        self._by_address: dict[str, _Places] = {}

    def __len__(self) -> int:
        return self._all.count

    def admit(self, host: str, now: float) -> Slot | None:
        """Admit a connection from that host, maybe by closing another one; None: it is refused."""
        address = _network(host)
        silent = self._all.silent()
        if len(silent) >= MAX_SILENT:
            self._close(silent[0])
        here = self._by_address.get(address) or _Places()
        for places, most in ((here, self.most_per_address), (self._all, self.most)):
            if places.count >= most:
                leaving = places.next_to_close(now)
                if leaving is None:
                    return None
                self._close(leaving)
        slot = Slot(address, now)
        self._by_address.setdefault(address, here).add(slot)
        self._all.add(slot)
        return slot

    def _close(self, slot: Slot) -> None:
        # Its place is free at once; closing may take a while.
        self.leave(slot)
        slot.close()

    def move(self, slot: Slot, stage: ConnectionStage, now: float) -> None:
        """Put the connection into that stage, unless it has ended."""
        if not slot.held or slot.stage is stage:
            return
        both = (self._by_address[slot.address], self._all)
        for places in both:
            places.leave(slot)
        slot.stage, slot.since = stage, now
        for places in both:
            places.enter(slot)

    def leave(self, slot: Slot) -> None:
        """Free the place of a connection that has ended. Idempotent."""
        if not slot.held:
            return
        slot.held = False
        places = self._by_address[slot.address]
        places.remove(slot)
        self._all.remove(slot)
        if not places.count:
            del self._by_address[slot.address]

    def silent_too_long(self, since: float) -> list[Slot]:
        """The connections that were accepted at that time or before and whose peers have sent nothing."""
        return [slot for slot in self._all.silent() if slot.since <= since]


def _network(host: str) -> str:
    """The address by which connections are counted: of IPv6 the /64 network, because one site has all of it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
