"""The client library: a program joins a group, gets partitions, works behind gates, and hands them over without a gap.

Consumers, operators' programs and the Spark source use it to talk to the service. It may import
`core.client`, `model`, `aio`, `proto`, `clock`, `errors` and `logs`, and nothing of the service.

`consumer` is the main entry point; `handler` is what a program implements, `gate` what it checks before each effect,
`offsets` how it commits; `request_gates` finds the gate for what routers send. `session` keeps the consumer registered,
at one of its `addresses` after another, by one `registration` at a time: a stream, renewals and acks. `rpc` makes a
consumer's calls over a `channel`, which opens connections and names errors; `assignment_decoding` turns the stream's
messages into `model.commands`. `runner` feeds them to `core.client.state`, which decides, and `handler_tasks` calls the
handler as the state says. `admin` is the operators' client, `tls` builds TLS contexts, `token` holds what calls show to
be recognized, `aiokafka` reads Kafka for the partitions that are owned.

Not promised: that an effect which begins behind an open gate ends before the lease does. Give the epoch to the sink.
"""

from typing import TYPE_CHECKING

from assigner.client.channel import Unavailable
from assigner.client.consumer import AssignerConsumer, ConsumerStatistics
from assigner.client.gate import PartitionGate
from assigner.client.handler import Handler
from assigner.client.offsets import CommitFailed, CommittedOffset, Fenced, OffsetAndMetadata
from assigner.client.session import Ending, Timing
from assigner.core.client.gate import GateClosed, Shut, StaleEpoch
from assigner.core.client.messages import Ownership
from assigner.errors import (
    Evicted,
    InvalidInput,
    InvalidName,
    PermissionDenied,
    Superseded,
    Unauthenticated,
    UnknownTopic,
)
from assigner.model.commands import Release, Warm
from assigner.model.keys import TopicPartition

if TYPE_CHECKING:
    from assigner.client.admin import AdminClient
else:

    def __getattr__(name: str) -> object:
        # Imported when asked for: it needs the generated messages, which consumers do without (docs/performance.md).
        if name != "AdminClient":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from assigner.client.admin import AdminClient

        return AdminClient


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
    "PermissionDenied",
    "Release",
    "Shut",
    "StaleEpoch",
    "Superseded",
    "Timing",
    "TopicPartition",
    "Unauthenticated",
    "Unavailable",
    "UnknownTopic",
    "Warm",
]
