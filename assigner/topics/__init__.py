"""What topics there are and how many partitions they have: from settings, from an operator, or from Kafka."""

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
