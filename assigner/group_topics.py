"""Where partition counts come from, for every group: the settings, an operator, or Kafka itself."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from assigner.election import Term
from assigner.errors import Refused
from assigner.groups import make_known
from assigner.keys import Keys
from assigner.logs import get_logger
from assigner.metrics import Metrics
from assigner.mirror import Mirrors
from assigner.records import TopicConfig
from assigner.settings import Settings
from assigner.store import Store
from assigner.topics import (
    KafkaSource,
    SettingsSource,
    TopicQuota,
    TopicRefresher,
    TopicSource,
    check_config,
    ensure_topic,
    set_topic,
)

log = get_logger("assigner.topics")


class GroupTopics:
    def __init__(self, store: Store, keys: Keys, settings: Settings, metrics: Metrics) -> None:
        self._store = store
        self._keys = keys
        self._settings = settings
        self._metrics = metrics
        self._kafka = _kafka(settings)
        quotas = settings.quotas
        self._quota = TopicQuota(
            store,
            keys,
            topics=quotas.topics,
            partitions=quotas.partitions,
            topic_partitions=quotas.topic_partitions,
            refused=metrics.refused,
        )

    async def close(self) -> None:
        if self._kafka:
            await self._kafka.aclose()

    async def set(self, group: str, config: TopicConfig, force: bool) -> TopicConfig:
        check_config(config)
        async with self._quota.room_for(group, config):
            return await set_topic(self._store, self._keys, group, config, force=force)

    async def ensure(self, group: str, topics: Sequence[str]) -> None:
        """Make sure the topics' partition counts are known. Raises `UnknownTopic`."""
        source: TopicSource = self._kafka or SettingsSource(self._settings.topics.get(group, {}))
        for topic in topics:
            await ensure_topic(self._store, self._keys, group, topic, source, self._quota)

    async def apply_settings(self) -> None:
        """Write the counts that the settings name. A topic that has more partitions by now keeps them."""
        for group, topics in self._settings.topics.items():
            await make_known(self._store, self._keys, group)
            for topic, count in topics.items():
                config = TopicConfig(topic=topic, partition_count=count, source="settings")
                try:
                    await set_topic(self._store, self._keys, group, config, force=False)
                except Refused as error:
                    log.warning("setting not applied", group=group, topic=topic, error=str(error))

    @property
    def follows_kafka(self) -> bool:
        return self._kafka is not None

    async def refresh(self, term: Term, mirrors: Mirrors) -> None:
        """A leader's work: follow what Kafka says of the group's topics, until cancelled."""
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
                self._settings.kafka.refresh_interval,
                lambda: mirror.state.topics,
                self._metrics,
            )
            await refresher.run()


def _kafka(settings: Settings) -> KafkaSource | None:
    kafka = settings.kafka
    if not kafka.bootstrap_servers:
        return None
    return KafkaSource(
        kafka.bootstrap_servers,
        kafka.properties,
        timeout=kafka.metadata_timeout,
        properties_file=kafka.properties_file,
    )
