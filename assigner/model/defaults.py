"""Defines defaults and rules that service, clients and backends share."""

from __future__ import annotations

GRPC_PORT = 50_051
HTTP_PORT = 8_080

SAFE_SHARE = 2 / 3
"""The part of a lease's TTL for which its holder relies on it, counted from the moment a renewal was sent. The rest is
for clocks that do not run at the same rate."""
