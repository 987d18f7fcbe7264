"""What a member of a Kafka group says of itself, as lines of JSON: the same for every kind of client.

`at` is the machine's monotonic clock, which Java's `nanoTime` reads too, so that lines of different processes can be
put in order. A partition is `topic/number`. A line is written at once, so that what a killed process did is known.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

import msgspec


class Kind(str, Enum):
    UP = "up"
    """The client is there and about to join."""
    ASSIGNED = "assigned"
    """It may read these partitions too."""
    REVOKED = "revoked"
    """It has stopped to read these."""
    LOST = "lost"
    """These had been taken away before it heard of that."""
    RECORD = "record"
    """It has processed a record: the effect."""
    COMMITTED = "committed"
    """Its commit was answered; `offset` is the next one to read."""
    REFUSED = "refused"
    """Its commit failed for good."""
    SENT = "sent"
    """A producer's record is in the log."""
    ERROR = "error"
    CLOSED = "closed"
    """It has left in order, or ended by an error."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    event: Kind
    at: float
    partitions: tuple[str, ...] = ()
    partition: str = ""
    offset: int = -1
    key: str | None = None
    what: str = ""


def say(kind: Kind, **fields: object) -> None:
    """Print an event of now, for the programs in Python."""
    event = msgspec.convert({"event": kind.value, "at": time.monotonic(), **fields}, Event)
    print(msgspec.json.encode(event).decode(), flush=True)


def read(path: Path) -> list[Event]:
    """The events in a process's output so far; what libraries print between them is left out."""
    return list(parse(path.read_bytes().splitlines(keepends=True) if path.exists() else ()))


def parse(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        # A line that is being written has no end yet.
        if line.startswith(b'{"event"') and line.endswith(b"\n"):
            yield msgspec.json.decode(line, type=Event)


def options_of(words: Iterable[str]) -> dict[str, str]:
    """A program's arguments, words such as `name=value`."""
    return dict(word.split("=", 1) for word in words)


def properties_of(options: dict[str, str]) -> dict[str, str]:
    """What is given as `set.NAME=VALUE`, for the client library itself."""
    return {name.removeprefix("set."): value for name, value in options.items() if name.startswith("set.")}
