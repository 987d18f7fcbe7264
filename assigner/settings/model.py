"""`Settings`: all settings of the service as one immutable value.

A `Settings` is made once, by `assigner.settings.load` or by a program that embeds the service, and handed down; no part
of the service reads the environment or a file by itself. The constructor does not check values: `load` checks ranges
and spelling of user input.
"""

from __future__ import annotations

import secrets
import socket

import msgspec

from assigner.backend import StoreSettings
from assigner.core.leader_spread import SpreadSettings
from assigner.core.loads.weights import LoadSettings
from assigner.gateway.settings import GatewaySettings
from assigner.logs import LogSettings
from assigner.model.keys import DEFAULT_ROOT, Keys
from assigner.model.records import GroupOptions
from assigner.observability.event_log import EventSettings
from assigner.server.settings import AuthSettings, ServerSettings
from assigner.web import HttpSettings

_ANYWHERE = frozenset({"", "0.0.0.0", "::", "[::]", "*"})


def fresh_instance_name() -> str:
    """Generate a unique instance name: two instances with one name would take over each other's presence."""
    host = socket.gethostname().split(".")[0] or "assigner"
    return f"{host}-{secrets.token_hex(3)}"


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the tables of the TOML file."""


class StoreSection(StoreSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The backend of the store and its options, passed to the backend unchanged."""

    backend: str = "memory"
    root: str = DEFAULT_ROOT


class InstanceSection(Section, frozen=True, kw_only=True):
    name: str = msgspec.field(default_factory=fresh_instance_name)
    address: str = ""
    """host:port by which other instances and consumers reach this one; empty: the address that gRPC is bound to."""


class KafkaSection(Section, frozen=True, kw_only=True):
    bootstrap_servers: str = ""
    """Empty: partition counts are not discovered from Kafka."""
    properties: dict[str, str] = {}
    """Properties passed to librdkafka."""
    properties_file: str | None = None
    """A file with more properties, one `name=value` per line; read again when it changes."""
    refresh_interval: float = 60.0
    metadata_timeout: float = 15.0


class MetricsSection(Section, frozen=True, kw_only=True):
    per_consumer: bool = False
    max_groups: int = 200
    """Groups with their own time series; the others are counted together as `_other`."""


class QuotaSection(Section, frozen=True, kw_only=True):
    """Limits per group or topic, checked when a call would exceed them. Existing data stays."""

    groups: int = 10_000
    topics: int = 1_000
    """Of one group."""
    partitions: int = 1_000_000
    """Of one group."""
    topic_partitions: int = 100_000
    """Of one topic."""
    metadata_bytes: int = 256
    """Of one committed offset."""
    commit_rate: float = 1_048_576.0
    """Bytes of committed offsets per second, of one group at one instance."""


class Settings(Section, frozen=True, kw_only=True):
    consumer_ttl: float = 30.0
    leader_ttl: float = 15.0
    reconcile_interval: float = 30.0
    shutdown_timeout: float = 20.0
    default_group: str = "default"
    default_prefix: str = ""
    """Key prefix of the default group, if it is not the one of its name: upstream's groupless prefix."""
    instance: InstanceSection = msgspec.field(default_factory=InstanceSection)
    store: StoreSection = StoreSection()
    grpc: ServerSettings = ServerSettings()
    auth: AuthSettings = AuthSettings()
    """How callers of gRPC are recognized."""
    http: HttpSettings = HttpSettings()
    group: GroupOptions = GroupOptions()
    """Options of a group that has none of its own."""
    topics: dict[str, dict[str, int]] = {}
    """group -> topic -> partitions."""
    spread: SpreadSettings = SpreadSettings()
    """How the leaders of groups are spread over the instances."""
    loads: LoadSettings = LoadSettings()
    """How reported loads are kept and used."""
    events: EventSettings = EventSettings()
    """The log of ownership events; off unless it has a directory."""
    quotas: QuotaSection = QuotaSection()
    kafka: KafkaSection = KafkaSection()
    gateway: GatewaySettings = GatewaySettings()
    """How Kafka clients are served, and the brokers behind the gateway."""
    log: LogSettings = LogSettings()
    metrics: MetricsSection = MetricsSection()

    def keys(self) -> Keys:
        return Keys(
            self.store.root,
            default_group=self.default_group,
            default_prefix=self.default_prefix,
        )

    def gateway_in_force(self) -> GatewaySettings:
        """The gateway's settings, with the brokers of `kafka` where they name none of their own."""
        gateway, kafka = self.gateway, self.kafka
        own = bool(gateway.upstream_properties or gateway.upstream_properties_file)
        return msgspec.structs.replace(
            gateway,
            upstream=gateway.upstream or kafka.bootstrap_servers,
            upstream_properties=gateway.upstream_properties if own else kafka.properties,
            upstream_properties_file=gateway.upstream_properties_file if own else kafka.properties_file,
        )

    def kafka_in_force(self) -> KafkaSection:
        """The brokers to discover topics from: those behind the gateway where no others are named."""
        if self.kafka.bootstrap_servers or not self.gateway.enabled:
            return self.kafka
        gateway = self.gateway_in_force()
        return msgspec.structs.replace(
            self.kafka,
            bootstrap_servers=gateway.upstream,
            properties=gateway.upstream_properties,
            properties_file=gateway.upstream_properties_file,
        )

    def advertised_address(self, port: int) -> str:
        """The address to advertise, given the port that gRPC is bound to."""
        if self.instance.address:
            return self.instance.address
        host = socket.gethostname() if self.grpc.host in _ANYWHERE else self.grpc.host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
