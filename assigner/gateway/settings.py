"""Settings of the gateway for Kafka clients: where it listens, the brokers behind it, every limit it enforces, and the
times of its groups. Times in seconds, sizes in bytes."""

from __future__ import annotations

import math
from enum import Enum

import msgspec

from assigner.errors import InvalidInput

GATEWAY_PORT = 19_092
"""Not Kafka's own: a broker may run on the same machine."""
_LARGEST_PORT = 65_535
_MAY_BE_ZERO = frozenset({"port", "broker_base_port", "initial_rebalance_delay", "heartbeat_interval"})


class SaslMechanism(str, Enum):
    """How a Kafka client may say who it is."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    """A token of this service, as gRPC takes it (`auth.keys`)."""


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False
    """Whether `assigner serve` runs a gateway too. `assigner gateway` always does."""
    host: str = "127.0.0.1"
    port: int = GATEWAY_PORT
    """The bootstrap port, which stands for no broker; 0: any free one."""
    broker_base_port: int = 0
    """The port of the broker with node id 0; broker n is at this port + n, so that every gateway of a cluster has the
    same ports. 0: the bootstrap port + 1, or any free ones where that is 0."""
    advertised_host: str = ""
    """The host by which clients reach this gateway; empty: what it is bound to, or the machine's name."""
    insecure: bool = False
    """Serve without TLS and SASL on an address that others can reach."""
    org: str = ""
    """The organization whose groups clients of this gateway use; a SASL user's own organization comes before it."""

    upstream: str = ""
    """Bootstrap servers of the Kafka cluster behind the gateway; empty: `kafka.bootstrap_servers`."""
    upstream_properties: dict[str, str] = {}
    """librdkafka's properties of TLS and SASL for the connections to the brokers; empty: `kafka.properties`."""
    upstream_properties_file: str | None = None
    """A file with more of them; None, with no properties above: `kafka.properties_file`."""
    connect_timeout: float = 10.0
    """To connect to a broker, TLS and SASL included."""
    upstream_timeout: float = 60.0
    """For a broker's answer to a request that the gateway made by itself."""

    tls_certificate: str = ""
    """A file in PEM, the chain included."""
    tls_key: str = ""
    tls_client_ca: str = ""
    """If set, clients must show a certificate of this authority."""
    tls_reload_interval: float = 5.0
    sasl_mechanisms: tuple[SaslMechanism, ...] = ()
    """If any, clients must authenticate."""
    sasl_credentials: str = ""
    """A file with the users of PLAIN and SCRAM."""

    leader_tls_ca: str = ""
    """The authorities that vouch for the instances that lead classic groups; empty, with no certificate: these are
    called without TLS."""
    leader_tls_certificate: str = ""
    """Shown to them."""
    leader_tls_key: str = ""
    leader_token_file: str = ""
    """The token that is shown to them; the role is `gateway`."""

    backlog: int = 1024
    max_connections: int = 10_000
    max_connections_per_address: int = 5_000
    """Half of all, because many clients may stand behind one address: a NAT, a node of a cluster, a proxy."""
    max_request_bytes: int = 100 * 1024 * 1024
    """Of one request that is passed on. Kafka's own default."""
    max_group_request_bytes: int = 8 * 1024 * 1024
    """Of one request that the gateway reads whole."""
    max_requests_in_flight: int = 100
    """Of one connection: more are not read until answers have been sent."""
    handshake_timeout: float = 10.0
    """For TLS, and again for SASL."""
    request_timeout: float = 30.0
    """From a request's first byte to its last."""
    idle_timeout: float = 600.0
    """A connection without requests is closed after this. Kafka's own default."""

    heartbeat_interval: float = 0.0
    """What Kafka 4 members are told; 0: 5 s, or a third of `consumer_ttl` if that is less."""
    initial_rebalance_delay: float = 3.0
    """How long the first rebalance of an empty classic group waits for more members."""
    min_session_timeout: float = 6.0
    max_session_timeout: float = 1_800.0
    """Bounds of `session.timeout.ms` of classic members."""
    max_group_size: int = 2_000
    """Members of a group: of a classic one, and those who are there when a Kafka 4 member joins."""
    offsets_retention: float = 7 * 86_400.0
    """How long offsets of a classic group without members are kept."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            least_is_zero = name in _MAY_BE_ZERO
            if not math.isfinite(value) or value < 0 or (value == 0 and not least_is_zero):
                raise InvalidInput(f"{name} is {value}; it must be a number {'from' if least_is_zero else 'above'} 0")
        for name in ("port", "broker_base_port"):
            if getattr(self, name) > _LARGEST_PORT:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it must be 0 to {_LARGEST_PORT}")
        if self.min_session_timeout > self.max_session_timeout:
            raise InvalidInput(
                f"min_session_timeout {self.min_session_timeout:g} is above max_session_timeout "
                f"{self.max_session_timeout:g}; no member could join"
            )
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidInput("tls_certificate and tls_key go together; set both or none")
        if self.tls_client_ca and not self.tls_certificate:
            raise InvalidInput("tls_client_ca needs tls_certificate and tls_key too")
        if bool(self.leader_tls_certificate) != bool(self.leader_tls_key):
            raise InvalidInput("leader_tls_certificate and leader_tls_key go together; set both or none")
        self._check_sasl()

    def _check_sasl(self) -> None:
        with_password = [one.value for one in self.sasl_mechanisms if one is not SaslMechanism.OAUTHBEARER]
        if with_password and not self.sasl_credentials:
            raise InvalidInput(f"sasl_mechanisms has {with_password[0]}, which needs users: set sasl_credentials")
        if self.sasl_credentials and not with_password:
            raise InvalidInput("sasl_credentials is set, but sasl_mechanisms has neither PLAIN nor a SCRAM mechanism")

    def interval(self, consumer_ttl: float) -> float:
        """The heartbeat interval that Kafka 4 members are told."""
        return self.heartbeat_interval or min(5.0, consumer_ttl / 3)

    @property
    def leaders_use_tls(self) -> bool:
        return bool(self.leader_tls_ca or self.leader_tls_certificate)

    @property
    def first_broker_port(self) -> int:
        """The port of the broker with node id 0; 0: any free ones."""
        return self.broker_base_port or (self.port + 1 if self.port else 0)
