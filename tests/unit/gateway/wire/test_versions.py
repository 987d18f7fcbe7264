"""What clients are offered: what is known on both sides, in versions that are known on both sides."""

from __future__ import annotations

from typing import Any

import pytest

from assigner.gateway.codec import decode_response, make, nested, response_class
from assigner.gateway.requests import HandledApi
from assigner.gateway.upstream.brokers import BrokerApis
from assigner.gateway.wire.versions import CHANGES, FORWARDED, READS, WRITES, VersionAnswers, offered

HIDDEN = {25, 28, 38, 39, 40, 41, 71, 72, 76, 77, 78, 79, *range(83, 93)}
EVERYTHING = BrokerApis(dict.fromkeys(range(100), (0, 100)))


def handler(*_: Any) -> bytes:
    return b""


def test_what_would_bypass_our_groups_is_hidden_whatever_brokers_have() -> None:
    found = offered(EVERYTHING, {}, with_sasl=False)
    assert not HIDDEN & found.keys()
    # Groups are handled here or not at all.
    assert not {8, 9, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69} & found.keys()
    # What brokers say to one another, and logins that nobody asked for.
    assert not {4, 5, 6, 7, 17, 27, 36, 52, 56, 58, 62, 63, 67, 73, 80, 81, 82} & found.keys()


def test_what_is_passed_on_is_offered_in_versions_that_both_sides_know() -> None:
    found = offered(BrokerApis({1: (4, 18), 3: (0, 99), 2: (3, 7), 32: (50, 60)}), {}, with_sasl=False)
    # Fetch is capped: from 16 on its answer may name a broker after all records.
    assert found == {1: (4, 15), 2: (3, 7), 3: (0, 13), 10: (0, 6), 18: (0, 4)}


def test_what_is_handled_here_is_offered_whatever_brokers_have() -> None:
    handlers = {68: HandledApi(0, 1, handler), 12: HandledApi(0, 4, handler)}
    found = offered(BrokerApis({12: (4, 4)}), handlers, with_sasl=True)
    assert found == {10: (0, 6), 12: (0, 4), 17: (1, 1), 18: (0, 4), 36: (0, 2), 68: (0, 1)}


def test_every_api_that_is_passed_on_is_a_read_a_write_or_a_change() -> None:
    assert READS | WRITES | CHANGES == FORWARDED
    assert not READS & WRITES
    assert not (READS | WRITES) & CHANGES


@pytest.mark.parametrize("version", [3, 4])
def test_the_features_of_the_cluster_are_told_on(version: int) -> None:
    schema = response_class(18, 3)
    told = make(
        schema,
        error_code=0,
        api_keys=(),
        throttle_time=None,
        supported_features=(nested(schema, "SupportedFeatureKey")(name="f", min_version=1, max_version=3),),
        finalized_features_epoch=7,
        finalized_features=(nested(schema, "FinalizedFeatureKey")(name="f", max_version_level=2, min_version_level=2),),
    )
    frame = VersionAnswers(BrokerApis({}, told), {18: (0, 4)}).answer(version, -5)
    found = decode_response(18, version, frame[8:])
    assert int.from_bytes(frame[4:8], "big", signed=True) == -5
    assert [(one.name, one.min_version, one.max_version) for one in found.supported_features] == [("f", 1, 3)]
    assert (found.finalized_features_epoch, found.finalized_features[0].max_version_level) == (7, 2)


@pytest.mark.parametrize("version", [-1, 5, 99, 32_767])
def test_an_unknown_version_is_answered_in_the_oldest_form(version: int) -> None:
    frame = VersionAnswers(BrokerApis({}), {18: (0, 4), 3: (0, 13)}).answer(version, 5)
    found = decode_response(18, 0, frame[8:])
    assert int(found.error_code) == 35
    assert [int(one.api_key) for one in found.api_keys] == [18]
