"""Defines what the wire and the handlers of groups know of each other: a request, its client, the table of handlers.

The wire reads a frame, decodes the request with kio's entity of its version, and calls the handler that the table names
for its API. The handler returns the answer, or an awaitable of it. Requests of a connection are handled one at a time
and in order, as a broker does it: while an answer is awaited, the next request of that connection waits, and no other
connection does. So a handler that holds an answer back listens to `Request.on_interruption`.

A handler is never cancelled because its client went away, since it may be in the middle of a write: it is told, and its
answer is dropped. It is cancelled when the gateway ends, after the grace period of a drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, Protocol

import msgspec

from assigner.auth.actions import Action
from assigner.auth.identity import Principal

Entity = Any
"""A request's or an answer's body: the dataclass that kio has for its API and version."""

Answer = Entity | bytes
"""What a handler answers: kio's entity of the request's version, or that body's bytes where an encoder was written by
hand. The wire adds the length, the correlation id and the header's tags."""


class Interruption(Enum):
    """What happened to a request that has no answer yet."""

    FOLLOWED = "followed"
    """Its client has sent another request, whose answer has to wait for this one. Whoever only held the answer back
    answers now."""
    DRAINING = "draining"
    """The gateway ends: what is held back is to be answered now, so that the client goes elsewhere in good time."""
    CLOSED = "closed"
    """The connection is gone, and nobody will read the answer."""


class CloseConnection(Exception):
    """Raised by a handler to whose request Kafka has no answer but closing the connection. Says why, for the log."""


class Access(Protocol):
    """Decides what clients may do."""

    def reason(
        self,
        principal: Principal | None,
        action: Action,
        org: str,
        *,
        group: str | None = None,
        name: str | None = None,
        topic: str | None = None,
    ) -> str | None:
        """Return why the principal may not do this, for the log or an error message; None: it may."""
        ...


class Client:
    """The connection that a request came over. What it says of itself may change when it logs in again."""

    __slots__ = ("_access", "closed", "host", "listener", "number", "org", "principal", "software", "software_version")

    def __init__(self, number: int, listener: str, host: str, org: str, access: Access) -> None:
        self.number = number
        """Unique among the connections of this process."""
        self.listener = listener
        """The name of the listener that it connected to."""
        self.host = host
        """Its IP address, without the port."""
        self.org = org
        """The organization whose groups it sees: its principal's, else its listener's. Empty: the default one."""
        self.principal: Principal | None = None
        """Who it is; None: no identity was asked for."""
        self.software = ""
        """What it calls its library in ApiVersions, such as `librdkafka`; empty: it did not say."""
        self.software_version = ""
        self.closed = False
        self._access = access

    @property
    def identity(self) -> str:
        """What records of the service name its principal by; empty: it has none."""
        return "" if self.principal is None else self.principal.identity

    def reason(
        self, action: Action, *, group: str | None = None, name: str | None = None, topic: str | None = None
    ) -> str | None:
        """Return why this client may not do this; None: it may. `group` is the name that the client uses: the name
        that it has in the assigner is compared with the principal's patterns. A refused group is answered with 30, a
        refused topic with 29."""
        return self._access.reason(self.principal, action, self.org, group=group, name=name, topic=topic)


class Request:
    """One request on its way through the gateway, without its body, which the handler gets beside it."""

    __slots__ = ("_happened", "_tell", "api", "client", "client_id", "correlation", "received", "version")

    def __init__(
        self, client: Client, api: int, version: int, correlation: int, client_id: str, received: float
    ) -> None:
        self.client = client
        self.api = api
        self.version = version
        self.correlation = correlation
        self.client_id = client_id
        """Empty also where the client sent null."""
        self.received = received
        """By the gateway's clock."""
        self._happened: dict[Interruption, None] = {}
        self._tell: list[Callable[[Interruption], None]] = []

    @property
    def interruptions(self) -> tuple[Interruption, ...]:
        """Those that have happened so far, the first one first."""
        return tuple(self._happened)

    def on_interruption(self, tell: Callable[[Interruption], None]) -> None:
        """Call `tell` for each interruption, at most once for each kind, at once for those that have happened."""
        for one in self._happened:
            tell(one)
        self._tell.append(tell)

    def interrupted(self) -> asyncio.Future[Interruption]:
        """Return a future of the first interruption."""
        found: asyncio.Future[Interruption] = asyncio.get_running_loop().create_future()

        def tell(one: Interruption) -> None:
            if not found.done():
                found.set_result(one)

        self.on_interruption(tell)
        return found

    def interrupt(self, one: Interruption) -> None:
        """Tell the handler; called by the wire."""
        if one not in self._happened:
            self._happened[one] = None
            for tell in self._tell:
                tell(one)


Handler = Callable[[Request, Entity], Answer | Awaitable[Answer]]
"""Handles one request. What it returns at once costs no task; a future that it returns costs none either, a coroutine
costs one. It raises `CloseConnection` where Kafka closes the connection."""

Failure = Callable[[Request, Entity, Exception], Answer]
"""Makes the answer for a request whose handler failed with an error that nobody expected, which is logged already."""


class HandledApi(msgspec.Struct, frozen=True):
    """An API that the gateway answers itself."""

    first: int
    """The lowest version that it answers."""
    last: int
    handle: Handler
    failed: Failure | None = None
    """None: the connection is closed if the handler fails, and the client tries again."""


Handlers = Mapping[int, HandledApi]
"""By API key. What is not in it is passed on to the broker, or hidden."""


class FetchConnections(Protocol):
    """The connections over which clients read from the brokers through this gateway."""

    def close_fetchers(self, principal: str, client_id: str, host: str) -> int:
        """Close the connections of that client that have sent a Fetch, and return how many there were.

        Kafka's Fetch names no member, so they are found by what connections tell: the principal's identity (empty:
        none), the client id and the IP address. So this hits every consumer that shares the three, and such a one
        connects again and goes on, for a lost lease does not keep anybody from reading. It misses connections to other
        gateways and to the brokers themselves. It makes a client that lost its lease stop sooner, and promises nothing.
        """
        ...
