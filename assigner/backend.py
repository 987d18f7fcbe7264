"""Defines the interface of a coordination backend, a Store and a LeaderElector, and loads it by its entry point.

Backends are found in the entry point group `assigner.backends`, those of third parties like our own.
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
    """Connection settings of the store. A backend ignores those that it does not use."""

    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    request_timeout: float = 5.0
    """Deadline of every single request, in seconds."""
    hang_timeout: float = 3.0
    """A server that answers no ping for this long counts as hung, and another endpoint is used."""
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_server_name: str | None = None
    user: str | None = None
    password: str | None = None
    password_file: str | None = None
    """A file from which the password is read at each login, instead of `password`."""
    options: dict[str, str] = {}
    """Further options, with names that the backend defines. When opened, it checks them and the endpoints itself, and
    raises `InvalidInput` with the key and the remedy."""


class Presence(msgspec.Struct, frozen=True):
    """An instance's announcement to the others: its name, its address and the TTL of its lease."""

    name: str
    address: str
    ttl: float = 15.0
    """The TTL of the lease to which the instance's presence key and all its leader keys are attached."""


class Backend(Protocol):
    async def open(self, settings: StoreSettings, clock: Clock) -> Store: ...

    async def elector(self, store: Store, keys: Keys, presence: Presence, clock: Clock) -> LeaderElector:
        """Announce the instance, and return an elector that is ready to campaign."""
        ...


def load(name: str) -> Backend:
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        raise InvalidInput(f"no store backend named {name!r}; installed: {', '.join(sorted(found))}")
    backend: Backend = found[name].load()
    return backend
