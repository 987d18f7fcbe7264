"""Rewriting: no address of a broker gets through, in any version, and nothing else changes."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from kio.static.constants import EntityType

from assigner.gateway.checks import Malformed
from assigner.gateway.codec import nested, response_class
from assigner.gateway.upstream.rewriting import rewrite, rewrites
from assigner.gateway.wire.versions import KNOWN
from tests.support.gateway.entities import make_entity, versions_of
from tests.support.gateway.wired import framed_answer, read_answer

VERSIONS = list(versions_of(EntityType.response))


def here(node_id: int) -> tuple[str, int] | None:
    """Every broker has a port here, but for 13."""
    return None if node_id == 13 else ("gateway.example", 20_000 + node_id)


def rewritten(api: int, version: int, answer: Any) -> Any:
    frame = framed_answer(api, version, 9, answer)[4:]
    correlation, found = read_answer(api, version, rewrite(api, version, frame, here))
    assert correlation == 9
    return found


def brokers_of(api: int, version: int, *node_ids: int, name: str, node: str) -> tuple[Any, ...]:
    schema = nested(response_class(api, version), name)
    made = [make_entity(schema, Random(n)) for n in node_ids]
    return tuple(
        replace(one, **{node: n}, host="broker.internal", port=9092) for one, n in zip(made, node_ids, strict=True)
    )


@pytest.mark.parametrize("version", [version for api, version in VERSIONS if api == 3])
def test_metadata_names_the_ports_here_and_is_otherwise_untouched(version: int) -> None:
    for seed in range(20):
        made = make_entity(response_class(3, version), Random(seed))
        listed = brokers_of(3, version, 1, 13, 7, 300, name="MetadataResponseBroker", node="node_id")
        answer = replace(made, brokers=listed)
        found = rewritten(3, version, answer)
        assert [(int(one.node_id), one.host, one.port) for one in found.brokers] == [
            (1, "gateway.example", 20_001),
            (7, "gateway.example", 20_007),
            (300, "gateway.example", 20_300),
        ]
        assert [getattr(one, "rack", None) for one in found.brokers] == [
            getattr(one, "rack", None) for one in listed if one.node_id != 13
        ]
        assert replace(found, brokers=listed) == answer


def test_metadata_of_many_brokers_is_rewritten() -> None:
    made = make_entity(response_class(3, 12), Random(1))
    answer = replace(made, brokers=brokers_of(3, 12, *range(100, 400), name="MetadataResponseBroker", node="node_id"))
    assert len(rewritten(3, 12, answer).brokers) == 300


@pytest.mark.parametrize("version", [version for api, version in VERSIONS if api == 3])
def test_metadata_that_ends_too_early_is_refused(version: int) -> None:
    made = make_entity(response_class(3, version), Random(1))
    answer = replace(made, brokers=brokers_of(3, version, 1, name="MetadataResponseBroker", node="node_id"), topics=())
    frame = framed_answer(3, version, 9, answer)[4:]
    with pytest.raises(Malformed):
        rewrite(3, version, frame[:20], here)


@pytest.mark.parametrize("version", [version for api, version in VERSIONS if api == 10])
def test_a_coordinator_of_transactions_is_reached_here(version: int) -> None:
    schema = response_class(10, version)
    made = make_entity(schema, Random(3))
    if version < 4:
        found = rewritten(10, version, replace(made, node_id=7, host="broker.internal", port=9092))
        assert (found.host, found.port) == ("gateway.example", 20_007)
        missing = replace(made, node_id=-1, host="", port=-1)
        assert rewritten(10, version, missing) == missing
        return
    listed = brokers_of(10, version, 7, 13, name="Coordinator", node="node_id")
    nobody = replace(listed[0], node_id=-1, host="", port=-1)
    found = rewritten(10, version, replace(made, coordinators=(*listed, nobody)))
    assert [(one.host, one.port) for one in found.coordinators] == [("gateway.example", 20_007), ("", 0), ("", -1)]


@pytest.mark.parametrize("version", [version for api, version in VERSIONS if api == 60])
def test_the_cluster_is_described_with_the_ports_here(version: int) -> None:
    made = make_entity(response_class(60, version), Random(3))
    listed = brokers_of(60, version, 7, 13, name="DescribeClusterBroker", node="broker_id")
    found = rewritten(60, version, replace(made, brokers=listed))
    assert [(int(one.broker_id), one.host, one.port) for one in found.brokers] == [(7, "gateway.example", 20_007)]


@pytest.mark.parametrize("version", [version for api, version in VERSIONS if api == 0 and version >= 10])
def test_new_leaders_that_a_produce_names_are_reached_here(version: int) -> None:
    made = make_entity(response_class(0, version), Random(3))
    moved = brokers_of(0, version, 7, 13, name="NodeEndpoint", node="node_id")
    found = rewritten(0, version, replace(made, node_endpoints=moved))
    assert [(int(one.node_id), one.host, one.port) for one in found.node_endpoints] == [(7, "gateway.example", 20_007)]
    assert replace(found, node_endpoints=moved) == replace(made, node_endpoints=moved)


def test_a_produce_that_names_nobody_is_passed_on_as_it_is() -> None:
    answer = replace(make_entity(response_class(0, 13), Random(3)), node_endpoints=())
    frame = framed_answer(0, 13, 9, answer)[4:]
    assert rewrite(0, 13, frame, here) is frame


def test_every_offered_answer_that_can_name_a_broker_is_rewritten() -> None:
    """Finds in kio's schemas what has a host, so that a new version can't be forgotten."""
    for api, version in VERSIONS:
        low, high = KNOWN.get(api, (1, 0))
        if not low <= version <= high:
            continue
        schema = response_class(api, version)
        if _names_hosts(schema):
            assert rewrites(api, version), (api, version)


def _names_hosts(schema: Any) -> bool:
    module = sys.modules[schema.__module__]
    kinds = [one for one in vars(module).values() if dataclasses.is_dataclass(one)]
    return any({"host", "port"} <= {field.name for field in dataclasses.fields(kind)} for kind in kinds)
