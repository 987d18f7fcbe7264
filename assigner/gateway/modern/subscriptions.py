"""Finds out which topics a member's names and pattern are: now, and again when topics appear.

A member may name topics that do not exist yet, a pattern may match topics of tomorrow, and topics are deleted. So it is
looked again while members are here: one list of Kafka's topics for all of them, every few seconds.

Without brokers to ask, a pattern matches the topics that the group knows.
"""

from __future__ import annotations

import msgspec

from assigner.core.kafka_groups.modern.subscription import Subscription, pattern_on_record
from assigner.errors import InvalidName, UnknownTopic
from assigner.gateway.modern.parts import InstanceParts
from assigner.gateway.modern.patterns import matching
from assigner.model.names import check_topic

FOLLOW_INTERVAL = 5.0
"""Seconds after which it is looked again which topics there are."""


class Resolved(msgspec.Struct, frozen=True):
    """The topics of a subscription that exist."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    """For the registration: it says what else to look for."""


class Subscriptions:
    def __init__(self, parts: InstanceParts) -> None:
        self._parts = parts

    async def resolve(self, group: str, subscription: Subscription, *, again: bool = False) -> Resolved:
        """Raises `SourceUnavailable` if it can't be told now, and `LimitReached` if the group may not have so many.
        `again`: look also whether topics that the group knows have been deleted."""
        known, names = self._known(group), set(subscription.names)
        listed = self._parts.topics.listed
        usual = names <= known and (listed is None or names <= listed) and not self._lacks_ids(group, names)
        if again or subscription.pattern or not usual:
            listed = await self._parts.topics.current()
        wanted = names | matching(subscription.pattern, known if listed is None else listed)
        found, missing = set[str](), set[str]()
        for topic in sorted(wanted):
            # What the brokers do not list need not be asked for one by one.
            exists = (listed is None or topic in listed) and (topic in known or await self._ensure(group, topic))
            (found if exists else missing).add(topic)
        return Resolved(tuple(sorted(found)), pattern_on_record(subscription, missing & names))

    def _known(self, group: str) -> frozenset[str]:
        mirror = self._parts.mirrors.get(group)
        return frozenset(mirror.state.topics) if mirror else frozenset()

    def _lacks_ids(self, group: str, names: set[str]) -> bool:
        """Whether the id of a topic is not known, as of one whose record an operator wrote."""
        mirror, topics = self._parts.mirrors.get(group), self._parts.topics
        return any(topics.id_of(mirror.state if mirror else None, name) is None for name in names)

    async def _ensure(self, group: str, topic: str) -> bool:
        """Have the group know the topic; whether there is one."""
        try:
            check_topic(topic)
            await self._parts.ensure_topics(group, [topic])
        except (UnknownTopic, InvalidName):
            return False
        return True
