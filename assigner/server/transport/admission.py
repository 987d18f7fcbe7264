"""Counts the connections from the moment they are accepted, in all and by address, and says which makes room.

A connection is silent until its peer has spoken, then a stranger's until a consumer is registered over it. When there
is no room, the one that has been silent longest goes, then the stranger that has been there longest, if it has been
there for a while: who comes to stay has had time to register. Connections with consumers never make room.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from enum import Enum

MAX_SILENT = 500
"""Connections that have not spoken yet; beyond that the oldest makes room. All of them may speak in one round of the
loop, which takes a tenth of a millisecond each."""
_A_WHILE = 5.0
"""Seconds that a stranger may stay however many others come."""


class ConnectionStage(Enum):
    SILENT = "silent"
    STRANGER = "stranger"
    CONSUMERS = "consumers"


class Slot:
    """One connection's place."""

    __slots__ = ("address", "close", "held", "since", "stage")

    def __init__(self, address: str, since: float) -> None:
        self.address = address
        self.since = since
        self.stage = ConnectionStage.SILENT
        self.held = True
        self.close: Callable[[], None] = lambda: None
        """Ends the connection, to make room."""


class _Places:
    """Connections in the order in which they would make room."""

    def __init__(self) -> None:
        self.count = 0
        self._ordered: dict[ConnectionStage, dict[Slot, None]] = {
            ConnectionStage.SILENT: {},
            ConnectionStage.STRANGER: {},
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

    def to_go(self, now: float) -> Slot | None:
        """Who makes room."""
        silent, stranger = (next(iter(slots), None) for slots in self._ordered.values())
        if silent is not None:
            return silent
        return stranger if stranger is not None and now - stranger.since >= _A_WHILE else None


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
        """A place for a connection from there, or None. Another connection may be closed for it."""
        address = _network(host)
        crowd = self._all.silent()
        if len(crowd) >= MAX_SILENT:
            self._send_away(crowd[0])
        here = self._by_address.get(address) or _Places()
        for places, most in ((here, self.most_per_address), (self._all, self.most)):
            if places.count >= most:
                leaving = places.to_go(now)
                if leaving is None:
                    return None
                self._send_away(leaving)
        slot = Slot(address, now)
        self._by_address.setdefault(address, here).add(slot)
        self._all.add(slot)
        return slot

    def _send_away(self, slot: Slot) -> None:
        # Before it is closed, because closing may take its time.
        self.leave(slot)
        slot.close()

    def move(self, slot: Slot, stage: ConnectionStage, now: float) -> None:
        """The connection is now of that stage, if it is here at all."""
        if not slot.held or slot.stage is stage:
            return
        both = (self._by_address[slot.address], self._all)
        for places in both:
            places.leave(slot)
        slot.stage, slot.since = stage, now
        for places in both:
            places.enter(slot)

    def leave(self, slot: Slot) -> None:
        """The connection is over. More than once is no harm."""
        if not slot.held:
            return
        slot.held = False
        places = self._by_address[slot.address]
        places.remove(slot)
        self._all.remove(slot)
        if not places.count:
            del self._by_address[slot.address]

    def silent_too_long(self, since: float) -> list[Slot]:
        """Those whose peers have said nothing since then or before."""
        return [slot for slot in self._all.silent() if slot.since <= since]


def _network(host: str) -> str:
    """Whom the address belongs to: of IPv6 a site has 64 bits to choose from."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
