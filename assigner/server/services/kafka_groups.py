"""Serves the calls that gateways make for members of classic Kafka groups: checks names, calls `ClassicGroups`.

A gateway answers for who its clients are. What it may do itself is checked here: its role, and that the group is one of
its own, by the name that the group has in the assigner.

A JoinGroup may wait for minutes, and a gateway has as many of them as its groups have members. So a call that may wait
counts as a consumer of its connection while it does: it makes room for itself, as a consumer's stream makes room for
the consumer's calls, and takes none of what is kept for connections without consumers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
from grpclib.const import Cardinality, Handler
from grpclib.server import Stream

from assigner.api import ClassicGroups
from assigner.errors import InvalidName
from assigner.model.names import check_name, qualified_group
from assigner.observability.tracing import continued
from assigner.proto import classic_groups as wire
from assigner.proto.classic_groups import Method
from assigner.proto.runtime import message_class
from assigner.server.services.requests import Requests
from assigner.server.transport.calls import CallStream, reading, receive
from assigner.server.transport.http2 import PeerConnection

Call = Callable[[str, Any, str], Awaitable[msgspec.Struct]]
"""(organization, request, principal)"""


class KafkaGroupCalls:
    def __init__(self, groups: ClassicGroups, requests: Requests, max_elements: int) -> None:
        self._groups = groups
        self._requests = requests
        self._max_elements = max_elements

    def __mapping__(self) -> dict[str, Handler]:
        groups = self._groups
        calls: dict[Method, Call] = {
            wire.JOIN: lambda org, one, who: groups.join(org, one, principal=who),
            wire.SYNC: lambda org, one, who: groups.sync(org, one, principal=who),
            wire.HEARTBEAT: lambda org, one, who: groups.heartbeat(org, one, principal=who),
            wire.LEAVE: lambda org, one, who: groups.leave(org, one, principal=who),
            wire.COMMIT: lambda org, one, who: groups.commit(org, one, principal=who),
            wire.FETCH: lambda org, one, who: groups.fetch(org, one, principal=who),
            wire.LIST: self._list,
            wire.DESCRIBE: lambda org, one, who: groups.describe(org, one.group, principal=who),
            wire.DELETE: self._delete,
            wire.DELETE_OFFSETS: lambda org, one, who: groups.delete_offsets(org, one, principal=who),
        }
        return {method.path: self._handler(method, call) for method, call in calls.items()}

    def _handler(self, method: Method, call: Call) -> Handler:
        waits = method in (wire.JOIN, wire.SYNC)

        async def answer(stream: Stream[Any, Any]) -> bytes:
            request = wire.value_of(await receive(stream), method.request_type, self._max_elements)
            org, principal = wire.carried(stream.metadata or {})
            self._check(org, request)
            with continued(stream.metadata):
                if not waits:
                    return wire.encoded(method.answer, await call(org, request, principal))
                with cast(PeerConnection, stream._stream.connection).with_consumer():
                    return wire.encoded(method.answer, await call(org, request, principal))

        async def work(stream: Stream[Any, Any]) -> None:
            reply = await answer(stream)
            with cast(CallStream, stream._stream).unread.waiting(len(reply)):
                async with reading(stream):
                    await stream.send_message(reply)

        return Handler(work, Cardinality.UNARY_UNARY, message_class(method.request), message_class(method.answer))

    def _check(self, org: str, request: msgspec.Struct) -> None:
        """Raise `InvalidName` for a malformed name, and `PermissionDenied` for a group that is not the caller's."""
        if org:
            check_name("organization", org)
        if "/" in org:
            raise InvalidName(f"organization {org!r} holds a slash; leave it out")
        group = getattr(request, "group", None)
        if group is not None:
            # Not the default group's name in its place: a Kafka client always has a group of its own.
            self._requests.group(qualified_group(org, check_name("group", group)))

    async def _list(self, org: str, _: Any, principal: str) -> msgspec.Struct:
        listing = await self._groups.list_groups(org, principal=principal)
        seen = tuple(one for one in listing.groups if self._requests.may_see(qualified_group(org, one.group)))
        return msgspec.structs.replace(listing, groups=seen)

    async def _delete(self, org: str, request: Any, principal: str) -> msgspec.Struct:
        return wire.Outcome(await self._groups.delete(org, request.group, principal=principal))
