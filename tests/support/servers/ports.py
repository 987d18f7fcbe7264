"""Loopback ports for the servers that tests start."""

from __future__ import annotations

import random
import socket

# Below the range from which the kernel takes the ports of outgoing connections (32768 and up on
# Linux): otherwise another test's connection could sit on the port of a server that is down.
_LOWEST, _HIGHEST = 15_000, 31_999
_ATTEMPTS = 200

_given: set[int] = set()
# Not the global generator: tests and hypothesis seed that, and parallel workers would then collide.
_dice = random.SystemRandom()


def free_port() -> int:
    """Return a loopback TCP port that nobody listens on and that this process was not given before."""
    for _ in range(_ATTEMPTS):
        port = _dice.randint(_LOWEST, _HIGHEST)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise RuntimeError(f"no free port found between {_LOWEST} and {_HIGHEST}: end some servers and retry")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
