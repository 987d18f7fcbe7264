"""Who may commit and fetch offsets, by Kafka's rules for groups of its newer protocol.

A commit is accepted if its member epoch is no older than the one with which the member was given the partition
(KIP-1251), so a commit that crosses an assignment is not lost. It is stricter than a broker in one point: a member
commits for partitions of its own only. What makes it safe is not here: the service compares owner, session and the
ownership's epoch when it writes.

A fetch without a member is always served. Clients that were refused it stay assigned and read nothing, without an
error.
"""

from __future__ import annotations

from assigner.api import CommitRefusal, RefusedCommit
from assigner.core.kafka_groups.modern.member import ModernMember
from assigner.model.kafka_groups import KafkaError

FIRST_VERSION = 9
"""Of OffsetCommit and OffsetFetch, that knows member epochs."""
NO_EPOCH = -1


def is_by_nobody(member_id: str | None, epoch: int) -> bool:
    """Whether a call is no member's: a tool's, or of a client that assigns partitions to itself."""
    return not member_id and epoch < 0


def check_commit(version: int, epoch: int, member: ModernMember | None) -> KafkaError:
    """What all partitions of a member's commit are answered with; NONE: each is decided by itself."""
    if member is None:
        return KafkaError.UNKNOWN_MEMBER_ID
    if version < FIRST_VERSION:
        return KafkaError.UNSUPPORTED_VERSION
    member.learn(epoch)
    return KafkaError.STALE_MEMBER_EPOCH if epoch > member.epoch else KafkaError.NONE


def check_fetch(member_id: str | None, epoch: int, member: ModernMember | None) -> KafkaError:
    """What a fetch of a group is answered with; NONE: it is served."""
    if is_by_nobody(member_id, epoch):
        return KafkaError.NONE
    if member is None:
        return KafkaError.UNKNOWN_MEMBER_ID
    member.learn(epoch)
    return KafkaError.NONE if epoch == member.epoch else KafkaError.STALE_MEMBER_EPOCH


def refusal_of_commit(refused: RefusedCommit) -> KafkaError:
    """What a partition is answered with whose commit the service refused."""
    match refused.why:
        case CommitRefusal.FENCED:
            return KafkaError.STALE_MEMBER_EPOCH
        case CommitRefusal.UNKNOWN_PARTITION:
            return KafkaError.UNKNOWN_TOPIC_OR_PARTITION
        case CommitRefusal.FAILED:
            return KafkaError.COORDINATOR_LOAD_IN_PROGRESS
