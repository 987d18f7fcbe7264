"""Maps a key to a partition exactly as Kafka's producers do, so that requests and records of a key meet at one owner.

`MURMUR2` is the default of the Java client, and `murmur2_random` of librdkafka; `CRC32` is librdkafka's default,
`consistent_random`. Choose the one that the producers of the topic use. Not covered: records without a key, and for
`CRC32` those with an empty key, which those producers spread at random.
"""

from __future__ import annotations

import struct
import zlib
from enum import Enum

from assigner.errors import InvalidInput

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


class Partitioner(str, Enum):
    """How the producers of a topic choose the partition of a key."""

    MURMUR2 = "murmur2"
    """The Java client's default; librdkafka's `murmur2` and `murmur2_random`."""
    CRC32 = "crc32"
    """librdkafka's `consistent` and `consistent_random`, its default."""

    def partition_of(self, key: bytes, partitions: int) -> int:
        return murmur2_partition(key, partitions) if self is Partitioner.MURMUR2 else crc32_partition(key, partitions)


def murmur2_partition(key: bytes, partitions: int) -> int:
    """The partition of a key by the Java client's default partitioner."""
    # The client clears the sign bit instead of taking the absolute value.
    return (murmur2(key) & _POSITIVE) % _checked(partitions)


def crc32_partition(key: bytes, partitions: int) -> int:
    """The partition of a key by librdkafka's default partitioner."""
    return zlib.crc32(key) % _checked(partitions)


def murmur2(key: bytes) -> int:
    """The 32-bit hash that Kafka's clients call murmur2, unsigned."""
    length = len(key)
    words = length >> 2
    h = _SEED ^ length
    for k in struct.unpack_from(f"<{words}I", key):
        k = (k * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    if rest := key[words << 2 :]:
        h = ((h ^ int.from_bytes(rest, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def _checked(partitions: int) -> int:
    if partitions < 1:
        raise InvalidInput(f"a key can't be mapped to one of {partitions} partitions; the topic needs at least 1")
    return partitions
