"""Puts the gateway's own ports in the place of the brokers' addresses, in every answer that names brokers.

Metadata may describe thousands of topics, so only its list of brokers is read and written anew, by hand; what follows
is copied. The other answers are small and go through kio. A broker that has no port here is left out of Metadata: a
partition that it leads has no leader for the client, which asks again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from assigner.gateway.checks import Malformed, read_varint
from assigner.gateway.codec import decode_response, encode
from assigner.gateway.wire.frames import skip_tags

PRODUCE = 0
METADATA = 3
FIND_COORDINATOR = 10
DESCRIBE_CLUSTER = 60
WITH_ENDPOINTS = 10
"""The first version of Produce whose answer may name brokers (KIP-951)."""
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_FLEXIBLE_METADATA = 9

Endpoint = Callable[[int], tuple[str, int] | None]
"""The address under which clients reach a broker through the gateway, by node id; None: it has none."""


def rewrites(api: int, version: int) -> bool:
    """Whether answers of that kind may name brokers."""
    return api in (METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER) or (api == PRODUCE and version >= WITH_ENDPOINTS)


def rewrite(api: int, version: int, frame: bytes, endpoint: Endpoint) -> bytes:
    """Return a broker's answer, which begins with its correlation id, with the gateway's addresses. Raises
    `Malformed`."""
    if api == METADATA:
        try:
            return _metadata(version, frame, endpoint)
        except (IndexError, struct.error, UnicodeDecodeError) as error:
            raise Malformed("an answer to Metadata ends too early") from error
    start = 4 if not _is_flexible(api, version) else _after_header(frame)
    answer = decode_response(api, version, frame[start:])
    changed = _REWRITTEN[api](answer, endpoint)
    return frame if changed is answer else frame[:start] + encode(changed)


def _is_flexible(api: int, version: int) -> bool:
    return version >= {PRODUCE: 9, FIND_COORDINATOR: 3, DESCRIBE_CLUSTER: 0}[api]


def _after_header(frame: bytes) -> int:
    try:
        return skip_tags(frame, 4)
    except IndexError:
        raise Malformed("an answer ends within its header") from None


# --- Metadata, by hand -------------------------------------------------------------------------------------------


def _metadata(version: int, frame: bytes, endpoint: Endpoint) -> bytes:
    flexible = version >= _FLEXIBLE_METADATA
    at = skip_tags(frame, 4) if flexible else 4
    if version >= 3:
        at += 4
    first = at
    if flexible:
        count, at = read_varint(frame, at)
        count -= 1
    else:
        count = _INT32.unpack_from(frame, at)[0]
        at += 4
    brokers = []
    for _ in range(count):
        broker, at = _broker(version, frame, at, endpoint)
        if broker is not None:
            brokers.append(broker)
    if at > len(frame):
        raise Malformed("an answer to Metadata ends too early")
    length = _written_varint(len(brokers) + 1) if flexible else _INT32.pack(len(brokers))
    return b"".join((frame[:first], length, *brokers, frame[at:]))


def _broker(version: int, frame: bytes, at: int, endpoint: Endpoint) -> tuple[bytes | None, int]:
    """Rewrite one broker of Metadata, and return where the next one begins."""
    flexible = version >= _FLEXIBLE_METADATA
    node_id = _INT32.unpack_from(frame, at)[0]
    at = _after_text(frame, at + 4, flexible) + 4
    rest = at
    if version >= 1:
        at = _after_text(frame, at, flexible)
    if flexible:
        at = skip_tags(frame, at)
    found = endpoint(node_id)
    if found is None:
        return None, at
    host, port = found[0].encode(), found[1]
    written = _written_varint(len(host) + 1) if flexible else _INT16.pack(len(host))
    return b"".join((_INT32.pack(node_id), written, host, _INT32.pack(port), frame[rest:at])), at


def _after_text(frame: bytes, at: int, flexible: bool) -> int:
    if flexible:
        length, at = read_varint(frame, at)
        return at + max(0, length - 1)
    size: int = _INT16.unpack_from(frame, at)[0]
    return at + 2 + max(0, size)


def _written_varint(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


# --- the others, by kio ------------------------------------------------------------------------------------------


def _coordinators(answer: Any, endpoint: Endpoint) -> Any:
    """Rewrite the answer to a FindCoordinator for transactions."""
    if not hasattr(answer, "coordinators"):
        return _placed(answer, endpoint)
    return replace(answer, coordinators=tuple(_placed(one, endpoint) for one in answer.coordinators))


def _placed(one: Any, endpoint: Endpoint) -> Any:
    if one.node_id < 0:
        return one
    found = endpoint(int(one.node_id))
    # An address that clients must not use would be worse than one that nobody listens on.
    host, port = found or ("", 0)
    return replace(one, host=host, port=port)


def _cluster(answer: Any, endpoint: Endpoint) -> Any:
    brokers = []
    for broker in answer.brokers:
        found = endpoint(int(broker.broker_id))
        if found is not None:
            brokers.append(replace(broker, host=found[0], port=found[1]))
    return replace(answer, brokers=tuple(brokers))


def _leaders(answer: Any, endpoint: Endpoint) -> Any:
    """Rewrite the leaders that an answer to Produce names where one has moved."""
    if not answer.node_endpoints:
        return answer
    placed = []
    for one in answer.node_endpoints:
        found = endpoint(int(one.node_id))
        if found is not None:
            placed.append(replace(one, host=found[0], port=found[1]))
    return replace(answer, node_endpoints=tuple(placed))


_REWRITTEN: dict[int, Callable[[Any, Endpoint], Any]] = {
    FIND_COORDINATOR: _coordinators,
    DESCRIBE_CLUSTER: _cluster,
    PRODUCE: _leaders,
}
