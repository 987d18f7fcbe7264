"""HTTP/2 by hand: ready bytes of what hostile peers send, so that an attacker costs itself next to nothing."""

from __future__ import annotations

from collections.abc import Iterable

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW_UPDATE, UNKNOWN = 0x0, 0x1, 0x3, 0x4, 0x6, 0x8, 0xEE
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
INITIAL_WINDOW_SIZE = 0x4

RENEW = "/kafka_assigner.v1.KafkaAssigner/Renew"
DESCRIBE_GROUP = "/kafka_assigner.v1.Admin/DescribeGroup"
WATCH = "/grpc.health.v1.Health/Watch"


def frame(kind: int, body: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def settings(values: Iterable[tuple[int, int]] = ()) -> bytes:
    return frame(SETTINGS, b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values))


def literal(name: str, value: str, *, remember: bool = False) -> bytes:
    """A header that is spelt out. Only what is to be remembered gets into the table of the connection."""
    return (b"\x40" if remember else b"\0") + _string(name) + _string(value)


def _string(text: str) -> bytes:
    raw = text.encode()
    return _integer(len(raw), 0x7F) + raw


def _integer(value: int, largest: int) -> bytes:
    if value < largest:
        return bytes((value,))
    digits, value = bytearray((largest,)), value - largest
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def request_headers(path: str, *more: tuple[str, str]) -> bytes:
    plain = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    return b"".join(literal(name, value) for name, value in [*plain, *more])


def message(body: bytes) -> bytes:
    """As gRPC frames it."""
    return b"\0" + len(body).to_bytes(4, "big") + body


def call(stream: int, headers: bytes, body: bytes | None) -> bytes:
    """A call's headers and, if it has one, its only message."""
    opening = frame(HEADERS, headers, flags=END_HEADERS, stream=stream)
    return opening if body is None else opening + frame(DATA, message(body), flags=END_STREAM, stream=stream)
