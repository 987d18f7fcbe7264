"""The interface that a program implements: the calls that the client makes about its partitions.

Calls for one partition never overlap and keep their order; calls for different partitions run concurrently. Methods
that are not needed may be left out.
"""

from __future__ import annotations

import inspect

from assigner.core.client.messages import Ownership
from assigner.logs import get_logger
from assigner.model.commands import Release, Warm
from assigner.model.keys import TopicPartition

_LIKENESS = 0.75
"""Similarity, from 0 to 1, from which a method's name counts as a misspelling of one of the handler's methods."""

_log = get_logger(__name__)


class Handler:
    """Handles changes of ownership. Subclass it and override the methods that are needed."""

    async def assigned(self, partition: Ownership) -> None:
        """Load the offset and state of a partition that this consumer owns now. The gate opens when this returns. If it
        raises, it is called again after a pause; if the ownership is lost meanwhile, it is cancelled and `revoked`
        follows."""

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        """Build the state of a partition that this consumer may own soon, while another one still works. Returning acks
        it as warm, raising reports why it failed. It is cancelled when the handoff is."""

    async def release(self, partition: Ownership, order: Release) -> None:
        """Stop work on the partition: finish work in progress, commit, close. The gate admits no new work. The release
        is acked when this has returned, or raised, and the gate is empty. With `order.standby` keep the state:
        `standby_added` follows."""

    async def revoked(self, partition: Ownership, reason: str) -> None:
        """Drop the work in progress on a partition whose ownership was lost without a release; the work must have no
        effect, because another consumer may own the partition already."""

    async def discard(self, partition: TopicPartition) -> None:
        """Discard the state that `warm` built: it is no longer wanted."""

    async def standby_added(self, partition: TopicPartition) -> None:
        """Hold a standby copy of another consumer's partition: start to follow it, and return; further calls about the
        partition wait for that. Use a copy that exists already."""

    async def standby_removed(self, partition: TopicPartition) -> None:
        """Discard a standby copy that is no longer wanted. Not called when this consumer becomes the owner (`warm` and
        `assigned` start from the copy), nor when it closes: after a restart the copy is requested again."""


def warn_of_misspelt(handler: Handler) -> None:
    """Log a warning for methods that are never called because their names look like misspelt handler methods."""
    ours = [name for name in vars(Handler) if not name.startswith("_")]
    methods = [name for name, _ in inspect.getmembers(type(handler), inspect.iscoroutinefunction)]
    others = [name for name in methods if not name.startswith("_") and name not in ours]
    if not others:
        return
    # Most handlers have no further methods, so most programs need not wait for this import.
    from difflib import get_close_matches

    for name in others:
        if meant := get_close_matches(name, ours, n=1, cutoff=_LIKENESS):
            written = f"{type(handler).__name__}.{name}"
            _log.warning("handler_method_unknown", method=written, suggestion=meant[0])
