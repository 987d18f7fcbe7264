"""Admits routed calls at a grpclib server, and makes calls to the owners of their partitions with grpclib.

    server = Server([KeyValue()])
    admit_routed(server, consumer, exempt=["/grpc.health.v1.Health/"])

A call that is refused ends with the trailing metadata `assigner-refused` and a status: FAILED_PRECONDITION if this
consumer does not own its partition under that epoch, UNAVAILABLE if its gate may open soon, INVALID_ARGUMENT if its
metadata has no valid target.

    async with RoutedChannels(router) as owners:
        cart = await owners.call("orders", key, lambda channel: CartsStub(channel).Get(request), idempotent=True)

Not promised: the order of calls of a key that are in flight at the same time. A caller that needs an order waits for
each reply.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from grpclib.client import Channel
from grpclib.const import Status
from grpclib.events import RecvRequest, RecvTrailingMetadata, SendRequest, listen
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.server import Server, Stream
from h2.exceptions import H2Error

from assigner.client.channel import Address, close_channel
from assigner.client.consumer import AssignerConsumer
from assigner.client.gate import ADMIT_WITHIN
from assigner.routing.admission import NotAdmitted, Remedy, RequestAdmission, request_target
from assigner.routing.handler import Target
from assigner.routing.headers import REFUSED, headers_of
from assigner.routing.retries import RequestRouter, Retries, Setback, Tries, address_of

__all__ = ["RoutedChannels", "admit_routed", "request_target"]

_T = TypeVar("_T")
_STATUSES = {
    Remedy.LOOK_AGAIN: Status.FAILED_PRECONDITION,
    Remedy.COME_AGAIN: Status.UNAVAILABLE,
    Remedy.NONE: Status.INVALID_ARGUMENT,
}
_outgoing: ContextVar[_Outgoing | None] = ContextVar("assigner_outgoing_call", default=None)


# --- the owner's side ------------------------------------------------------------------------------------------------


def admit_routed(
    server: Server,
    consumer: AssignerConsumer,
    *,
    exempt: Collection[str] = (),
    within: float = ADMIT_WITHIN,
    required: bool = True,
) -> None:
    """Let a server admit each call through the gate of its partition, and count it as in progress until its handler has
    returned: a release waits for it. The handler finds the target by `request_target`.

    `exempt`: methods that need no target, `/package.Service/Method`, or all of a service, `/package.Service/`.
    `within`: seconds that a call waits for a gate that is about to open. `required=False`: calls without a target are
    let through.

    The message of a call that has one is read before the call is admitted, so that a release never waits for a slow
    sender."""
    admission = RequestAdmission(consumer, within=within, required=required)
    free = frozenset(exempt)

    async def on_request(event: RecvRequest) -> None:
        method: str = event.method_name
        if method in free or method.rpartition("/")[0] + "/" in free:
            return
        metadata, handler = event.metadata, event.method_func

        async def admitted_handler(stream: Stream[Any, Any]) -> None:
            if not stream._cardinality.client_streaming:
                stream = cast(Stream[Any, Any], _Received(stream, await stream.recv_message()))
            async with AsyncExitStack() as admitted:
                try:
                    await admission.admit(metadata.items(), admitted)
                except NotAdmitted as refusal:
                    await _refuse(stream, refusal)
                    return
                await handler(stream)

        event.method_func = admitted_handler

    listen(server, RecvRequest, on_request)


async def _refuse(stream: Stream[Any, Any], refusal: NotAdmitted) -> None:
    await stream.send_trailing_metadata(
        status=_STATUSES[refusal.remedy], status_message=str(refusal), metadata={REFUSED: refusal.reason}
    )


class _Received:
    """A server's stream whose only message is here already."""

    def __init__(self, stream: Stream[Any, Any], message: Any) -> None:
        self._inner = stream
        self._message = message

    async def recv_message(self) -> Any:
        message, self._message = self._message, None
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# --- the router's side -----------------------------------------------------------------------------------------------


class RoutedChannels:
    """Channels to owners, one for each address, as an async context manager."""

    def __init__(
        self,
        router: RequestRouter,
        *,
        dial: Callable[[Address], Channel] | None = None,
        channels: int = 256,
        retries: Retries = Retries(),  # noqa: B008  (frozen)
    ) -> None:
        """`dial`: makes the channel to an owner; None: one without TLS. `channels`: how many are kept open;
        those that were not used for longest are closed first, and none that is in use."""
        self._router = router
        self._dial = dial or (lambda address: Channel(address.host, address.port))
        self._most = channels
        self._retries = retries.check()
        self._channels: OrderedDict[Address, _OwnerChannel] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._channels:
            _, one = self._channels.popitem()
            await close_channel(one.channel)

    async def call(
        self,
        topic: str,
        key: bytes | str | None,
        method: Callable[[Channel], Awaitable[_T]],
        *,
        idempotent: bool = False,
        size: int = 0,
    ) -> _T:
        """Make one call to the owner of the key's partition, and return its reply. `method` makes it over the channel
        it is given, once, and is called again for another try; it needs no metadata of ours. `key`: None for a call
        without one, which any owner may serve.

        If the owner refuses the call, or no connection is made, it is made again as `Retries` says, to whoever owns the
        partition by then. If the connection is lost after it was sent, it is made again only if it is `idempotent`.
        `size`: its bytes, for the stash's limits.

        Raises `NotServed` if nothing was done, `MaybeServed` if nobody knows, what `Router.route` raises before
        anything was sent, and whatever else `method` raises, such as the owner's `GRPCError`."""
        tries = Tries(self._router, self._retries, topic, key, size=size, idempotent=idempotent)
        while True:
            async with tries.next() as target:
                answer = await self._send(target, method)
                if not isinstance(answer, Setback):
                    return answer
            await tries.after(target, answer)

    async def _send(self, target: Target, method: Callable[[Channel], Awaitable[_T]]) -> _T | Setback:
        address = address_of(target)
        if isinstance(address, Setback):
            return address
        one = self._channel(address)
        outgoing = _Outgoing(headers_of(target, self._router.group))
        before = _outgoing.set(outgoing)
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        one.calls += 1
        try:
            await self._close_unused()
            return await method(one.channel)
        except GRPCError as error:
            if (refusal := outgoing.refusal(error.message or "")) is None:
                raise
            return refusal
        except (StreamTerminatedError, OSError, ProtocolError, H2Error) as error:
            # A deadline is the caller's own. And where nothing was sent, only connecting can have failed.
            if isinstance(error, TimeoutError) if outgoing.sent else not isinstance(error, OSError):
                raise
            # grpclib wakes its caller by cancelling the task and never takes it back.
            if task is not None and task.cancelling() > cancels and task.uncancel() > cancels:
                raise asyncio.CancelledError from error
            if (refusal := outgoing.refusal(str(error))) is not None:
                return refusal
            reason = "connection_lost" if outgoing.sent else "not_connected"
            return Setback(reason, str(error) or type(error).__name__, maybe_done=outgoing.sent > 0)
        finally:
            one.calls -= 1
            _outgoing.reset(before)

    def _channel(self, address: Address) -> _OwnerChannel:
        one = self._channels.get(address)
        if one is None:
            channel = self._dial(address)
            listen(channel, SendRequest, _on_request_sent)
            listen(channel, RecvTrailingMetadata, _on_trailing_metadata)
            one = self._channels[address] = _OwnerChannel(channel)
        self._channels.move_to_end(address)
        return one

    async def _close_unused(self) -> None:
        excess = len(self._channels) - self._most
        if excess > 0:
            unused = [address for address, one in self._channels.items() if not one.calls]
            for channel in [self._channels.pop(address).channel for address in unused[:excess]]:
                await close_channel(channel)


class _OwnerChannel:
    """The channel to one address."""

    __slots__ = ("calls", "channel")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.calls = 0
        """In progress."""


class _Outgoing:
    """What is known of one try of a call: the channel's events find it by the context they are dispatched in."""

    __slots__ = ("headers", "reason", "sent", "status")

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers
        self.sent = 0
        self.reason: str | None = None
        self.status = Status.OK

    def refusal(self, message: str) -> Setback | None:
        # After several calls in one try, that the last was refused does not mean that nothing was done.
        if self.reason is None or self.sent != 1:
            return None
        remedy = next((remedy for remedy, status in _STATUSES.items() if status is self.status), Remedy.NONE)
        return Setback(self.reason, message, remedy)


async def _on_request_sent(event: SendRequest) -> None:
    if (outgoing := _outgoing.get()) is not None:
        outgoing.sent += 1
        for name, value in outgoing.headers.items():
            event.metadata[name] = value


async def _on_trailing_metadata(event: RecvTrailingMetadata) -> None:
    if (outgoing := _outgoing.get()) is not None:
        outgoing.reason = cast(str | None, event.metadata.get(REFUSED))
        outgoing.status = event.status
