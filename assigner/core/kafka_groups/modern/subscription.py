"""What a member wants: topics, a pattern, its rack and the time it needs to let partitions go.

A member says it when it joins, and afterwards only what has changed; a client that leaves says an empty subscription,
which changes nothing. The record of the member's registration keeps what another gateway needs to go on.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from assigner.core.kafka_groups.modern.requests import Heartbeat
from assigner.model.records import Consumer

DEFAULT_REBALANCE_TIMEOUT = 300.0


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    names: tuple[str, ...] = ()
    pattern: str = ""
    rack: str = ""
    rebalance_timeout: float = DEFAULT_REBALANCE_TIMEOUT
    from_record: bool = False
    """It is what a registration tells of it. What the member says next replaces all of that."""

    @property
    def is_empty(self) -> bool:
        return not self.names and not self.pattern

    def after(self, request: Heartbeat) -> Subscription:
        """The subscription as of this request."""
        if request.leaves:
            return self
        names, pattern = self.names, self.pattern
        if self.from_record and request.states_subscription:
            names, pattern = (), ""
        if request.names is not None:
            names = tuple(sorted(set(request.names)))
        if request.pattern is not None:
            pattern = request.pattern
        return Subscription(
            names=names,
            pattern=pattern,
            rack=self.rack if request.rack is None else request.rack,
            rebalance_timeout=(
                self.rebalance_timeout if request.rebalance_timeout is None else request.rebalance_timeout
            ),
            from_record=self.from_record and not request.states_subscription,
        )


def of_record(consumer: Consumer) -> Subscription:
    """The subscription of a member of whom nothing is known here but its registration."""
    return Subscription(
        names=consumer.topics,
        pattern=consumer.pattern,
        rack=consumer.rack,
        rebalance_timeout=consumer.release_timeout or DEFAULT_REBALANCE_TIMEOUT,
        from_record=True,
    )


def pattern_on_record(subscription: Subscription, missing: Collection[str]) -> str:
    """The pattern that a registration keeps, so that whoever resumes the member goes on to look for what is `missing`:
    topics that are named and that Kafka does not have yet."""
    # Names of topics hold one character that means something else in a pattern.
    names = [name.replace(".", r"\.") for name in sorted(missing)]
    if not names:
        return subscription.pattern
    pattern = [f"(?:{subscription.pattern})"] if subscription.pattern else []
    return "|".join([*pattern, *names])
