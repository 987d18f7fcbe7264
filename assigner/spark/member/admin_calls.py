"""Calls the service about a group, for callers that need not be its members."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from assigner.client import AdminClient, TopicPartition, Unavailable
from assigner.errors import AssignerError, PermissionDenied, Unauthenticated, UnreadableRecord
from assigner.proto.kafka_assigner import v1
from assigner.spark.options import Tls


async def describe_at(
    addresses: Sequence[str], tls: Tls | None, group: str, *, token_file: str = ""
) -> v1.DescribeGroupResponse:
    async with _admin(addresses, tls, token_file) as admin:
        return await admin.describe_group(group)


async def ask_to_drain(
    addresses: Sequence[str], tls: Tls | None, group: str, member: str, *, token_file: str = ""
) -> None:
    async with _admin(addresses, tls, token_file) as admin:
        await admin.drain(group, member)


async def committed_at(
    addresses: Sequence[str],
    tls: Tls | None,
    group: str,
    partitions: Sequence[TopicPartition],
    *,
    token_file: str = "",
) -> dict[TopicPartition, int]:
    """Fetch the group's committed offsets; partitions without one are left out."""
    async with _admin(addresses, tls, token_file) as admin:
        return {tp: found.offset for tp, found in (await admin.committed(group, partitions)).items()}


@asynccontextmanager
async def _admin(addresses: Sequence[str], tls: Tls | None, token_file: str) -> AsyncIterator[AdminClient]:
    token = Path(token_file) if token_file else None
    async with AdminClient(addresses, tls=tls.context() if tls is not None else None, token=token) as admin:
        try:
            yield admin
        except (UnreadableRecord, PermissionDenied, Unauthenticated):
            raise
        except AssignerError as error:
            raise Unavailable(f"no instance of the assigner answers ({error}); check option assigner") from error


# --- what a description says ---------------------------------------------------------------------------------------


def is_share_complete(found: v1.DescribeGroupResponse, member: str, held: Container[TopicPartition]) -> bool:
    """Whether a member holds all it owns, none is in flight to it, and it has none to hand over."""
    if found.summary is None or found.summary.unowned or not any(one.name == member for one in found.consumers):
        return False
    coming = any(one.new_owner == member for one in found.handoffs)
    return not coming and all(tp in held for tp in owned_by(found, member))


def owned_by(found: v1.DescribeGroupResponse, member: str) -> list[TopicPartition]:
    return [
        TopicPartition(of_topic.topic, partition)
        for of_topic in found.ownership
        for partition, owner in zip(of_topic.partitions, of_topic.owners, strict=True)
        if found.owners[owner] == member
    ]
