"""Makes what a hostile or broken client may send: requests that are true but for bytes, lengths, versions, order."""

from __future__ import annotations

import struct
from random import Random

from kio.static.constants import EntityType

from assigner.gateway.codec import encode, request_class
from assigner.gateway.wire.versions import Ranges
from tests.support.gateway.entities import make_entity, versions_of
from tests.support.gateway.wired import framed_body

_LENGTHS = (-(2**31), -1, 0, 1, 9, 10, 2**16, 2**24, 2**31 - 1)
_POOL = 600
_OFFERED = 0.95


class HostileClient:
    """Streams of one seed. Each stream is what one connection sends, in the pieces in which it arrives."""

    def __init__(self, seed: int, offered: Ranges) -> None:
        """`offered`: what most of the requests are about."""
        self._random = random = Random(seed)
        every = list(versions_of(EntityType.request))
        answered = [(api, version) for api, version in every if _is_offered(offered, api, version)]
        self._pool = [
            self._true_request(*random.choice(answered if random.random() < _OFFERED else every)) for _ in range(_POOL)
        ]
        self.frames = 0
        """How many were made."""

    def stream(self) -> list[bytes]:
        random = self._random
        count = random.choice((1, 1, 1, 2, 3, 8))
        self.frames += count
        data = b"".join(self._frame() for _ in range(count))
        if random.random() < 0.2:
            data = data[: random.randrange(len(data) + 1)]
        if random.random() < 0.5:
            return [data]
        pieces = []
        while data:
            size = random.choice((1, 3, 4, 7, 13, 100, 5_000))
            pieces.append(data[:size])
            data = data[size:]
        return pieces

    def _true_request(self, api: int, version: int) -> bytes:
        body = encode(make_entity(request_class(api, version), self._random))
        name = self._random.choice(("", "client", "ü" * 50))
        return framed_body(api, version, self._random.randrange(2**31), body, client_id=name)

    def _frame(self) -> bytes:
        random, frame = self._random, bytearray(self._random.choice(self._pool))
        kind = random.randrange(14)
        if kind == 0:
            return random.randbytes(random.randrange(60))
        if kind == 1:
            frame[:4] = struct.pack(">i", random.choice(_LENGTHS))
        elif kind == 2:
            frame[4:8] = struct.pack(">hh", random.randrange(-1, 100), random.randrange(-1, 20))
        elif kind <= 5:
            for _ in range(random.randrange(1, 6)):
                frame[random.randrange(4, len(frame))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        elif kind == 6:
            at = random.randrange(4, len(frame))
            frame[at:at] = random.randbytes(random.randrange(1, 9))
            frame[:4] = struct.pack(">i", len(frame) - 4)
        return bytes(frame)


def _is_offered(offered: Ranges, api: int, version: int) -> bool:
    low, high = offered.get(api, (1, 0))
    return low <= version <= high
