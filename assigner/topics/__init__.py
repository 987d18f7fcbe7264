"""Finds which topics a group has, and their partition counts: from settings, from an operator, or from Kafka.

- `source`: the interface of a source of topics, and the source that reads the settings. `kafka`: the source that asks a
  broker.
- `writer`: writes a topic's configuration. `lookups`: looks up the topics that a consumer names, and adds them.
- `refresh`: the leader's loop that polls Kafka for topics that grew or were recreated.
- `quota`: limits on the topics and partitions of a group. `catalog`: combines these for an instance.

May import `storage` and what is below. Not promised: that a topic which Kafka no longer has is removed. An operator
deletes it, because its ownership and offsets would go with it.
"""

from assigner.topics.kafka import KafkaSource
from assigner.topics.lookups import TopicLookups
from assigner.topics.quota import TopicQuota
from assigner.topics.refresh import TopicRefresher
from assigner.topics.source import SettingsSource, TopicAnswer, TopicMissing, TopicSource, TopicUnavailable
from assigner.topics.writer import check_config, set_topic

__all__ = [
    "KafkaSource",
    "SettingsSource",
    "TopicAnswer",
    "TopicLookups",
    "TopicMissing",
    "TopicQuota",
    "TopicRefresher",
    "TopicSource",
    "TopicUnavailable",
    "check_config",
    "set_topic",
]
