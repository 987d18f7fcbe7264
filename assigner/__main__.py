"""Starts the `assigner` program, or prints in one line what to install where only the client library is.

Not promised: that any command works without the extra `server`. The modules here are found by name, because a library
that is missing must not hide one that is broken.
"""

from __future__ import annotations

import sys

from assigner.errors import how_to_install

SERVER_MODULES = frozenset(
    {"aetcd", "aiohttp", "click", "cryptography", "grpc", "jwt", "numpy", "prometheus_client", "rich"}
)
"""What the extra `server` brings, by import name."""
USAGE = 2


def main() -> None:
    try:
        from assigner.cli import main as command

        command()
    except ModuleNotFoundError as missing:
        module = (missing.name or "").partition(".")[0]
        if module not in SERVER_MODULES:
            raise
        print(f"Error: the assigner command needs {module}; {how_to_install('server')}", file=sys.stderr)
        sys.exit(USAGE)


if __name__ == "__main__":
    main()
