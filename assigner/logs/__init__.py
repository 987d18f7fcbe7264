"""Writes the log lines of the service and of the client library.

- `logger`: `get_logger`, used by every module: an event and its fields, through the standard library's logging.
- `setup`: `configure` for a process of our own: one line per event, written by a thread.
- `formatter`: what a line looks like, as JSON or as text.
- `rate_limit`: limits how many lines of a kind remote peers can cause.
- `printable`: control characters in the text of others are escaped before an operator sees them.

Every layer logs, so this package is at the bottom: it imports `errors` and nothing else of the service. Only
`formatter` imports structlog, and only `configure` imports `formatter`. A program that embeds the service or the client
keeps its own logging.
"""

from assigner.logs.logger import Logger, context, get_logger, keep_headers_out
from assigner.logs.setup import LogFormat, LogLevel, LogSettings, QueuedWriter, close, configure, wants_json

__all__ = [
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "Logger",
    "QueuedWriter",
    "close",
    "configure",
    "context",
    "get_logger",
    "keep_headers_out",
    "wants_json",
]
