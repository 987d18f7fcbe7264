"""Reads and raises the limit of open files, and computes how many connections it leaves room for."""

from __future__ import annotations

import resource

RESERVED = 400
"""Files kept for all but gRPC: HTTP (256 connections), the store, Kafka, logs, TLS files and what libraries open."""


def raise_limit() -> None:
    """Raise this process's soft limit of open files to the hard limit. Not for a program that embeds the service."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            # Some systems enforce a lower limit than they report. Then connections are bounded by the soft limit.
            return


def limit() -> int | None:
    """The soft limit of open files; None: unlimited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def room_for(connections: int) -> int:
    """How many of these connections there are files for; at least 16."""
    files = limit()
    return connections if files is None else min(connections, max(files - RESERVED, 16))
