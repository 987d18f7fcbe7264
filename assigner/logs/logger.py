"""Provides loggers whose lines are an event and its fields, written through the standard library's logging.

A record's message is a `LogLine`: fields for a formatter that knows them, readable text for every other. So a program
that embeds the service or the client decides what becomes of the lines, and waits for no logging library on import.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from assigner.logs.printable import as_json

_ELSEWHERE = frozenset({"event", "logger", "level", "time", "exc_info", "stack"})
"""Fields that a record of the standard library has a place of its own for."""
_PLAIN = re.compile(r"[^\s\"'=\\]+")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SHOWING_HEADERS = ("hpack.hpack", "hpack.table")
_NO_FIELDS: Mapping[str, Any] = {}
_context: ContextVar[Mapping[str, Any]] = ContextVar("assigner.logs.context", default=_NO_FIELDS)


class LogLine(dict[str, Any]):
    """A log message: fields for a formatter that knows them, and text for every other."""

    def __str__(self) -> str:
        fields = (f"{name}={_as_text(value)}" for name, value in self.items() if name not in _ELSEWHERE)
        return " ".join((str(self.get("event", "")), *fields))


class Logger:
    """Logs events of one name, with fields of its own and those of each call.

    `exc_info` is no field: it is True for the exception that is being handled, or an exception.
    """

    def __init__(self, logger: logging.Logger, fields: Mapping[str, Any] = _NO_FIELDS) -> None:
        self._logger = logger
        self._fields = fields

    def bind(self, **fields: Any) -> Logger:
        """Return a logger that adds these fields to every line."""
        return Logger(self._logger, {**self._fields, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        self._log("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the exception that is being handled."""
        self._log("error", event, {"exc_info": True, **fields})

    def _log(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        logger, number = self._logger, _LEVELS[level]
        if not logger.isEnabledFor(number):
            return
        line = LogLine({**self._fields, **fields, "event": event})
        add_context(line)
        line.update(logger=logger.name, level=level, time=datetime.now(UTC).isoformat().replace("+00:00", "Z"))
        # The caller of `info` and its like is three frames up: its file and line belong into the record.
        extra = formatter_fields(logger, level)
        logger.log(number, line, exc_info=line.get("exc_info"), extra=extra, stacklevel=3)


def get_logger(name: str) -> Logger:
    """Return a logger that uses the standard library's logging, also without `configure`, so that a program that embeds
    the service decides where its lines go."""
    return Logger(logging.getLogger(name))


def keep_headers_out() -> None:
    """Drop, for the life of the process, the debug lines in which hpack shows the headers of every call.

    For whoever sends or receives tokens: a program that sets all loggers to DEBUG must not log them. Idempotent."""
    for name in _SHOWING_HEADERS:
        logging.getLogger(name).addFilter(_above_debug)


def _above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


@contextmanager
def context(**fields: Any) -> Iterator[None]:
    """Add fields to every line logged by this task, and by the tasks it starts, until the block is left."""
    before = _context.get()
    _context.set({**before, **fields})
    try:
        yield
    finally:
        _context.set(before)


def add_context(line: dict[str, Any]) -> None:
    """Add the fields of `context` that the line doesn't have itself."""
    for name, value in _context.get().items():
        line.setdefault(name, value)


def formatter_fields(logger: object, level: str) -> dict[str, Any]:
    """Make the record's attributes that mark its message as a dictionary of fields for structlog's formatter."""
    return {"_logger": logger, "_name": level}


def _as_text(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.isprintable() else as_json(text)
