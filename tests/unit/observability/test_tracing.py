"""Spans: nested, carried over gRPC metadata, and no work at all where no program wants them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from opentelemetry import context as contexts
from opentelemetry import trace

from assigner.observability import tracing
from tests.support.spans import CollectedSpans, collected_spans


@pytest.fixture
def spans() -> Iterator[CollectedSpans]:
    with collected_spans() as collected:
        yield collected


def test_a_span_has_the_attributes_it_was_given_and_those_it_was_given_later(spans: CollectedSpans) -> None:
    with tracing.span("assigner.gateway.group.join", group="orders") as one:
        one.set(error_code=0)
    assert dict(spans.one("assigner.gateway.group.join").attributes or {}) == {"group": "orders", "error_code": 0}


def test_spans_are_nested_as_the_blocks_are(spans: CollectedSpans) -> None:
    with tracing.span("assigner.group.join"):
        tracing.instant("assigner.coordinator.rebalance-complete", generation_id=3, leader_id="m-1")
    with tracing.span("assigner.group.leave"):
        pass
    complete = spans.one("assigner.coordinator.rebalance-complete")
    assert spans.parent_of(complete) == spans.one("assigner.group.join")
    assert dict(complete.attributes or {}) == {"generation_id": 3, "leader_id": "m-1"}
    assert spans.one("assigner.group.leave").parent is None


def test_a_span_records_the_error_that_ended_its_block(spans: CollectedSpans) -> None:
    with pytest.raises(ValueError, match="torn"), tracing.span("assigner.group.sync"):
        raise ValueError("torn")
    ended = spans.one("assigner.group.sync")
    assert ended.status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in ended.events] == ["exception"]


def test_a_span_that_was_begun_ends_where_its_maker_says_and_is_nobodys_parent(spans: CollectedSpans) -> None:
    held = tracing.begin("assigner.gateway.group.heartbeat", group="orders")
    with tracing.span("assigner.gateway.group.offset-commit"):
        pass
    assert spans.names == ["assigner.gateway.group.offset-commit"]
    held.end(error_code=27)
    assert spans.one("assigner.gateway.group.offset-commit").parent is None
    assert dict(spans.one("assigner.gateway.group.heartbeat").attributes or {})["error_code"] == 27


def test_the_context_crosses_a_call_in_its_metadata(spans: CollectedSpans) -> None:
    with tracing.span("assigner.gateway.group.join"):
        metadata = tracing.context_headers()
    assert set(metadata) == {"traceparent"}
    with tracing.continued(metadata), tracing.span("assigner.group.join"):
        pass
    there, here = spans.one("assigner.group.join"), spans.one("assigner.gateway.group.join")
    assert there.parent is not None
    assert there.parent.span_id == here.context.span_id
    assert there.context.trace_id == here.context.trace_id


@pytest.mark.parametrize("broken", ["", "no parent", "00-zz-11-01", "\x00" * 5, "00-" + "0" * 32 + "-" + "0" * 16])
def test_a_context_that_can_not_be_read_is_ignored(spans: CollectedSpans, broken: str) -> None:
    with tracing.continued({"traceparent": broken}), tracing.span("assigner.group.join"):
        pass
    assert spans.one("assigner.group.join").parent is None


async def test_each_task_has_a_current_span_of_its_own(spans: CollectedSpans) -> None:
    both_inside = asyncio.Barrier(2)

    async def client(name: str) -> None:
        with tracing.span("assigner.gateway.group.join", group=name):
            await both_inside.wait()
            tracing.instant("assigner.group.join", group=name)
            await both_inside.wait()

    await asyncio.gather(client("a"), client("b"))
    inner = [one for one in spans.ended if one.name == "assigner.group.join"]
    assert len(inner) == 2
    for one in inner:
        parent = spans.parent_of(one)
        assert parent is not None
        assert (parent.attributes or {})["group"] == (one.attributes or {})["group"]


async def test_an_async_function_is_traced(spans: CollectedSpans) -> None:
    @tracing.traced("assigner.gateway.kafka.find-coordinator")
    async def find(key: str) -> str:
        return key.upper()

    assert await find("orders") == "ORDERS"
    assert spans.names == ["assigner.gateway.kafka.find-coordinator"]


# --- where nobody wants spans ------------------------------------------------------------------------------------


def test_without_a_provider_nothing_is_made_and_nothing_of_the_context_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    for owner, name in (
        (contexts, "attach"),
        (contexts, "detach"),
        (trace.ProxyTracerProvider, "get_tracer"),
        (trace.ProxyTracer, "start_span"),
        (tracing._propagator, "inject"),
        (tracing._propagator, "extract"),
    ):
        monkeypatch.setattr(owner, name, lambda *_, name=name, **__: calls.append(name))
    proxy = trace.ProxyTracerProvider()
    look = Mock(return_value=proxy)
    monkeypatch.setattr(trace, "get_tracer_provider", look)

    with tracing.span("assigner.gateway.group.join", group="orders") as one:
        one.set(error_code=0)
        tracing.instant("assigner.coordinator.rebalance-complete", generation_id=3)
    tracing.begin("assigner.gateway.group.heartbeat").end(error_code=0)
    with tracing.continued({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}):
        assert tracing.context_headers() == {}

    assert calls == []
    assert look.call_count == 5
    assert tracing.begin("assigner.group.join") is tracing.begin("assigner.group.leave")


def test_without_the_library_everything_goes_on() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from assigner.observability import tracing
with tracing.span("assigner.gateway.group.join", group="orders") as one:
    one.set(error_code=0)
tracing.instant("assigner.coordinator.rebalance-complete")
with tracing.continued({"traceparent": "00-1-2-01"}):
    print(tracing.active(), tracing.context_headers())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "False {}\n"
