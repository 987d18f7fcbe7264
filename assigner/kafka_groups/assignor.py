"""Computes the assignment of a classic group by the group's strategy, where its options say that the service assigns.

Options and topics are read from the store for each assignment, so that it is made of what is on record. A topic that
the members subscribe to and that nobody has described yet is looked up first, as for any other consumer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio.to_thread

from assigner.core.kafka_groups.classic.actions import Assign
from assigner.core.kafka_groups.classic.consumer_protocol import Unreadable, subscribed_topics
from assigner.core.kafka_groups.classic.server_assignor import ServerAssignment, assignment_of, problem_of
from assigner.core.planning.rollout import solve
from assigner.errors import InvalidInput, SourceUnavailable, UnknownTopic, UnreadableRecord
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.names import check_topic
from assigner.model.records import GroupOptions, TopicConfig, decode
from assigner.storage.multi_get import multi_get
from assigner.store import Found, Store
from assigner.strategy.registry import prepare

EnsureTopics = Callable[[str, Sequence[str]], Awaitable[None]]
"""(group, topics): looks up those that are not known yet."""

log = get_logger("assigner.kafka_groups.assignor")


class ServerAssignor:
    def __init__(self, store: Store, keys: Keys, defaults: GroupOptions, ensure_topics: EnsureTopics) -> None:
        """`defaults`: options of groups that have none of their own."""
        self._store = store
        self._keys = keys
        self._defaults = defaults
        self._ensure_topics = ensure_topics

    async def assign(self, group: str, wanted: Assign) -> tuple[ServerAssignment, dict[str, int]]:
        """Compute an assignment, and return with it how many partitions each topic had. Raises an `AssignerError` if it
        can't be computed."""
        subscribed = subscribed_topics(member.metadata for member in wanted.members)
        if subscribed is None:
            raise InvalidInput("a member's subscription can't be read; let the members assign for themselves")
        await self._look_up(group, sorted(subscribed))
        options = await self._options(group)
        topics = await self._topics(group, sorted(subscribed))
        # On a thread: the problem may be large, and the strategy may have to be imported.
        computed = await anyio.to_thread.run_sync(_assignment, wanted, topics, options)
        return computed, {topic.topic: topic.partition_count for topic in topics}

    async def _look_up(self, group: str, topics: Sequence[str]) -> None:
        for topic in topics:
            try:
                await self._ensure_topics(group, [check_topic(topic)])
            except (UnknownTopic, SourceUnavailable) as error:
                # Of one that is not there nothing is assigned; of one that is on record what the record says.
                log.info("classic_topic_unknown", group=group, topic=topic, reason=str(error))

    async def _options(self, group: str) -> GroupOptions:
        key = self._keys.group(group).options
        found = await self._store.get(key)
        try:
            return decode(GroupOptions, found.entry.value)[0] if isinstance(found, Found) else self._defaults
        except UnreadableRecord as error:
            log.error("record_unreadable", group=group, key=key, error=str(error))
            return self._defaults

    async def _topics(self, group: str, topics: Sequence[str]) -> list[TopicConfig]:
        keys = self._keys.group(group)
        found = await multi_get(self._store, [keys.topic(topic) for topic in topics]) if topics else []
        return [decode(TopicConfig, one.entry.value)[0] for one in found if isinstance(one, Found)]


def _assignment(wanted: Assign, topics: Sequence[TopicConfig], options: GroupOptions) -> ServerAssignment:
    try:
        server = problem_of(wanted, topics, options)
    except Unreadable as error:
        raise InvalidInput(f"a member's subscription can't be read: {error}") from error
    return assignment_of(server, solve(prepare(options.strategy), server.problem, None))
