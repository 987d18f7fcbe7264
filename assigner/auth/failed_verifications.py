"""Limits how often one address may make the service verify a signature that is false.

A false signature costs as much processor time as a good one, so each address has an allowance that refills over time.
Once it is used up, tokens from there that are not known yet are refused without a look at their signature; those that
were verified before go on. Only false signatures count: whatever else is wrong with a token costs little to find.

Not promised: justice among those who share an address, such as a proxy's; nor a limit for a peer with thousands of
addresses. The addresses that are remembered are bounded, and those that failed last are kept.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

AT_ONCE = 20
"""False signatures that an address may send in a row."""
PER_SECOND = 1.0
"""How fast the allowance refills."""
MOST_ADDRESSES = 4_096


class FailedVerifications:
    def __init__(
        self, *, at_once: int = AT_ONCE, per_second: float = PER_SECOND, most_addresses: int = MOST_ADDRESSES
    ) -> None:
        self._step = 1.0 / per_second
        self._span = at_once * self._step
        self._most = most_addresses
        self._full_again: OrderedDict[str, float] = OrderedDict()
        """By address: when its allowance will be full again. Those that failed longest ago come first."""

    def __len__(self) -> int:
        return len(self._full_again)

    def wait(self, address: str, now: float) -> float:
        """Return the seconds until the address may try a signature again; 0: it may now."""
        full_again = self._full_again.get(_owner(address))
        if full_again is None:
            return 0.0
        # A clock that was set back must not lock anybody out for longer than a full allowance takes.
        return min(self._span, max(0.0, full_again - now + self._step - self._span))

    def failed(self, address: str, now: float) -> None:
        """Take one from the address's allowance."""
        owner = _owner(address)
        full_again = min(self._full_again.pop(owner, now), now + self._span)
        self._full_again[owner] = max(full_again, now) + self._step
        if len(self._full_again) > self._most:
            self._full_again.popitem(last=False)


def _owner(address: str) -> str:
    """Whose allowance it is: an IPv6 peer may use any address of its network."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
