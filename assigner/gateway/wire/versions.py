"""Decides which APIs and versions clients are offered, and writes the answer to ApiVersions.

What the gateway answers itself is offered whatever the brokers have. Of the rest only what is listed here is offered,
in versions that are known here and that the broker has: an API that nobody looked at could change groups beside ours,
or name a broker's address.

Hidden, although brokers have them: TxnOffsetCommit and AddOffsetsToTxn (25, 28), by which a transaction would commit
the offsets of a group at the brokers; groups of other kinds (76 to 79, 83 to 92), which would come to be at the brokers
beside ours; client metrics (71, 72); delegation tokens (38 to 41), which would be tokens of the gateway's own user;
what only brokers and controllers send.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from assigner.gateway.codec import API_VERSIONS, NO_TIME, encode_answer, error_code, make, nested, response_class
from assigner.gateway.requests import Handlers
from assigner.gateway.upstream.brokers import BrokerApis

Ranges = Mapping[int, tuple[int, int]]
"""The lowest and the highest version, by API key."""

FIND_COORDINATOR = 10
SASL_HANDSHAKE = 17
SASL_AUTHENTICATE = 36
NEWEST_API_VERSIONS = 4
UNSUPPORTED_VERSION = 35
_FIRST_WITH_FEATURES = 3

OWN: Ranges = {
    API_VERSIONS: (0, NEWEST_API_VERSIONS),
    FIND_COORDINATOR: (0, 6),
    # Version 0 goes on with tokens outside of Kafka's frames.
    SASL_HANDSHAKE: (1, 1),
    SASL_AUTHENTICATE: (0, 2),
}
"""What the wire answers, whatever handlers there are."""

READS = frozenset({1, 2, 3, 23, 32, 35, 46, 48, 55, 60, 61, 65, 66, 74, 75})
"""Fetch, ListOffsets, Metadata, OffsetForLeaderEpoch, and descriptions of all kinds."""
WRITES = frozenset({0, 22, 24, 26})
"""Produce, InitProducerId, AddPartitionsToTxn, EndTxn."""
CHANGES = frozenset({19, 20, 21, 29, 30, 31, 33, 34, 37, 43, 44, 45, 49, 50, 51, 57, 64})
"""Topics, records, access rules, configurations, partitions, reassignments, quotas, users, features, brokers."""
FORWARDED = READS | WRITES | CHANGES

_CAPS = {
    # From version 16 on the answer may name a partition's new leader, after all the records (KIP-951): to rewrite it,
    # the whole answer would have to be held here.
    1: 15,
    # Version 2 lists the addresses of the controllers.
    55: 1,
}


def _known(api: int) -> tuple[int, int]:
    """The versions of which the form is known."""
    versions = [version for version, kinds in schema_name_map[api_key_map[api]].items() if EntityType.response in kinds]
    return 0, min(max(versions), _CAPS.get(api, 2**15 - 1))


KNOWN: Ranges = {api: _known(api) for api in FORWARDED}


def offered(apis: BrokerApis, handlers: Handlers, *, with_sasl: bool) -> dict[int, tuple[int, int]]:
    """Return what a client is offered in front of brokers with these APIs, by API key in order."""
    found = {api: both for api, both in OWN.items() if with_sasl or api not in (SASL_HANDSHAKE, SASL_AUTHENTICATE)}
    found |= {api: (handled.first, handled.last) for api, handled in handlers.items()}
    for api in FORWARDED:
        low, high = apis.ranges.get(api, (1, 0))
        known = KNOWN[api]
        low, high = max(low, known[0]), min(high, known[1])
        if low <= high:
            found[api] = (low, high)
    return dict(sorted(found.items()))


class VersionAnswers:
    """The answers to ApiVersions in front of one set of brokers, each encoded once."""

    def __init__(self, apis: BrokerApis, ranges: Ranges) -> None:
        self.ranges = ranges
        self._apis = apis
        self._encoded = lru_cache(None)(self._encode)

    def answer(self, version: int, correlation: int) -> bytes:
        """Return the framed answer. A version that is not known is answered in the form of version 0, with error 35
        and the range of ApiVersions itself (KIP-511), so that the client asks again in a version from there."""
        frame = self._encoded(version if 0 <= version <= NEWEST_API_VERSIONS else -1)
        return frame[:4] + correlation.to_bytes(4, "big", signed=True) + frame[8:]

    def _encode(self, version: int) -> bytes:
        if version < 0:
            low, high = OWN[API_VERSIONS]
            return encode_answer(API_VERSIONS, 0, 0, _answer(0, UNSUPPORTED_VERSION, {API_VERSIONS: (low, high)}))
        return encode_answer(API_VERSIONS, version, 0, _answer(version, 0, self.ranges, self._features(version)))

    def _features(self, version: int) -> dict[str, Any]:
        """The cluster's features, as the broker told them: a client needs them to know how transactions work there."""
        told = self._apis.features
        if told is None or version < _FIRST_WITH_FEATURES:
            return {}
        schema = response_class(API_VERSIONS, version)
        supported, finalized = nested(schema, "SupportedFeatureKey"), nested(schema, "FinalizedFeatureKey")
        return {
            "supported_features": tuple(
                supported(name=one.name, min_version=one.min_version, max_version=one.max_version)
                for one in told.supported_features
            ),
            "finalized_features_epoch": told.finalized_features_epoch,
            "finalized_features": tuple(
                finalized(
                    name=one.name, max_version_level=one.max_version_level, min_version_level=one.min_version_level
                )
                for one in told.finalized_features
            ),
        }


def _answer(version: int, code: int, ranges: Ranges, features: Mapping[str, Any] | None = None) -> Any:
    schema = response_class(API_VERSIONS, version)
    one = nested(schema, "ApiVersion")
    keys = tuple(one(api_key=api, min_version=low, max_version=high) for api, (low, high) in ranges.items())
    return make(schema, error_code=error_code(code), api_keys=keys, throttle_time=NO_TIME, **(features or {}))
