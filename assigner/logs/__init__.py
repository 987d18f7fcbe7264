"""Log lines of the service and of the client library, and what may be in them.

- `setup`: one line per event, as JSON or as text; `configure` for a process of its own, `get_logger` for everybody.
- `rate_limit`: how many lines of a kind remote peers can cause.
- `printable`: control characters in the text of others are escaped before an operator sees them.

Every layer logs, so this package is at the bottom: it imports `errors` and nothing else of the service. It is the only
one that imports structlog. A program that embeds the service or the client keeps its own logging.
"""

from assigner.logs.setup import (
    LogFormat,
    LogLevel,
    LogSettings,
    QueuedWriter,
    close,
    configure,
    context,
    get_logger,
    wants_json,
)

__all__ = [
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "QueuedWriter",
    "close",
    "configure",
    "context",
    "get_logger",
    "wants_json",
]
