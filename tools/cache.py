"""Where downloaded and built servers are kept: outside the repository, shared by all checkouts."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Return the project's cache directory, which need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kafka-assigner"
