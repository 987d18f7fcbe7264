"""Has the requests of one connection handled that are answered here, one after the other, and logs its client in.

While an answer is awaited its connection takes no other request. Whoever works on it is told when the next request
arrives, when the gateway drains, and when the client is gone; and is not cancelled then, for it may be writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from assigner.gateway.checks import Malformed
from assigner.gateway.codec import (
    API_VERSIONS,
    decode_request,
    encode_answer,
    error_code,
    make,
    milliseconds64,
    request_class,
    response_class,
)
from assigner.gateway.login.sasl import ILLEGAL_STATE, Login, LoginAnswer
from assigner.gateway.requests import Client, CloseConnection, Entity, HandledApi, Interruption, Request
from assigner.gateway.wire.frames import Head, ProtocolViolation, skip_tags
from assigner.gateway.wire.refusals import refusal
from assigner.gateway.wire.shared import Wire
from assigner.gateway.wire.versions import FIND_COORDINATOR, SASL_AUTHENTICATE, SASL_HANDSHAKE
from assigner.logs import get_logger
from assigner.observability.tracing import span

LIST_GROUPS = 16
_WITH_SOFTWARE = 3
_WITH_LIFETIME = 1
_LONGEST_SOFTWARE = 100

_log = get_logger(__name__)


class Connection(Protocol):
    """A client's connection, as far as its dispatcher uses it."""

    node_id: int

    def send(self, frame: bytes) -> None:
        """Send an answer in its turn."""
        ...

    def send_on(self, head: Head, body: bytes) -> None:
        """Pass a request on to the broker after all."""
        ...

    def guarded(self, work: Callable[[], None]) -> None:
        """Do work that what the client sent may make fail."""
        ...

    def go_on(self) -> None:
        """Take the next request."""
        ...

    def logged_in(self) -> None: ...

    def close_for(self, reason: str, message: str) -> None: ...


class Parked:
    """A request whose handler has not answered yet."""

    __slots__ = ("entity", "future", "handled", "request")

    def __init__(
        self, request: Request, entity: Entity, handled: HandledApi | None, future: asyncio.Future[Any]
    ) -> None:
        self.request = request
        self.entity = entity
        self.handled = handled
        self.future = future


class Dispatcher:
    def __init__(self, wire: Wire, connection: Connection, client: Client, login: Login) -> None:
        self.login = login
        self.parked: Parked | None = None
        self._wire = wire
        self._connection = connection
        self._client = client

    def interrupt(self, one: Interruption) -> None:
        if self.parked is not None:
            self.parked.request.interrupt(one)

    def abandon(self) -> None:
        """Drop the answer that is awaited: the client is gone."""
        parked = self.parked
        if parked is not None:
            self._wire.traffic.orphaned(parked, parked.future.cancel)
            parked.request.interrupt(Interruption.CLOSED)

    def handle(self, head: Head, body: bytes) -> None:
        """Answer a request, or have it answered. `body` begins with the head."""
        if head.api == API_VERSIONS:
            self._versions(head, body)
            return
        request = Request(
            self._client, head.api, head.version, head.correlation, head.client_id, self._wire.clock.now()
        )
        entity = _entity(head, body)
        if head.api == FIND_COORDINATOR:
            with span("assigner.gateway.kafka.find-coordinator", client_id=request.client_id):
                found = self._wire.find_coordinator(request, entity)
            if found is None:
                self._connection.send_on(head, body)
            else:
                self._answer(request, found)
        elif head.api == SASL_HANDSHAKE:
            self._handshake(request, entity)
        elif head.api == SASL_AUTHENTICATE:
            self._take(request, entity, None, self.login.authenticate(bytes(entity.auth_bytes)))
        else:
            self._call(request, entity, self._wire.handlers[head.api])

    def refuse(self, head: Head, body: bytes, reason: str) -> None:
        """Answer a request that the client may not make."""
        answer = refusal(head.api, head.version, _entity(head, body))
        if answer is None:
            raise ProtocolViolation("forbidden", f"API {head.api}: {reason}")
        self._connection.send(encode_answer(head.api, head.version, head.correlation, answer))

    def _call(self, request: Request, entity: Entity, handled: HandledApi) -> None:
        try:
            answer = handled.handle(request, entity)
        except CloseConnection:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is answered
            answer = self._failed(request, entity, handled, error)
        self._take(request, entity, handled, answer)

    # --- answers -----------------------------------------------------------------------------------------------------

    def _take(self, request: Request, entity: Entity, handled: HandledApi | None, answer: Any) -> None:
        """Answer the request, now or when the answer is there."""
        if not hasattr(answer, "__await__"):
            self._answer(request, answer)
            return
        future = asyncio.ensure_future(answer)
        if isinstance(future, asyncio.Task):
            future.set_name(f"kafka request {request.api}")
        parked = self.parked = Parked(request, entity, handled, future)
        self._wire.traffic.parked += 1
        future.add_done_callback(partial(self._settled, parked))
        if self._wire.traffic.draining:
            request.interrupt(Interruption.DRAINING)

    def _settled(self, parked: Parked, future: asyncio.Future[Any]) -> None:
        self._wire.traffic.parked -= 1
        self._wire.traffic.finished(parked)
        error = None if future.cancelled() else future.exception()
        if self._client.closed:
            if error is not None and not isinstance(error, CloseConnection):
                self._log(parked.request, error)
            return
        self.parked = None
        self._connection.guarded(lambda: self._answer_with(parked, future, error))
        self._connection.go_on()

    def _answer_with(self, parked: Parked, future: asyncio.Future[Any], error: BaseException | None) -> None:
        if future.cancelled():
            raise CloseConnection("its handler was cancelled")
        if error is None:
            self._answer(parked.request, future.result())
        elif isinstance(error, Exception) and not isinstance(error, CloseConnection) and parked.handled is not None:
            self._answer(parked.request, self._failed(parked.request, parked.entity, parked.handled, error))
        else:
            raise error

    def _failed(self, request: Request, entity: Entity, handled: HandledApi, error: Exception) -> Any:
        """Make the answer for a handler's defect."""
        self._log(request, error)
        if handled.failed is None:
            raise CloseConnection("its handler failed, which the log shows") from error
        return handled.failed(request, entity, error)

    def _log(self, request: Request, error: BaseException) -> None:
        _log.error("kafka_request_failed", api=request.api, host=self._client.host, exc_info=error)

    def _answer(self, request: Request, answer: Any) -> None:
        if isinstance(answer, LoginAnswer):
            self._answer_login(request, answer)
            return
        if request.api == LIST_GROUPS and not isinstance(answer, bytes):
            answer = self._wire.listed_at(self._connection.node_id, request, answer)
        self._connection.send(encode_answer(request.api, request.version, request.correlation, answer))

    def _versions(self, head: Head, body: bytes) -> None:
        found = self._wire.versions(self._connection.node_id)
        if found is None:
            raise ProtocolViolation("upstream", "no broker is up")
        if _WITH_SOFTWARE <= head.version <= found.ranges[API_VERSIONS][1]:
            entity = _entity(head, body)
            self._client.software = str(entity.client_software_name)[:_LONGEST_SOFTWARE]
            self._client.software_version = str(entity.client_software_version)[:_LONGEST_SOFTWARE]
        self._connection.send(found.answer(head.version, head.correlation))

    # --- logging in --------------------------------------------------------------------------------------------------

    def _handshake(self, request: Request, entity: Entity) -> None:
        code = self.login.handshake(str(entity.mechanism)) if self._wire.with_sasl else ILLEGAL_STATE
        answer = make(
            response_class(SASL_HANDSHAKE, request.version),
            error_code=error_code(code),
            mechanisms=self._wire.logins.mechanisms,
        )
        self._answer(request, answer)
        if code:
            what = "another SASL mechanism" if self._wire.with_sasl else "SASL, which is not set up"
            self._connection.close_for("unauthenticated", f"the client asked for {what}")

    def _answer_login(self, request: Request, answer: LoginAnswer) -> None:
        lifetime = min(int(answer.lifetime * 1000), 2**62)
        entity = make(
            response_class(SASL_AUTHENTICATE, request.version),
            error_code=error_code(answer.error),
            error_message=answer.message,
            auth_bytes=answer.data,
            session_lifetime=milliseconds64(lifetime) if request.version >= _WITH_LIFETIME else None,
        )
        self._connection.send(encode_answer(request.api, request.version, request.correlation, entity))
        if answer.error:
            self._connection.close_for("unauthenticated", answer.message or "the login was refused")
        elif answer.done:
            self._connection.logged_in()


def _entity(head: Head, body: bytes) -> Entity:
    at = head.end
    if request_class(head.api, head.version).__flexible__:
        try:
            at = skip_tags(body, at)
        except IndexError:
            raise Malformed("a request ends within its header") from None
    return decode_request(head.api, head.version, body[at:])
