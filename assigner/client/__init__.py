"""The client library: join a group, get partitions, work behind gates, hand over without a gap."""

from assigner.client.admin import AdminClient
from assigner.client.channel import Unavailable
from assigner.client.consumer import AssignerConsumer, ConsumerStatistics
from assigner.client.gate import PartitionGate
from assigner.client.handler import Handler
from assigner.client.offsets import CommitFailed, CommittedOffset, Fenced, OffsetAndMetadata
from assigner.client.session import Ending, Timing
from assigner.core.client.gate import GateClosed, Shut, StaleEpoch
from assigner.core.client.messages import Ownership
from assigner.errors import Evicted, InvalidInput, InvalidName, Superseded, UnknownTopic
from assigner.model.commands import Release, Warm
from assigner.model.keys import TopicPartition

__all__ = [
    "AdminClient",
    "AssignerConsumer",
    "CommitFailed",
    "CommittedOffset",
    "ConsumerStatistics",
    "Ending",
    "Evicted",
    "Fenced",
    "GateClosed",
    "Handler",
    "InvalidInput",
    "InvalidName",
    "OffsetAndMetadata",
    "Ownership",
    "PartitionGate",
    "Release",
    "Shut",
    "StaleEpoch",
    "Superseded",
    "Timing",
    "TopicPartition",
    "Unavailable",
    "UnknownTopic",
    "Warm",
]
