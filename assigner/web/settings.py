"""Settings of the HTTP server: where it listens, and after which silence `/livez` fails. Times in seconds."""

from __future__ import annotations

import msgspec

from assigner.model.defaults import HTTP_PORT

LOOPBACK = "127.0.0.1"


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = LOOPBACK
    port: int = HTTP_PORT
    stall: float = 10.0
    """Seconds without a tick of the loop after which /livez fails."""
