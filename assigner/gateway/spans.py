"""Makes a span of each call that concerns a group, from the request to its answer.

It wraps the table of handlers, so that no handler knows of it. Where nobody wants spans, a call costs one look more.
A Kafka 4 member's id is its session, and is in no span.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec

from assigner.gateway.requests import Answer, Entity, HandledApi, Handler, Handlers, Request
from assigner.observability.tracing import SpanHandle, active, begin

NAMES = {
    8: "assigner.gateway.group.offset-commit",
    9: "assigner.gateway.group.offset-fetch",
    11: "assigner.gateway.group.join",
    12: "assigner.gateway.group.heartbeat",
    13: "assigner.gateway.group.leave",
    14: "assigner.gateway.group.sync",
    68: "assigner.gateway.group.heartbeat",
}
"""By API. A Kafka 4 member's heartbeat is its join, sync and leave as well."""
_MOST_GROUPS = 5


def traced(handlers: Handlers) -> Handlers:
    """The same table, with spans."""
    return {api: _traced(NAMES[api], handled) if api in NAMES else handled for api, handled in handlers.items()}


def _traced(name: str, handled: HandledApi) -> HandledApi:
    handle = handled.handle

    def wrapped(request: Request, entity: Entity) -> Answer | Awaitable[Answer]:
        if not active():
            return handle(request, entity)
        span = begin(
            name,
            org=request.client.org,
            group=_group(entity),
            client_id=request.client_id,
            api=request.api,
            version=request.version,
        )
        return _followed(span, handle, request, entity)

    return msgspec.structs.replace(handled, handle=wrapped)


def _followed(span: SpanHandle, handle: Handler, request: Request, entity: Entity) -> Answer | Awaitable[Answer]:
    """Call the handler, and end the span when its answer is there."""
    try:
        with span.as_current():
            answer = handle(request, entity)
    except Exception as error:
        span.failed(error)
        span.end()
        raise
    if isinstance(answer, asyncio.Future):
        answer.add_done_callback(lambda done: _ended(span, done))
        return answer
    if isinstance(answer, Awaitable):
        return _awaited(span, answer)
    _with_code(span, answer)
    span.end()
    return answer


async def _awaited(span: SpanHandle, answer: Awaitable[Answer]) -> Answer:
    with span:
        found = await answer
        _with_code(span, found)
        return found


def _ended(span: SpanHandle, done: asyncio.Future[Answer]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        span.failed(error)
    elif not done.cancelled():
        _with_code(span, done.result())
    span.end()


def _with_code(span: SpanHandle, answer: Answer) -> None:
    code = getattr(answer, "error_code", None)
    if code is not None:
        span.set(error_code=int(code))


def _group(entity: Entity) -> str:
    """The group that the call names; OffsetFetch may name several."""
    named = getattr(entity, "group_id", None)
    if named is not None:
        return str(named)
    return ",".join(str(one.group_id) for one in (getattr(entity, "groups", None) or ())[:_MOST_GROUPS])
