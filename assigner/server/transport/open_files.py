"""How many files this process may have open, and what that leaves for connections."""

from __future__ import annotations

import resource

RESERVED = 400
"""Files kept for all but gRPC: HTTP (256 connections), the store, Kafka, logs, TLS files and what libraries open."""


def raise_limit() -> None:
    """Allow this process as many open files as the system lets it have. For a process of our own only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            # Some systems have a lower bound than the one they tell. The connections are bounded by what there is.
            return


def limit() -> int | None:
    """Files that may be open; None: as many as one likes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def room_for(connections: int) -> int:
    """How many of so many connections there are files for; a few are always tried."""
    files = limit()
    return connections if files is None else min(connections, max(files - RESERVED, 16))
