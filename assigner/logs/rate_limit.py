"""Limits the log lines that remote peers can cause, per kind, so that they do not drown other lines.

Only lines of libraries and of the servers for gRPC, HTTP and Kafka clients, at WARNING and above, are limited. The
first line of a kind after a minute reports how many were left out.
"""

from __future__ import annotations

import logging
import time

import msgspec

PER_MINUTE = 20
MAX_KINDS = 1_000
"""Kinds that are counted; beyond this, all counts are reset."""
_PROVOKED = (
    "asyncio",
    "aiohttp",
    "grpclib",
    "h2",
    "hpack",
    "assigner.gateway",
    "assigner.kafka_groups",
    "assigner.server",
    "assigner.web",
)
_MINUTE = 60.0


class _Kind(msgspec.Struct):
    since: float
    lines: int = 0
    left_out: int = 0


class RateLimit(logging.Filter):
    """A logging filter that drops lines above the limits, for the handler that writes."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or not _is_provoked(record.name):
            return True
        # Ours carry a dictionary, others a template.
        event = record.msg.get("event", "") if isinstance(record.msg, dict) else record.msg
        now = _now()
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        kind = self._kinds.setdefault((record.name, str(event)), _Kind(now))
        if now - kind.since >= _MINUTE:
            if kind.left_out:
                _tell(record, kind.left_out)
            kind.since, kind.lines, kind.left_out = now, 0, 0
        kind.lines += 1
        kind.left_out += kind.lines > PER_MINUTE
        return kind.lines <= PER_MINUTE


def _is_provoked(name: str) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in _PROVOKED)


def _tell(record: logging.LogRecord, left_out: int) -> None:
    if isinstance(record.msg, dict):
        record.msg["left_out"] = left_out
    else:
        record.msg = f"{record.msg} [{left_out} more like this were left out]"


def _now() -> float:
    return time.monotonic()
