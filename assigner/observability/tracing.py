"""Makes spans of what Kafka clients ask for, by OpenTelemetry's API, if a program has set a tracer provider.

The API is the extra `tracing`. Where it is not installed, or no provider is set, a span is one look at the provider and
nothing else: nothing is made, read or written.

How the rest of the service uses it:

    with span("assigner.gateway.group.join", group=group) as one:   # current within the block; errors are recorded
        ...
        one.set(error_code=0)

    @traced("assigner.gateway.kafka.find-coordinator")               # the same around an async function
    async def find_coordinator(...): ...

    one = begin("assigner.gateway.group.heartbeat", group=group)     # where the end is in another callback
    ...
    one.end(error_code=27)

    instant("assigner.coordinator.rebalance-complete", generation_id=3, leader_id="...")

    await method(request, metadata=context_headers())                # caller: the context as gRPC metadata
    with continued(metadata): ...                                    # callee: spans in the block have that parent

Names of groups, topics and principals may be attributes. Sessions may not, for they are secrets, and so neither may the
member id of a Kafka 4 member, which is one.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _installed = False
else:
    _installed = True
    _propagator = TraceContextTextMapPropagator()
    _OFF_PROVIDERS = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)

P = ParamSpec("P")
R = TypeVar("R")
Attribute = str | int | float | bool

TRACER = "kafka-assigner"
GATEWAY_SPANS = frozenset(
    {
        "assigner.gateway.kafka.find-coordinator",
        "assigner.gateway.group.join",
        "assigner.gateway.group.sync",
        "assigner.gateway.group.heartbeat",
        "assigner.gateway.group.leave",
        "assigner.gateway.group.offset-commit",
        "assigner.gateway.group.offset-fetch",
    }
)
"""What the gateway does for a client. A Kafka 4 member has no sync: its heartbeats do all."""
COORDINATOR_SPANS = frozenset(
    {
        "assigner.group.join",
        "assigner.group.sync",
        "assigner.group.heartbeat",
        "assigner.group.leave",
        "assigner.group.offset-commit",
        "assigner.group.offset-fetch",
        "assigner.coordinator.rebalance-complete",
    }
)
"""What the leader of a classic group does. The last is nested in the join that completed the rebalance."""


class SpanHandle:
    """A span that is under way, or its stand-in where there is no tracing: then nothing below does anything."""

    __slots__ = ("_span", "_token")

    def __init__(self, made: Any = None) -> None:
        self._span = made
        self._token: Any = None

    def set(self, **attributes: Attribute) -> None:
        if self._span is not None:
            self._span.set_attributes(attributes)

    def end(self, **attributes: Attribute) -> None:
        if self._span is not None:
            self._span.set_attributes(attributes)
            self._span.end()

    def failed(self, error: BaseException) -> None:
        """Record that what the span covers has failed. It still has to end."""
        if self._span is not None:
            self._span.record_exception(error)
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))

    def as_current(self) -> AbstractContextManager[object]:
        """For a `with` block that the span does not end with: it is the current one there."""
        return UNTRACED if self._span is None else _Continued(trace.set_span_in_context(self._span))

    def __enter__(self) -> Self:
        if self._span is not None:
            self._token = contexts.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        if self._span is None:
            return
        contexts.detach(self._token)
        if isinstance(error, Exception):
            self.failed(error)
        self._span.end()


UNTRACED = SpanHandle()
"""Stands for every span where there is no tracing. It has no state, so all may share it."""


def active() -> bool:
    """Whether a program has set a provider, so that spans go somewhere."""
    return _provider() is not None


def begin(name: str, **attributes: Attribute) -> SpanHandle:
    """A span that its maker ends, and that is nobody's parent unless it is entered. Its parent is the current one."""
    provider = _provider()
    if provider is None:
        return UNTRACED
    return SpanHandle(_tracer(provider).start_span(name, attributes=attributes))


def span(name: str, **attributes: Attribute) -> SpanHandle:
    """A span for a `with` statement: the current one in the block, and the parent of those made there."""
    return begin(name, **attributes)


def instant(name: str, **attributes: Attribute) -> None:
    """A span without duration, for what happens at once."""
    begin(name, **attributes).end()


def traced(name: str) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Wrap an async function in a span."""

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        @functools.wraps(function)
        async def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            with span(name):
                return await function(*args, **kwargs)

        return wrapped

    return decorate


def context_headers() -> dict[str, str]:
    """The current span as gRPC metadata (`traceparent`), for the service that is called next; empty without one."""
    carrier: dict[str, str] = {}
    if active():
        _propagator.inject(carrier)
    return carrier


def continued(metadata: Mapping[str, Any] | None) -> AbstractContextManager[object]:
    """Make the caller's span the parent of the spans in a `with` block. What is no `traceparent` is ignored."""
    if metadata is None or "traceparent" not in metadata or not active():
        return UNTRACED
    carrier = {name: str(metadata[name]) for name in ("traceparent", "tracestate") if name in metadata}
    return _Continued(_propagator.extract(carrier))


class _Continued(AbstractContextManager[None]):
    __slots__ = ("_context", "_token")

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = contexts.attach(self._context)

    def __exit__(self, *_: object) -> None:
        contexts.detach(self._token)


@functools.lru_cache(maxsize=1)
def _tracer(provider: Any) -> Any:
    return provider.get_tracer(TRACER)


def _provider() -> Any:
    """The provider that a program has set, or None. It may be set at any time, so it is asked for each time."""
    if not _installed:
        return None
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, _OFF_PROVIDERS) else provider
