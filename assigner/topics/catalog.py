"""`GroupTopics` finds the partition counts of a group's topics: in the settings, set by an operator, or from Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from assigner.election import Term
from assigner.errors import FailedPrecondition
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.records import TopicConfig
from assigner.observability.metrics import Metrics
from assigner.storage.groups import make_known
from assigner.storage.mirror import Mirrors
from assigner.store import Store
from assigner.topics import (
    KafkaSource,
    SettingsSource,
    TopicLookups,
    TopicQuota,
    TopicRefresher,
    TopicSource,
    check_config,
    set_topic,
)

log = get_logger("assigner.topics")


class GroupTopics:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        metrics: Metrics,
        quota: TopicQuota,
        *,
        counts: Mapping[str, Mapping[str, int]],
        kafka: KafkaSource | None,
        refresh_interval: float,
    ) -> None:
        """`counts`: group -> topic -> partitions, from the settings. `kafka`: the source of all other topics, polled
        every `refresh_interval` seconds."""
        self._store = store
        self._keys = keys
        self._metrics = metrics
        self._quota = quota
        self._lookups = TopicLookups(store, keys, quota)
        self._counts = counts
        self._kafka = kafka
        self._refresh_interval = refresh_interval

    async def close(self) -> None:
        if self._kafka:
            await self._kafka.aclose()

    async def set(self, group: str, config: TopicConfig, force: bool) -> TopicConfig:
        check_config(config)
        async with self._quota.room_for(group, config):
            return await set_topic(self._store, self._keys, group, config, force=force)

    async def ensure(self, group: str, topics: Sequence[str]) -> None:
        """Look up and store the partition counts of topics that have none. Raises `UnknownTopic`."""
        source: TopicSource = self._kafka or SettingsSource(self._counts.get(group, {}))
        for topic in topics:
            await self._lookups.ensure(group, topic, source)

    async def apply_settings(self) -> None:
        """Write the partition counts of the settings. A topic that has more partitions by now keeps them."""
        for group, topics in self._counts.items():
            await make_known(self._store, self._keys, group, of_any_kind=True)
            for topic, count in topics.items():
                config = TopicConfig(topic=topic, partition_count=count, source="settings")
                try:
                    await set_topic(self._store, self._keys, group, config, force=False)
                except FailedPrecondition as error:
                    log.warning("topic_setting_rejected", group=group, topic=topic, error=str(error))

    @property
    def follows_kafka(self) -> bool:
        return self._kafka is not None

    async def refresh(self, term: Term, mirrors: Mirrors) -> None:
        """As the group's leader, apply changes of its topics in Kafka, until cancelled."""
        if self._kafka is None:
            await anyio.sleep_forever()
            return
        async with mirrors.of(term.group, leads=True) as mirror:
            refresher = TopicRefresher(
                self._store,
                self._keys,
                term.group,
                self._kafka,
                term.fence,
                self._refresh_interval,
                lambda: mirror.state.topics,
                self._metrics,
            )
            await refresher.run()
