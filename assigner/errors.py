"""Defines every error that the service raises deliberately.

A message names the thing, the rule it broke and the remedy. gRPC statuses, HTTP statuses and exit codes are derived
from these classes, in one module each.
"""

from __future__ import annotations


class AssignerError(Exception):
    """The base class of all deliberate errors."""


class InvalidName(AssignerError):
    """A group, consumer, topic or session name breaks the naming rules."""


class InvalidInput(AssignerError):
    """A request or a setting is malformed or out of range."""


class NotRegistered(AssignerError):
    """The named consumer has no registration (or not with that session)."""


class NotTheTarget(AssignerError):
    """A Ready or Released for a partition that was never this consumer's to warm or release."""


class UnknownTopic(AssignerError):
    """A topic that neither the settings nor an operator nor Kafka defines."""


class SourceUnavailable(AssignerError):
    """Kafka could not describe a topic. Nothing was changed; retry."""


class UnknownGroup(AssignerError):
    """A group that does not exist."""


class FailedPrecondition(AssignerError):
    """A well-formed request that the group's state or mode forbids."""


class GroupKindMismatch(FailedPrecondition):
    """The group is of another kind, and in use as such: members of two kinds do not mix."""


class Unauthenticated(AssignerError):
    """A call without a valid identity: it shows no token, or one that has expired or is not for this service."""


class PermissionDenied(AssignerError):
    """A caller whose identity is known may not do this, or not for this group, name or session."""


class Superseded(AssignerError):
    """Another session of the same name took over; this one must stop."""


class SessionHeld(AssignerError):
    """Another live session has the name, and the caller did not ask to take it over."""


class StreamReplaced(AssignerError):
    """A later stream of the same session replaced this one. A client that still needs it reconnects."""


class Evicted(AssignerError):
    """The leader ended this session because a handoff step passed its deadline."""


class TooSlow(AssignerError):
    """A stream was closed because its reader lagged behind for too long."""


class LimitReached(AssignerError):
    """A limit on streams, connections, names or sizes was reached."""


class StoreError(AssignerError):
    """The base class of the errors that a Store raises."""


class StoreUnavailable(StoreError):
    """The store did not answer, and the request had no effect. Retry."""


class OutcomeUnknown(StoreError):
    """A write timed out or lost its connection: it may or may not have happened. Read again before deciding."""


class StoreRefused(StoreError):
    """Authentication or permission failed. Retrying without a change of settings is useless."""


class StoreReadOnly(StoreError):
    """The store accepts no writes (for etcd: NOSPACE alarm, corruption)."""


class StoreReplaced(StoreError):
    """The store's data was lost, or replaced by other data, such as a backup."""


class TransactionTooLarge(StoreError):
    """A transaction has more operations or bytes than the store accepts."""


class LeaseNotFound(StoreError):
    """A write named a lease that has ended."""


class Compacted(StoreError):
    """The requested revision is older than the history the store still has: list again and watch from there."""

    def __init__(self, compacted: int) -> None:
        super().__init__(f"revisions up to {compacted} are compacted; list again and watch from that revision")
        self.compacted = compacted


class WatchEnded(StoreError):
    """The store ended the watch, and resuming it would not help: list again, then watch from there."""


class UnreadableRecord(AssignerError):
    """A stored value that is not the JSON its key promises. It is reported and left alone."""


def how_to_install(extra: str) -> str:
    """The remedy for a missing package, in the same words in every message."""
    return f"install the extra, in a checkout of the project: pip install '.[{extra}]'"
