"""Frames: a stream of bytes gives the same frames however it is cut, and a busy receiver gets none."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import pytest

from assigner.gateway.checks import Malformed
from assigner.gateway.codec import encode, make, milliseconds, request_class
from assigner.gateway.wire.frames import (
    LARGEST_HEAD,
    FrameReader,
    ProtocolViolation,
    Wanted,
    read_acks,
    read_head,
    skip_tags,
)
from tests.support.gateway.wired import framed_body


class Noted:
    """Takes frames whose first byte says how."""

    def __init__(self) -> None:
        self.is_busy = False
        self.whole: list[bytes] = []
        self.pieces: list[bytes] = []
        self.ended = 0
        self.after_frame: Callable[[], None] = lambda: None

    def begins(self, size: int, start: bytes) -> Wanted:
        if size < 0:
            raise ProtocolViolation("malformed", "negative")
        if not start and size:
            return Wanted.MORE
        if start[:1] == b"m":
            return Wanted.MORE
        return Wanted.PIECES if start[:1] == b"p" else Wanted.WHOLE

    def frame(self, body: bytes) -> None:
        self.whole.append(body)
        self.after_frame()

    def piece(self, data: bytes, *, is_last: bool) -> None:
        self.pieces.append(data)
        self.ended += is_last


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


FRAMES = [b"w" * 10, b"p" * 1000, b"w", b"p", b"wx" * 300, b"p2" * 5]
STREAM = b"".join(map(framed, FRAMES))


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_gives_the_same_frames_however_it_is_cut(seed: int) -> None:
    random, noted = Random(seed), Noted()
    reader = FrameReader(noted)
    at = 0
    while at < len(STREAM):
        after = at + random.choice((1, 2, 3, 7, 100, 1000))
        reader.feed(STREAM[at:after])
        at = after
    assert noted.whole == [frame for frame in FRAMES if frame[:1] == b"w"]
    # What is taken in pieces keeps its length, so that it can be passed on as it is.
    assert b"".join(noted.pieces) == b"".join(framed(frame) for frame in FRAMES if frame[:1] == b"p")
    assert noted.ended == 3
    assert not reader.is_within


def test_a_large_frame_is_passed_on_as_it_arrives() -> None:
    noted = Noted()
    reader = FrameReader(noted)
    reader.feed(framed(b"p" * 10_000)[:5_000])
    assert len(noted.pieces[0]) == 5_000
    assert reader.is_within
    assert reader.waiting == 0


def test_a_busy_receiver_gets_no_frame_until_it_goes_on() -> None:
    noted = Noted()
    reader = FrameReader(noted)

    def become_busy() -> None:
        noted.is_busy = True

    noted.after_frame = become_busy
    reader.feed(framed(b"w1") + framed(b"w2"))
    reader.feed(framed(b"w3")[:3])
    assert noted.whole == [b"w1"]
    assert reader.waiting == 6 + 3
    reader.go_on()
    assert noted.whole == [b"w1"]
    noted.is_busy = False
    reader.go_on()
    assert noted.whole == [b"w1", b"w2"]
    noted.is_busy = False
    reader.go_on()
    reader.feed(framed(b"w3")[3:])
    assert noted.whole == [b"w1", b"w2", b"w3"]


def test_a_closed_reader_takes_nothing_more() -> None:
    noted = Noted()
    reader = FrameReader(noted)
    noted.after_frame = reader.close
    reader.feed(framed(b"w1") + framed(b"w2"))
    reader.feed(framed(b"w3"))
    assert noted.whole == [b"w1"]
    assert reader.waiting == 0


def test_a_frame_that_ends_within_its_head_is_refused() -> None:
    with pytest.raises(ProtocolViolation):
        FrameReader(Noted()).feed(framed(b"m" * 10))


def test_a_head_without_end_is_refused() -> None:
    reader = FrameReader(Noted())
    reader.feed(framed(b"m" * 10 * LARGEST_HEAD)[: LARGEST_HEAD - 100])
    with pytest.raises(ProtocolViolation):
        reader.feed(b"m" * 200)


def test_the_head_of_a_request_is_read_once_it_is_there() -> None:
    frame = framed_body(3, 12, -7, b"", client_id="clïent")[4:]
    for end in range(10 + len("clïent".encode())):
        assert read_head(frame[:end]) is None
    head = read_head(frame)
    assert head is not None
    assert (head.api, head.version, head.correlation, head.client_id) == (3, 12, -7, "clïent")
    assert skip_tags(frame, head.end) == len(frame)


def test_a_client_id_may_be_null_and_has_to_be_utf_8() -> None:
    head = read_head(struct.pack(">hhih", 3, 1, 5, -1))
    assert head is not None
    assert (head.client_id, head.end) == ("", 10)
    with pytest.raises(Malformed):
        read_head(struct.pack(">hhih", 3, 1, 5, 1) + b"\xff")


def test_tagged_fields_are_skipped() -> None:
    assert skip_tags(b"\x02\x01\x03abc\x80\x01\x00rest", 0) == 9
    with pytest.raises(IndexError):
        skip_tags(b"\x01\x01\x10abc", 0)


@pytest.mark.parametrize("transactional_id", [None, "", "t" * 300])
@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_the_acks_of_a_produce_are_read_in_every_version(version: int, acks: int, transactional_id: str | None) -> None:
    schema = request_class(0, version)
    request = make(schema, transactional_id=transactional_id, acks=acks, timeout=_timeout(), topic_data=())
    frame = framed_body(0, version, 1, encode(request))[4:]
    head = read_head(frame)
    assert head is not None
    found = [read_acks(frame[:end], head) for end in range(head.end, len(frame) + 1)]
    # Unknown until they are there, and then what was sent.
    first = found.index(acks)
    assert set(found[:first]) <= {None}
    assert set(found[first:]) == {acks}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_acks_of_versions_that_kio_does_not_know_come_first(version: int) -> None:
    frame = struct.pack(">hhih", 0, version, 1, 0) + struct.pack(">hi", 0, 1000)
    head = read_head(frame)
    assert head is not None
    assert read_acks(frame, head) == 0


def _timeout() -> object:
    return milliseconds(1000)
