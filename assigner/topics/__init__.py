"""Which topics a group has and how many partitions they have: from settings, from an operator, or from Kafka.

- `source`: what a source of topics answers, and the one that reads the settings. `kafka`: the one that asks a broker.
- `writer`: writes a topic's configuration, and looks up topics that a consumer names.
- `refresh`: the leader's loop that follows Kafka as topics grow or are made again.
- `quota`: how many topics and partitions groups may have. `catalog`: all of it behind one object for an instance.

May import `storage` and what is below. Not promised: that a topic which Kafka no longer has is removed. An operator
deletes it, because its ownership and offsets would go with it.
"""

from assigner.topics.kafka import KafkaSource
from assigner.topics.quota import TopicQuota
from assigner.topics.refresh import TopicRefresher
from assigner.topics.source import SettingsSource, TopicAnswer, TopicMissing, TopicSource, TopicUnavailable
from assigner.topics.writer import check_config, ensure_topic, set_topic

__all__ = [
    "KafkaSource",
    "SettingsSource",
    "TopicAnswer",
    "TopicMissing",
    "TopicQuota",
    "TopicRefresher",
    "TopicSource",
    "TopicUnavailable",
    "check_config",
    "ensure_topic",
    "set_topic",
]
