"""What is written down while a course is run: who served which request, what became of each, and what was done to pods.

Pods and Kafka's consumers write a line for each request, at once, so that it outlives SIGKILL. All processes run on one
machine and stamp by its monotonic clock, in nanoseconds, so lines of different processes can be compared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import msgspec

from bench.cutover.course import Action


class Served(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that had its effect at an owner."""

    partition: int
    epoch: int
    owner: str
    key: str
    sequence: int
    began: int
    """When the owner's gate let it in."""
    ended: int
    """When the effect was there, still inside the gate."""


class Outcome(str, Enum):
    ANSWERED = "answered"
    CUT = "cut"
    """The connection to the owner ended while the request was in flight; the router said so by a typed error."""
    FAILED = "failed"
    """Refused by another typed error, such as an overflow of the stash: nothing was done."""
    LOST = "lost"
    """Neither answered nor failed by a typed error."""


class Sent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request as its source saw it."""

    key: str
    sequence: int
    partition: int
    scheduled: int
    """When it was due; latencies count from here, however late the source was."""
    finished: int
    outcome: Outcome
    stashed: int = 0
    """Nanoseconds for which the router held it back."""
    refused: int = 0
    """How often an owner refused it, and it was sent again."""
    waited: int = 0
    """How often it waited for the next owner, because this one could not be reached, or behind such requests."""
    error: str = ""


class Happened(msgspec.Struct, frozen=True, array_like=True):
    """A step of the course that was carried out."""

    at: int
    action: Action
    pod: str


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    contestant: str
    load: tuple[float, float] = (0.0, 0.0)
    """Load average of the machine before and after."""
    sent: Sequence[Sent]
    served: Sequence[Served]
    happened: Sequence[Happened]


class Journal:
    """A file that many processes append to. A line is written at once or not at all."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._encoder = msgspec.json.Encoder()

    def add(self, line: Served) -> None:
        os.write(self._file, self._encoder.encode(line) + b"\n")


def served_in(path: Path) -> list[Served]:
    return msgspec.json.Decoder(Served).decode_lines(path.read_bytes()) if path.exists() else []
