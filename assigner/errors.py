"""Every error the service raises on purpose.

A message names the thing, the rule it broke and the remedy. Drivers translate these to a gRPC status, an HTTP
status or an exit code in one place each; nothing else may invent a refusal.
"""

from __future__ import annotations


class AssignerError(Exception):
    """Base of all deliberate errors."""


class InvalidName(AssignerError):
    """A group, consumer, topic or session name breaks the naming rules."""


class InvalidInput(AssignerError):
    """A request or a setting is malformed or out of range."""


class NotRegistered(AssignerError):
    """The named consumer has no registration (or not with that session)."""


class NotTheTarget(AssignerError):
    """A Ready or Released for a partition that was never this consumer's to warm or release."""


class UnknownTopic(AssignerError):
    """A topic nobody configured and Kafka does not know."""


class SourceUnavailable(AssignerError):
    """Kafka did not say what a topic is like. Nothing was changed; retry."""


class UnknownGroup(AssignerError):
    """A group that no key mentions."""


class FailedPrecondition(AssignerError):
    """A well-formed request that the group's state or mode forbids."""


class Superseded(AssignerError):
    """Another session of the same name took over; this one must stop."""


class StreamReplaced(AssignerError):
    """A later stream of the same session took this one's place. Whoever still wants it connects again."""


class Evicted(AssignerError):
    """The leader ended this session because a handoff step passed its deadline."""


class TooSlow(AssignerError):
    """A stream whose reader stayed behind for too long was closed."""


class LimitReached(AssignerError):
    """A bound on streams, connections, names or sizes was hit."""


class StoreError(AssignerError):
    """Base of everything a Store raises."""


class StoreUnavailable(StoreError):
    """The store did not answer, and the request had no effect. Retry."""


class OutcomeUnknown(StoreError):
    """A write timed out or lost its connection: it may or may not have happened. Read again before deciding."""


class StoreRefused(StoreError):
    """Authentication or permission failed. Retrying without a change of settings is useless."""


class StoreReadOnly(StoreError):
    """The store accepts no writes (for etcd: NOSPACE alarm, corruption)."""


class StoreReplaced(StoreError):
    """The store's data is not the one that was there before: lost, restored or taken away."""


class TransactionTooLarge(StoreError):
    """More operations or bytes than the store takes in one transaction."""


class LeaseNotFound(StoreError):
    """A write named a lease that has ended."""


class Compacted(StoreError):
    """The requested revision is older than the history the store still has: list again and watch from there."""

    def __init__(self, compacted: int) -> None:
        super().__init__(f"revisions up to {compacted} are compacted; list again and watch from that revision")
        self.compacted = compacted


class WatchEnded(StoreError):
    """The store ended the watch for a reason resuming cannot cure: list again, then watch anew."""


class UnreadableRecord(AssignerError):
    """A stored value that is not the JSON its key promises. It is reported and left alone."""


def how_to_install(extra: str) -> str:
    """The remedy for a package that is missing; the same words wherever one is."""
    return f"install the extra, in a checkout of the project: pip install '.[{extra}]'"
