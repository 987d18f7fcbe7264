"""Translates the environment of the upstream assigner, so that its deployments keep their settings unchanged.

Each name maps to a key of ours. Names without a counterpart are accepted, and a note reports that they have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from assigner.model.keys import DEFAULT_ROOT, group_at
from assigner.settings.sources import Layer, Value

Translate = Callable[[str], str | dict[str, str]]


def _unchanged(text: str) -> str:
    return text


def _endpoints(text: str) -> str:
    """Convert upstream's endpoint URLs. `https` stays, because it selects TLS."""
    return ",".join(part.strip().removeprefix("http://").rstrip("/") for part in text.split(",") if part.strip())


def _level(text: str) -> str:
    """The overall level of a filter such as `info,h2=warn`."""
    levels = [part.strip().lower() for part in text.split(",") if "=" not in part and part.strip()]
    level = levels[0] if levels else "info"
    return {"warn": "warning", "trace": "debug", "off": "error"}.get(level, level)


def _strategy(text: str) -> str:
    return text.strip().replace("-", "_")


def _protocol(text: str) -> dict[str, str]:
    secure = text.strip().lower() in ("true", "1")
    return {"security.protocol": "ssl"} if secure else {}


class Name(msgspec.Struct, frozen=True):
    key: str
    translate: Translate = _unchanged


NAMES: dict[str, Name] = {
    "ETCD_ENDPOINTS": Name("store.endpoints", _endpoints),
    "ETCD_PREFIX": Name("default_prefix"),
    "BIND_HOST": Name("grpc.host"),
    "BIND_PORT": Name("grpc.port"),
    "CONSUMER_LEASE_TTL_SECS": Name("consumer_ttl"),
    "ASSIGNER_NAME": Name("instance.name"),
    "LEADER_LEASE_TTL_SECS": Name("leader_ttl"),
    "REBALANCE_DEBOUNCE_INTERVAL_SECS": Name("group.debounce"),
    "HANDOFF_TIMEOUT_SECS": Name("group.warming_timeout"),
    "KAFKA_HOSTS": Name("kafka.bootstrap_servers"),
    "KAFKA_TLS": Name("kafka.properties", _protocol),
    "KAFKA_METADATA_TIMEOUT_SECS": Name("kafka.metadata_timeout"),
    "ASSIGNMENT_STRATEGY": Name("group.strategy", _strategy),
    "RUST_LOG": Name("log.level", _level),
}

UNUSED: dict[str, str] = {
    "STREAM_CHANNEL_SIZE": "a slow stream is coalesced, not queued",
    "CONSUMER_KEEPALIVE_INTERVAL_SECS": "consumers renew for themselves, every third of the TTL",
    "LEADER_KEEPALIVE_INTERVAL_SECS": "the instance's lease is renewed every third of its TTL",
    "ELECTION_RETRY_INTERVAL_SECS": "standbys wait on the leader's key and do not poll",
    "K8S_AWARENESS_ENABLED": "Kubernetes is not consulted",
    "K8S_NAMESPACE": "Kubernetes is not consulted",
}


def from_upstream(environment: Mapping[str, str]) -> Layer:
    values = [
        Value(name.key, name.translate(environment[variable]), f"environment {variable}", text=True)
        for variable, name in NAMES.items()
        if variable in environment
    ]
    notes = [
        f"environment {variable} has no effect: {reason}"
        for variable, reason in UNUSED.items()
        if environment.get(variable)
    ]
    return Layer(tuple(values), (), tuple(notes))


def implied(environment: Mapping[str, str]) -> Layer:
    """Settings that upstream's names imply beyond their own key. A file overrides them, because they are implicit."""
    values = []
    if environment.get("ETCD_ENDPOINTS"):
        values.append(Value("store.backend", "etcd", "implied by ETCD_ENDPOINTS", text=True))
    prefix = environment.get("ETCD_PREFIX", "")
    if prefix.startswith("/") and prefix.endswith("/"):
        # Upstream runs any number of independent deployments side by side, one per prefix.
        values.append(Value("store.root", prefix, "implied by ETCD_PREFIX", text=True))
    group = group_at(prefix, DEFAULT_ROOT)
    if group:
        values.append(Value("default_group", group, "implied by ETCD_PREFIX", text=True))
    return Layer(tuple(values))
