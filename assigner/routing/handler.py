"""Defines the interface of a cutover's five steps, and what a request is given: its target.

`CutoverExecutor` implements the interface for asyncio programs. A program that forwards requests by other means
implements it itself and gives it to its `Router`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from assigner.errors import AssignerError
from assigner.model.keys import TopicPartition
from assigner.model.routes import Route


class Target(msgspec.Struct, frozen=True, gc=False):
    """Where one request goes. The epoch goes along with the request, so that an owner of another epoch refuses it."""

    topic: str
    partition: int
    owner: str
    address: str
    """Where the owner can be reached, as it advertised it; may be empty."""
    epoch: int


class RouterClosed(AssignerError):
    """The router is closed, or has ended; the request was not sent."""


class CutoverHandler(Protocol):
    """What a router does with the requests of one partition while it changes hands.

    The router calls `stop`, `stash` and `drain` when the partition is frozen, and `switch` and `flush` when it has an
    owner that requests may be sent to, be it the same as before. Calls for one partition keep this order; partitions
    proceed side by side. A partition that loses its owner is stopped and stashed without a drain.

    Besides, `Router.may_route` has to be asked before each request is sent: while it is False, requests wait too.
    """

    def stop(self, partition: TopicPartition) -> None:
        """Send no further request of this partition to its owner."""
        ...

    def stash(self, partition: TopicPartition) -> None:
        """Keep requests of this partition that arrive from now on, in their order."""
        ...

    async def drain(self, partition: TopicPartition) -> None:
        """Return when no request of this partition is in flight any more: that is what the router acknowledges.
        Cancelled when the partition thaws before that."""
        ...

    def switch(self, partition: TopicPartition, route: Route) -> None:
        """Send requests of this partition to this owner from now on."""
        ...

    def flush(self, partition: TopicPartition) -> None:
        """Send what was stashed, in order, before any request that arrives later."""
        ...
