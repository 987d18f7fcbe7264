"""Questions about the group that any instance answers, for those who are not its members too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from typing import TypeVar

from grpclib.client import Channel
from grpclib.config import Configuration
from grpclib.exceptions import GRPCError, StreamTerminatedError

from assigner.client import TopicPartition, Unavailable
from assigner.client.codec import Codec
from assigner.client.offsets import committed
from assigner.client.rpc import ConsumerRpc, Identity, close_channel, parse_address
from assigner.proto.kafka_assigner import v1
from assigner.spark.options import Tls

T = TypeVar("T")
_SECONDS = 10.0
"""For one instance to answer."""


async def describe_at(addresses: Sequence[str], tls: Tls | None, group: str) -> v1.DescribeGroupResponse:
    request = v1.DescribeGroupRequest(group=group)
    return await _ask_admin(addresses, tls, lambda stub: stub.describe_group(request, timeout=_SECONDS))


async def ask_to_drain(addresses: Sequence[str], tls: Tls | None, group: str, member: str) -> None:
    async def ask(stub: v1.AdminStub) -> None:
        async for _ in stub.drain(v1.DrainRequest(group=group, consumer=member), timeout=_SECONDS):
            return

    await _ask_admin(addresses, tls, ask)


async def committed_at(
    addresses: Sequence[str], tls: Tls | None, group: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Offsets that the group has committed; partitions without one are left out."""

    async def ask(channel: Channel) -> dict[TopicPartition, int]:
        # Whoever asks for offsets need not be anybody.
        nobody = Identity(group=group, name="", session="", topics=(), capacity=1.0, rack="", address="", generation="")
        contact = ConsumerRpc(channel, nobody, _SECONDS)
        return {tp: found.offset for tp, found in (await committed(lambda: contact, partitions)).items()}

    return await _ask(addresses, tls, ask)


async def _ask_admin(addresses: Sequence[str], tls: Tls | None, question: Callable[[v1.AdminStub], Awaitable[T]]) -> T:
    return await _ask(addresses, tls, lambda channel: question(v1.AdminStub(channel)))


async def _ask(addresses: Sequence[str], tls: Tls | None, question: Callable[[Channel], Awaitable[T]]) -> T:
    trouble = ""
    for address in map(parse_address, addresses):
        config = Configuration(http2_connection_window_size=64 * 2**20, http2_stream_window_size=2**24)
        context = tls.context() if tls is not None else None
        channel = Channel(address.host, address.port, codec=Codec(), ssl=context, config=config)
        try:
            return await question(channel)
        except (GRPCError, StreamTerminatedError, Unavailable, OSError, TimeoutError) as error:
            trouble = f"{address}: {error}"
        finally:
            await close_channel(channel)
    raise Unavailable(f"no instance of the assigner answers ({trouble}); check option assigner")


# --- what the answer means ---------------------------------------------------------------------------------------


def is_share_complete(found: v1.DescribeGroupResponse, member: str, held: Container[TopicPartition]) -> bool:
    """Whether a member holds all it owns, nothing is on its way to it, and nothing is left to be given away."""
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
