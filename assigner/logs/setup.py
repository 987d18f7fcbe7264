"""Sets logging up for a process of our own: JSON for machines, or text for a person at a terminal.

Everything, the standard library's loggers included, goes through one bounded queue to a thread that writes it, so
that a full pipe delays the log and never the event loop. When the queue is full, lines are dropped and counted, and
the count is logged once there is room: losing a line is better than losing a lease. Lines still queued when the
process is killed are lost; an orderly end writes them.
"""

from __future__ import annotations

import atexit
import logging
import queue
import sys
import threading
from collections.abc import Callable
from enum import Enum
from typing import TextIO

import msgspec

from assigner.logs.rate_limit import RateLimit

QUEUE_LINES = 10_000
# Libraries whose INFO lines are of no use to operators.
_CHATTY = ("asyncio", "aiohttp", "grpc", "grpclib", "h2", "hpack")


class LogFormat(str, Enum):
    AUTO = "auto"
    """Text where stderr is a terminal, JSON elsewhere."""
    JSON = "json"
    TEXT = "text"


class LogLevel(str, Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.AUTO


class QueuedWriter:
    """A stream that a thread of its own writes to, so that logging does not block."""

    def __init__(self, stream: TextIO, notice: Callable[[int], str], capacity: int = QUEUE_LINES) -> None:
        """`notice` makes the line that reports how many lines were dropped."""
        self._stream = stream
        self._notice = notice
        self._lines: queue.Queue[str | None] = queue.Queue(capacity)
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def close(self, timeout: float = 2.0) -> None:
        """Write what is queued, for `timeout` seconds at most: a reader that is gone must not hold the exit."""
        if not self._thread.is_alive():
            return
        try:
            self._lines.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            if self.dropped:
                dropped, self.dropped = self.dropped, 0
                line = f"{line}\n{self._notice(dropped)}"
            try:
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):
                # The pipe's reader is gone. Lines can't be written anywhere; keep emptying the queue.
                continue


class _QueueHandler(logging.Handler):
    def __init__(self, writer: QueuedWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.write(self.format(record))
        except (ValueError, TypeError, KeyError):
            self.handleError(record)


_writer: QueuedWriter | None = None
_levels_before: dict[str, int] = {}
"""Of the loggers whose level was set, by name."""


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Set logging up for this process, replacing an earlier setup. Programs that embed the service keep their own
    logging by not calling this."""
    # Here and not above: structlog imports rich and more, which a program with the client library would wait for.
    from assigner.logs import formatter

    global _writer
    stream = stream or sys.stderr
    close()
    as_json = wants_json(settings.format, stream)
    _writer = QueuedWriter(stream, _json_notice if as_json else _text_notice)
    handler = _QueueHandler(_writer)
    handler.addFilter(RateLimit())
    handler.setFormatter(formatter.for_lines(as_json, colours=_is_terminal(stream)))
    level = logging.getLevelNamesMapping()[settings.level.value.upper()]
    logging.getLogger().addHandler(handler)
    _set_level("", level)
    for name in _CHATTY:
        _set_level(name, max(level, logging.WARNING))
    formatter.configure_structlog()


def _set_level(name: str, level: int) -> None:
    logger = logging.getLogger(name or None)
    _levels_before.setdefault(name, logger.level)
    logger.setLevel(level)


@atexit.register
def close() -> None:
    """Write what is queued, let the thread end, take the handler away and give loggers the levels they had."""
    global _writer
    while _levels_before:
        name, level = _levels_before.popitem()
        logging.getLogger(name or None).setLevel(level)
    root = logging.getLogger()
    for handler in [present for present in root.handlers if isinstance(present, _QueueHandler)]:
        root.removeHandler(handler)
    if _writer is not None:
        _writer.close()
        _writer = None


def wants_json(wanted: LogFormat, stream: TextIO) -> bool:
    match wanted:
        case LogFormat.JSON:
            return True
        case LogFormat.TEXT:
            return False
        case LogFormat.AUTO:
            return not _is_terminal(stream)


def _is_terminal(stream: TextIO) -> bool:
    return hasattr(stream, "isatty") and stream.isatty()


def _json_notice(dropped: int) -> str:
    return f'{{"level": "warning", "logger": "assigner.logs", "event": "log_lines_dropped", "dropped": {dropped}}}'


def _text_notice(dropped: int) -> str:
    return f"[{dropped} log lines were dropped: the reader is too slow]"
