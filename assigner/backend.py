"""What a coordination backend brings: a Store and a LeaderElector, found by entry point `assigner.backends`.

The service never imports a backend by name, so a third party's package is as good as ours.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Protocol

import msgspec

from assigner.clock import Clock
from assigner.election import LeaderElector
from assigner.errors import InvalidInput
from assigner.model.keys import Keys
from assigner.store import Store

ENTRY_POINTS = "assigner.backends"


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach the store. A backend ignores what it has no use for."""

    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    request_timeout: float = 5.0
    """Deadline of every single request, in seconds."""
    hang_timeout: float = 3.0
    """A server that answers no ping for this long is taken for hung and left for another endpoint."""
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_server_name: str | None = None
    user: str | None = None
    password: str | None = None
    password_file: str | None = None
    """Where the password is read from at each login, instead."""
    options: dict[str, str] = {}
    """Whatever else a backend wants to know, under names of its own choosing. It checks them itself, and the endpoints
    too, when it is opened: by raising `InvalidInput` with the key and the remedy."""


class Presence(msgspec.Struct, frozen=True):
    """This instance, as the others see it."""

    name: str
    address: str
    ttl: float = 15.0
    """Of the lease on which the instance's presence and all its leader keys hang."""


class Backend(Protocol):
    async def open(self, settings: StoreSettings, clock: Clock) -> Store: ...

    async def elector(self, store: Store, keys: Keys, presence: Presence, clock: Clock) -> LeaderElector:
        """Announce the instance and be ready to campaign."""
        ...


def load(name: str) -> Backend:
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        raise InvalidInput(f"no store backend named {name!r}; installed: {', '.join(sorted(found))}")
    backend: Backend = found[name].load()
    return backend
