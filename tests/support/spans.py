"""Collects the spans that the code under test makes: a tracer provider of OpenTelemetry's SDK, set for one test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class CollectedSpans:
    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        """In the order in which they ended."""
        return self._exporter.get_finished_spans()

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.ended]

    def one(self, name: str) -> ReadableSpan:
        (found,) = [one for one in self.ended if one.name == name]
        return found

    def parent_of(self, child: ReadableSpan) -> ReadableSpan | None:
        if child.parent is None:
            return None
        return next((one for one in self.ended if one.context.span_id == child.parent.span_id), None)


@contextmanager
def collected_spans() -> Iterator[CollectedSpans]:
    """Set a provider of one's own. OpenTelemetry lets a process set one for good, so it is put in its place instead."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "get_tracer_provider", lambda: provider)
        yield CollectedSpans(exporter)
    provider.shutdown()
