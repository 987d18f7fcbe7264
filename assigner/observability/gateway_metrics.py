"""Exports metrics of the gateway for Kafka clients, where an instance has one.

They are read at each scrape, from counts that the gateway keeps anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

APIS = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    15: "DescribeGroups",
    16: "ListGroups",
    17: "SaslHandshake",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    22: "InitProducerId",
    32: "DescribeConfigs",
    36: "SaslAuthenticate",
    42: "DeleteGroups",
    47: "OffsetDelete",
    60: "DescribeCluster",
    68: "ConsumerGroupHeartbeat",
    69: "ConsumerGroupDescribe",
    75: "DescribeTopicPartitions",
}
OTHER = "_other"
"""Label of the APIs that are not named above."""


class GatewaySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    connections: int = 0
    members: int = 0
    """Kafka 4 members that are served here."""
    parked: int = 0
    """Requests whose answers are awaited or held back."""
    buffered_bytes: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    upstream_connections: int = 0
    upstream_failures: int = 0
    brokers_up: int = 0
    requests: Mapping[int, int] = {}
    """By API key."""
    refused: Mapping[str, int] = {}
    """Connections closed or not accepted, by reason."""
    logins: Mapping[str, int] = {}
    """SASL logins by how they ended."""
    denied: Mapping[tuple[str, str], int] = {}
    """Denied calls by kind and claim, which are constants of the program."""


def gateway_families(gateway: GatewaySnapshot | None) -> Iterator[Metric]:
    if gateway is None:
        return
    for name, meaning, figure in (
        ("connections", "Connections of Kafka clients.", gateway.connections),
        ("members", "Kafka 4 members served here.", gateway.members),
        ("parked_requests", "Requests whose answers are awaited or held back.", gateway.parked),
        ("buffered_bytes", "Bytes of large requests that are being read whole.", gateway.buffered_bytes),
        ("upstream_connections", "Connections to brokers on behalf of clients.", gateway.upstream_connections),
        ("brokers_up", "Brokers that answer.", gateway.brokers_up),
    ):
        yield GaugeMetricFamily(f"assigner_gateway_{name}", meaning, value=figure)
    for name, meaning, figure in (
        ("received_bytes", "Bytes received from Kafka clients.", gateway.received_bytes),
        ("sent_bytes", "Bytes sent to Kafka clients.", gateway.sent_bytes),
        ("upstream_failures", "Connections to brokers that failed.", gateway.upstream_failures),
    ):
        yield CounterMetricFamily(f"assigner_gateway_{name}", meaning, value=figure)
    yield _counts("requests", "Requests of Kafka clients.", "api", _by_name(gateway.requests))
    yield _counts("refused", "Connections closed or not accepted.", "reason", gateway.refused)
    yield _counts("logins", "SASL logins.", "outcome", gateway.logins)
    denied = CounterMetricFamily("assigner_gateway_denied", "Calls that were denied.", labels=["kind", "claim"])
    for labels, count in gateway.denied.items():
        denied.add_metric(labels, count)
    yield denied


def _counts(name: str, meaning: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"assigner_gateway_{name}", meaning, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _by_name(requests: Mapping[int, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for api, count in requests.items():
        name = APIS.get(api, OTHER)
        found[name] = found.get(name, 0) + count
    return found
