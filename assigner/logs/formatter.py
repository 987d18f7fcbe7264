"""Formats log records as JSON or text with structlog, those of other libraries like our own.

Only `setup.configure` imports this module, in a process of our own: structlog imports rich, pygments and attrs where
they are installed, which takes longer than all the rest of the client library.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from assigner.logs.logger import LogLine, add_context, formatter_fields
from assigner.logs.printable import json_escaped

_FIRST = ("time", "level", "logger", "event", "group", "generation", "epoch", "cause")


def for_lines(as_json: bool, *, colours: bool) -> logging.Formatter:
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    renderers: list[Processor]
    if as_json:
        renderers = [
            remove_meta,
            structlog.processors.format_exc_info,
            _order,
            structlog.processors.JSONRenderer(serializer=_json),
        ]
    else:
        renderers = [remove_meta, structlog.dev.ConsoleRenderer(colors=colours, timestamp_key="time")]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_added_fields(), processors=renderers)


def configure_structlog() -> None:
    """Let a plugin's own structlog loggers write lines like ours."""
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_added_fields(), _for_any_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def _added_fields() -> list[Processor]:
    """The processors that add the fields of `Logger` to records of other loggers."""
    return [
        _merge_context,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.StackInfoRenderer(),
    ]


def _merge_context(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    fields = dict(event)
    add_context(fields)
    return fields


def _for_any_formatter(logger: WrappedLogger, name: str, event: EventDict) -> tuple[tuple[LogLine], dict[str, Any]]:
    """Convert an event to arguments of a record that our formatter splits into fields and that others print as text."""
    return (LogLine(event),), {"extra": formatter_fields(logger, name), "exc_info": event.get("exc_info")}


def _order(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Put the most important fields first, always in the same order."""
    first: dict[str, Any] = {name: event[name] for name in _FIRST if name in event}
    return {**first, **{name: value for name, value in event.items() if name not in first}}


def _json(event: EventDict, **_options: Any) -> str:
    return json_escaped(json.dumps(event, default=str, ensure_ascii=False))
