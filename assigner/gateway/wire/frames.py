"""Splits what a peer sends into frames, and reads the head of a request.

A frame is a length of 4 bytes and as many bytes. Whoever receives it decides by its first bytes whether it wants the
frame whole, or in the pieces in which it arrives: a Produce or a Fetch of megabytes passes through without being held
here. The head of a request says what it is, and has the same form in all versions but for tagged fields at its end.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Protocol

import msgspec

from assigner.gateway.checks import Malformed, read_varint

LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">hhih")
_INT16 = struct.Struct(">h")
LARGEST_HEAD = 128 * 1024
"""Bytes of a frame in which everything has to be found that decides what becomes of it."""
_USUAL_HEAD = 256
PRODUCE = 0
_PRODUCE_FLEXIBLE = 9
_PRODUCE_TRANSACTIONAL = 3


class ProtocolViolation(Exception):
    """What a peer sent is no Kafka, or more than it may send. `reason` is one of few, and counted by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Wanted(Enum):
    """How a receiver wants a frame."""

    MORE = "more"
    """It has to see more bytes before it can say."""
    WHOLE = "whole"
    PIECES = "pieces"


class Receiver(Protocol):
    @property
    def is_busy(self) -> bool:
        """Whether it takes no frame now: what arrives is kept until `FrameReader.go_on`."""
        ...

    def begins(self, size: int, start: bytes) -> Wanted:
        """Decide about a frame of that size, the length not counted, by its first bytes. Raises
        `ProtocolViolation`."""
        ...

    def frame(self, body: bytes) -> None: ...

    def piece(self, data: bytes, *, is_last: bool) -> None:
        """Take the next bytes of a frame, the length among them."""
        ...


class FrameReader:
    """The frames of one connection."""

    __slots__ = ("_left", "_receiver", "_rest", "_size", "_whole", "closed")

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._rest = bytearray()
        """What has arrived of the next frame, or of more of them while the receiver is busy."""
        self._whole: bytearray | None = None
        """The frame that is collected."""
        self._size = 0
        self._left = 0
        """Bytes still to come of a frame that is taken in pieces."""
        self.closed = False

    @property
    def waiting(self) -> int:
        """Bytes that have arrived and were not taken yet."""
        return len(self._rest) + (0 if self._whole is None else len(self._whole))

    @property
    def is_within(self) -> bool:
        """Whether a frame has begun to arrive."""
        return bool(self._left or self._rest or self._whole is not None)

    def close(self) -> None:
        """Drop what has arrived, and all that follows."""
        self.closed = True
        self._rest = bytearray()
        self._whole = None
        self._left = 0

    def feed(self, data: bytes) -> None:
        """Take what arrived. Raises `ProtocolViolation`."""
        if self._rest or (self._receiver.is_busy and not self._left and self._whole is None):
            self._rest += data
            if self._receiver.is_busy:
                return
            data = bytes(self._rest)
            self._rest.clear()
        self._take(data)

    def go_on(self) -> None:
        """Take what was kept while the receiver was busy."""
        if self._rest and not self._receiver.is_busy:
            data = bytes(self._rest)
            self._rest.clear()
            self._take(data)

    def _take(self, data: bytes) -> None:
        at, end = 0, len(data)
        while at < end and not self.closed:
            if self._left:
                at = self._piece(data, at)
            elif self._whole is not None:
                at = self._collect(data, at)
            elif self._receiver.is_busy:
                break
            else:
                begun = self._begin(data, at)
                if begun == at:
                    break
                at = begun
        if at < end and not self.closed:
            self._rest += data[at:] if at else data

    def _begin(self, data: bytes, at: int) -> int:
        """Look at a new frame; return the same place if more of it has to arrive."""
        end = len(data)
        if end - at < 4:
            return at
        size: int = LENGTH.unpack_from(data, at)[0]
        first = at + 4
        after = first + size
        wanted = self._receiver.begins(size, data[first : min(after, end, first + _USUAL_HEAD)])
        if wanted is Wanted.MORE and min(after, end) > first + _USUAL_HEAD:
            wanted = self._receiver.begins(size, data[first : min(after, end, first + LARGEST_HEAD)])
        if wanted is Wanted.MORE:
            if end - first >= min(size, LARGEST_HEAD):
                raise ProtocolViolation("malformed", "the head of a frame is too long, or the frame ends within it")
            return at
        if wanted is Wanted.PIECES:
            self._left = size + 4
            return self._piece(data, at)
        if after <= end:
            self._receiver.frame(data[first:after])
            return after
        self._size, self._whole = size, bytearray()
        return self._collect(data, first)

    def _piece(self, data: bytes, at: int) -> int:
        after = min(len(data), at + self._left)
        self._left -= after - at
        self._receiver.piece(data[at:after] if at or after < len(data) else data, is_last=not self._left)
        return after

    def _collect(self, data: bytes, at: int) -> int:
        assert self._whole is not None
        after = min(len(data), at + self._size - len(self._whole))
        self._whole += data[at:after]
        if len(self._whole) == self._size:
            body, self._whole = bytes(self._whole), None
            self._receiver.frame(body)
        return after


# --- the head of a request -------------------------------------------------------------------------------------------


class Head(msgspec.Struct, frozen=True):
    """What stands before the body of every request."""

    api: int
    version: int
    correlation: int
    client_id: str
    end: int
    """Where what follows the client id begins: tagged fields if the version has them, then the body."""


def read_head(start: bytes) -> Head | None:
    """Read the head of a request from its first bytes; None: more of them are needed. Raises `Malformed`."""
    if len(start) < _HEAD.size:
        return None
    api, version, correlation, size = _HEAD.unpack_from(start)
    end = _HEAD.size + max(0, size)
    if len(start) < end:
        return None
    try:
        client_id = start[_HEAD.size : end].decode()
    except UnicodeDecodeError:
        raise Malformed("the client id is not UTF-8") from None
    return Head(api, version, correlation, client_id, end)


def skip_tags(body: bytes, at: int) -> int:
    """Return where tagged fields end. Raises `Malformed`, or `IndexError` if more bytes are needed."""
    count, at = read_varint(body, at)
    for _ in range(count):
        _, at = read_varint(body, at)
        size, at = read_varint(body, at)
        at += size
        if at > len(body):
            raise IndexError("a tagged field goes on")
    return at


def read_acks(start: bytes, head: Head) -> int | None:
    """Read the `acks` of a Produce from its first bytes; None: more of them are needed. Raises `Malformed`."""
    at, version = head.end, head.version
    try:
        if version >= _PRODUCE_FLEXIBLE:
            at = skip_tags(start, at)
            size, at = read_varint(start, at)
            at += max(0, size - 1)
        elif version >= _PRODUCE_TRANSACTIONAL:
            size = _INT16.unpack_from(start, at)[0]
            at += 2 + max(0, size)
        acks: int = _INT16.unpack_from(start, at)[0]
    except (IndexError, struct.error):
        return None
    return acks
