"""Every call of every service, found in the descriptors, with a request that is filled in wherever it can be."""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpclib.client import Channel
from grpclib.const import Cardinality
from grpclib.exceptions import GRPCError
from grpclib.health.v1 import health_pb2
from grpclib.reflection.v1 import reflection_pb2
from grpclib.reflection.v1alpha import reflection_pb2 as reflection_v1alpha_pb2

from assigner.client.channel import Codec
from assigner.proto.runtime import DESCRIPTORS, own_pool

_LEFT_OUT = frozenset({"after"})
"""Fields that exclude others."""
_TEXTS = {
    "handoff_mode": "overlap",
    "freeze_overdue": "abandon",
    "assignor": "member",
    "strategy_options": "{}",
    "copartitioned": "t,u",
}
_STANDARD = (health_pb2, reflection_pb2, reflection_v1alpha_pb2)


class Answer(msgspec.Struct, frozen=True):
    """The status that a call ended with; of a streaming one, after its first message."""

    status: str
    message: str


class EveryCall(msgspec.Struct, frozen=True):
    path: str
    method: Any

    async def make(self, port: int, token: str | None, **named: str) -> Answer:
        """Make the call over a connection of its own. `named`: fields of the request to fill in with this."""
        channel = Channel("127.0.0.1", port, codec=Codec())
        try:
            return await self.make_over(channel, token, **named)
        finally:
            channel.close()

    async def make_over(self, channel: Channel, token: str | None, **named: str) -> Answer:
        kind, reply = GetMessageClass(self.method.input_type), GetMessageClass(self.method.output_type)
        request = kind()
        _fill(request, named)
        metadata = None if token is None else {"authorization": f"Bearer {token}"}
        stream = channel.request(self.path, self._cardinality(), kind, reply, metadata=metadata, timeout=30)
        try:
            async with stream:
                await stream.send_message(request, end=True)
                await stream.recv_message()
                if self.method.server_streaming and not self.method.client_streaming:
                    await stream.cancel()
        except GRPCError as error:
            return Answer(error.status.name, error.message or "")
        return Answer("OK", "")

    def _cardinality(self) -> Cardinality:
        if self.method.client_streaming:
            return Cardinality.STREAM_STREAM
        return Cardinality.UNARY_STREAM if self.method.server_streaming else Cardinality.UNARY_UNARY


def every_call() -> dict[str, EveryCall]:
    """The calls by their paths."""
    pool, files = _pool()
    found = {}
    for name in files:
        for service in pool.FindFileByName(name).services_by_name.values():
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                found[path] = EveryCall(path, method)
    return found


def _pool() -> tuple[DescriptorPool, list[str]]:
    pool, files = own_pool(), [file.name for file in DESCRIPTORS]
    for module in _STANDARD:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        files.append(module.DESCRIPTOR.name)
    return pool, files


def _fill(message: Any, named: dict[str, str]) -> None:
    """Fill in every field, one element of each list, so that no call is refused for what it lacks."""
    for field in message.DESCRIPTOR.fields:
        choice = field.containing_oneof
        if field.name in _LEFT_OUT or (choice is not None and choice.fields[0].name != field.name):
            continue
        value = _value(field, named)
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                continue
            inner = getattr(message, field.name)
            _fill(inner.add() if field.is_repeated else inner, named)
        elif field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def _value(field: FieldDescriptor, named: dict[str, str]) -> Any:
    kinds = FieldDescriptor
    match field.cpp_type:
        case kinds.CPPTYPE_STRING:
            text = named.get(field.name, _TEXTS.get(field.name, "t"))
            return text.encode() if field.type == kinds.TYPE_BYTES else text
        case kinds.CPPTYPE_BOOL:
            return False
        case kinds.CPPTYPE_FLOAT | kinds.CPPTYPE_DOUBLE:
            return 1.0
        case _:
            return 1
