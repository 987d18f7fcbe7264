"""What a program does with its partitions: the calls that the client makes.

Calls for one partition never overlap and keep their order; calls for different partitions run side by side. A method
that is not needed may be left out.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches

from assigner.core.client.messages import Ownership
from assigner.logs import get_logger
from assigner.model.commands import Release, Warm
from assigner.model.keys import TopicPartition

_LIKENESS = 0.75
"""From 0 to 1: how like one of the handler's methods another one's name must be to be taken for a slip."""

_log = get_logger(__name__)


class Handler:
    """Subclass it and override what matters."""

    async def assigned(self, partition: Ownership) -> None:
        """The partition is ours now: read its offset and state. Its gate opens when this returns. If it raises, it is
        called again after a pause; if the ownership is lost meanwhile, it is cancelled and `revoked` follows."""

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        """The partition may soon be ours: build its state while another one still works. Returning reports it as
        warm, raising reports why it can't be. Cancelled when it is not wanted any more."""

    async def release(self, partition: Ownership, order: Release) -> None:
        """Let go: finish what is under way, commit, close. The gate admits nothing new already. The release is
        reported when this has returned, or raised, and the gate is empty. With `order.standby` keep the state:
        `standby_added` follows."""

    async def revoked(self, partition: Ownership, reason: str) -> None:
        """The ownership is lost without a release; someone else may own the partition already. Drop what is under
        way; nothing of it may take effect."""

    async def discard(self, partition: TopicPartition) -> None:
        """A copy that was warmed is not wanted any more."""

    async def standby_added(self, partition: TopicPartition) -> None:
        """Hold a copy of another consumer's partition from now on: begin to follow it, and return; what else is told
        about the partition waits for that. A copy that is there already is the one to use."""

    async def standby_removed(self, partition: TopicPartition) -> None:
        """The copy is not wanted any more. Not called when the partition becomes ours (the copy is what `warm` and
        `assigned` begin with), nor when the consumer closes: after a restart the copy is asked for again."""


def warn_of_misspelt(handler: Handler) -> None:
    """Say which methods of a handler nobody will ever call, because their names are almost ours."""
    ours = [name for name in vars(Handler) if not name.startswith("_")]
    for name, _ in inspect.getmembers(type(handler), inspect.iscoroutinefunction):
        meant = get_close_matches(name, ours, n=1, cutoff=_LIKENESS)
        if not name.startswith("_") and name not in ours and meant:
            written = f"{type(handler).__name__}.{name}"
            _log.warning("handler_method_unknown", method=written, suggestion=meant[0])
