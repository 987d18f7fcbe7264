"""Lists every setting by its dotted key, with its meaning, its constraint and its flag.

The command line, the environment, the error messages, the JSON Schema and the reference page are generated from this
list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from assigner.settings import rules
from assigner.settings.model import Settings
from assigner.settings.rules import AllowedRange, Rule

PREFIX = "ASSIGNER_"


class Key(msgspec.Struct, frozen=True):
    name: str
    meaning: str
    rule: AllowedRange | Rule | None = None
    flag: str = ""
    """Flag of `assigner serve`; keys without one are set by `--set`."""
    secret: bool = False

    @property
    def environment(self) -> str:
        return PREFIX + self.name.replace(".", "_").upper()


SECRET_PROPERTY = re.compile(r"password|secret|token$|jaas|passphrase|oauthbearer\.config|\.pem$", re.IGNORECASE)
"""Matches names of Kafka properties whose values are secret."""
_COUNT = AllowedRange(least=1)
_PAUSE = AllowedRange(least=0, most=86_400)
_WINDOW = AllowedRange(least=65_535, most=2**31 - 1)
_KEYS = (
    Key("consumer_ttl", "Seconds a consumer may be silent before it counts as gone.", rules.TTL, "--consumer-ttl"),
    Key(
        "leader_ttl",
        "Seconds an instance may be silent before its groups get another leader.",
        rules.TTL,
        "--leader-ttl",
    ),
    Key(
        "reconcile_interval",
        "Seconds between passes that derive everything anew.",
        rules.SECONDS,
        "--reconcile-interval",
    ),
    Key(
        "shutdown_timeout",
        "Seconds a shutdown may take to hand over and end the streams.",
        rules.SECONDS,
        "--shutdown-timeout",
    ),
    Key("default_group", "Group of a client that names none.", rules.GROUP_NAME, "--default-group"),
    Key(
        "default_prefix", "Prefix at which the default group's keys are; empty: under its own name.", rules.GROUP_PREFIX
    ),
    Key("instance.name", "Name of this instance, unlike any other's.", rules.INSTANCE_NAME, "--instance"),
    Key(
        "instance.address",
        "host:port under which others reach this instance; empty: what gRPC is bound to.",
        rules.ADDRESS,
        "--advertise",
    ),
    Key(
        "store.backend",
        "Where state is kept: `memory`, `etcd`, or an installed backend's name.",
        rules.NOT_BLANK,
        "--store",
    ),
    Key("store.root", "Prefix of all keys.", rules.PREFIX, "--root"),
    Key(
        "store.endpoints",
        "Members of the store, as its backend wants them: host:port for etcd.",
        rules.ENDPOINTS,
        "--endpoints",
    ),
    Key("store.options", "What else an installed backend wants to know, by names of its own.", secret=True),
    Key("store.request_timeout", "Deadline of every request to the store, in seconds.", rules.SECONDS),
    Key(
        "store.hang_timeout", "Seconds without an answer to a ping after which a member counts as hung.", rules.SECONDS
    ),
    Key("store.tls_ca", "File with the authorities that vouch for the store."),
    Key("store.tls_cert", "File with the certificate shown to the store."),
    Key("store.tls_key", "File with the key of that certificate."),
    Key("store.tls_server_name", "Name the store's certificate must bear, if not the endpoint's."),
    Key("store.user", "User at the store."),
    Key("store.password", "Password at the store.", secret=True),
    Key("store.password_file", "File with that password, read anew at each login.", rules.SECRET_FILE),
    Key("grpc.host", "Interface gRPC listens on.", rules.NOT_BLANK, "--grpc-host"),
    Key("grpc.port", "Port gRPC listens on; 0: any free one.", rules.PORT, "--grpc-port"),
    Key("grpc.insecure", "Serve without TLS on an address others can reach.", None, "--insecure"),
    Key("grpc.tls_certificate", "File with the certificate gRPC shows, chain included.", None, "--tls-certificate"),
    Key("grpc.tls_key", "File with the key of that certificate.", None, "--tls-key"),
    Key("grpc.tls_client_ca", "File with the authority whose certificates clients must show.", None, "--tls-client-ca"),
    Key("grpc.tls_reload_interval", "Seconds between looks at the TLS files.", rules.SECONDS),
    Key("grpc.reflection", "Where gRPC reflection is offered; `loopback`: where only this machine can ask."),
    Key("grpc.backlog", "Connections that may wait to be accepted.", _COUNT),
    Key("grpc.max_connections", "Connections at once.", _COUNT),
    Key("grpc.max_connections_per_address", "Connections at once from one address (IPv6: one /64).", _COUNT),
    Key("grpc.max_streams", "Calls in progress at once, over all connections.", _COUNT),
    Key("grpc.max_streams_per_connection", "Calls in progress at once on one connection.", _COUNT),
    Key("grpc.max_streams_without_consumer", "The same while no consumer is registered over it.", _COUNT),
    Key("grpc.max_message_bytes", "Bytes of one request.", _COUNT),
    Key("grpc.max_metadata_bytes", "Bytes of one call's headers.", _COUNT),
    Key("grpc.max_batch", "Elements of any list in a request.", _COUNT),
    Key("grpc.stream_window", "Bytes a peer may send on a call before it is read.", _WINDOW),
    Key("grpc.connection_window", "Bytes a peer may send on a connection before it is read.", _WINDOW),
    Key("grpc.handshake_timeout", "Seconds for the TLS handshake, and for the HTTP/2 preface.", rules.SECONDS),
    Key("grpc.first_request_timeout", "Seconds a new connection may wait with its first call.", rules.SECONDS),
    Key("grpc.request_timeout", "Seconds from a call's headers to the end of its request.", rules.SECONDS),
    Key("grpc.idle_timeout", "Seconds after which a connection without calls is closed.", rules.SECONDS),
    Key("grpc.ping_interval", "Seconds between pings to a silent peer.", rules.SECONDS),
    Key("grpc.ping_timeout", "Seconds of silence after which a peer counts as dead.", rules.SECONDS),
    Key("grpc.slow_consumer_timeout", "Seconds a stream's reader may take nothing before it is closed.", rules.SECONDS),
    Key(
        "auth.required",
        "Whether each call must show an identity; by default where others than this machine can connect.",
        None,
        "--auth-required",
    ),
    Key("auth.keys", "Files or folders with the public keys that tokens are verified with.", None, "--auth-keys"),
    Key("auth.certificates", "File with the rules that make identities of client certificates.", None),
    Key("auth.reload_interval", "Seconds between looks at these files.", rules.SECONDS),
    Key("http.host", "Interface HTTP listens on.", rules.NOT_BLANK, "--http-host"),
    Key("http.port", "Port HTTP listens on; 0: any free one.", rules.PORT, "--http-port"),
    Key("http.stall", "Seconds without progress of the event loop after which /livez fails.", rules.SECONDS),
    Key("group.strategy", "Strategy that decides who owns what.", rules.NOT_BLANK, "--strategy"),
    Key("group.strategy_options", "Options passed to the strategy."),
    Key(
        "group.handoff_mode",
        "`overlap`: both owners hold a moving partition for a moment; `exclusive`: never.",
        None,
        "--handoff-mode",
    ),
    Key("group.standby_count", "Warm copies kept of each partition.", AllowedRange(least=0, most=10)),
    Key("group.copartitioned", "Sets of topics whose equal partitions move as one."),
    Key(
        "group.debounce",
        "Seconds in which changes are gathered before a plan is made.",
        AllowedRange(least=0, most=3600),
        "--debounce",
    ),
    Key("group.warming_timeout", "Seconds a new owner has to warm a partition.", rules.SECONDS, "--warming-timeout"),
    Key("group.freeze_timeout", "Seconds routers have to acknowledge a freeze.", rules.SECONDS),
    Key(
        "group.freeze_overdue",
        "When routers have not acknowledged a freeze in time: `abandon` the move, or `proceed` without them.",
    ),
    Key(
        "group.assignor",
        "Who assigns the partitions of classic Kafka groups, from the next rebalance on: a `member`, or the `server` "
        "by the group's strategy.",
    ),
    Key("group.release_timeout", "Seconds an old owner has to let a partition go.", rules.SECONDS, "--release-timeout"),
    Key(
        "group.balance_backoff",
        "Seconds in which a partition is not moved for balance after a move of it was abandoned.",
        AllowedRange(least=0, most=86_400),
    ),
    Key("group.max_concurrent_handoffs", "Handoffs in flight at once in a group.", _COUNT),
    Key("group.warm_concurrency", "Partitions a consumer warms at once.", _COUNT),
    Key("group.quarantine_after", "Owners that must fail to warm a partition before it is quarantined.", _COUNT),
    Key("group.paused", "Start with rebalancing paused."),
    Key(
        "group.rollout",
        "Rolling deploys: the generation that takes over, `auto` for the one that registered last; empty: none.",
        rules.GENERATION,
    ),
    Key(
        "group.rollout_cap",
        "Most partitions a member of the new generation gets during a rollout; 0: its fair share.",
        AllowedRange(least=0, most=1_000_000),
    ),
    Key("group.use_loads", "Plan by the loads that consumers report; else all partitions are alike."),
    Key("topics", "Partition counts: group, topic, number.", rules.TOPICS, "--topic"),
    Key("spread.slack", "How far above the even share of groups an instance may go.", AllowedRange(least=1, most=10)),
    Key("spread.stagger", "Seconds each instance waits for those that a free group suits better.", _PAUSE),
    Key("spread.settle", "Seconds without a change of instances before groups are handed over.", _PAUSE),
    Key("spread.batch", "Groups handed over at a time.", _COUNT),
    Key("spread.pause", "Seconds between two such batches.", _PAUSE),
    Key("spread.handover_backoff", "Seconds before a group that came back is handed over again; doubles.", _PAUSE),
    Key("loads.interval", "Seconds between two writes of a record of loads by one instance, at least.", rules.SECONDS),
    Key("loads.smoothing", "Seconds in which a new load makes up two thirds of what is known of it.", rules.SECONDS),
    Key("loads.threshold", "Relative change from which on a load is worth writing.", AllowedRange(least=0, most=10)),
    Key("loads.stale_after", "Seconds a reported load counts.", rules.SECONDS),
    Key("loads.rebalance_interval", "Seconds between two plans for load's sake, at least.", _PAUSE),
    Key("events.directory", "Where ownership events are logged; empty: they are not.", None, "--events"),
    Key("events.segment_bytes", "Bytes of a segment of that log.", AllowedRange(least=1_000, most=2**31 - 1)),
    Key("events.segment_events", "Events of a segment.", AllowedRange(least=1, most=100_000_000)),
    Key("events.segment_seconds", "Seconds after which a segment with events in it is completed.", rules.SECONDS),
    Key(
        "events.keep_segments",
        "Complete segments of an instance that are kept; the oldest is deleted.",
        AllowedRange(least=1, most=1_000_000),
    ),
    Key(
        "events.queue",
        "Events that may wait for the disk; beyond, they are dropped.",
        AllowedRange(least=1, most=10_000_000),
    ),
    Key("events.sync", "When events are forced to the disk: `segment` (before it is complete), `batch`, `never`."),
    Key("quotas.groups", "Groups there may be before no more are made.", AllowedRange(least=1, most=10_000)),
    Key("quotas.topics", "Topics of a group.", AllowedRange(least=1, most=100_000)),
    Key("quotas.partitions", "Partitions of a group, over all its topics.", AllowedRange(least=1, most=100_000_000)),
    Key("quotas.topic_partitions", "Partitions of a topic.", AllowedRange(least=1, most=1_000_000)),
    Key("quotas.metadata_bytes", "Bytes of the metadata of a committed offset.", AllowedRange(least=0, most=4_096)),
    Key(
        "quotas.commit_rate",
        "Bytes of committed offsets a second, of a group at an instance; more is slowed down, then refused.",
        AllowedRange(least=1_000, most=1_000_000_000),
    ),
    Key("kafka.bootstrap_servers", "Brokers to discover partition counts from; empty: none.", None, "--kafka"),
    Key("kafka.properties", "Further librdkafka properties, such as sasl.* and ssl.*.", secret=True),
    Key(
        "kafka.properties_file",
        "File with more of them, a name=value in a line, read anew when it changes.",
        rules.PROPERTIES_FILE,
    ),
    Key("kafka.refresh_interval", "Seconds between looks at the topics in Kafka.", rules.SECONDS),
    Key("kafka.metadata_timeout", "Seconds a metadata request may take.", rules.SECONDS),
    Key("gateway.enabled", "Serve Kafka clients too; `assigner gateway` always does.", None, "--gateway"),
    Key("gateway.host", "Interface the gateway listens on.", rules.NOT_BLANK, "--gateway-host"),
    Key(
        "gateway.port",
        "Bootstrap port of Kafka clients, which stands for no broker; 0: any free one.",
        rules.PORT,
        "--gateway-port",
    ),
    Key(
        "gateway.broker_base_port",
        "Port of the broker with node id 0; broker n is at this port + n. 0: the bootstrap port + 1.",
        rules.PORT,
    ),
    Key(
        "gateway.advertised_host",
        "Host by which Kafka clients reach the gateway; empty: what it is bound to.",
        None,
        "--gateway-advertise",
    ),
    Key("gateway.insecure", "Serve without TLS and SASL on an address others can reach.", None, "--gateway-insecure"),
    Key("gateway.org", "Organization whose groups clients use, unless their login names another; empty: the default."),
    Key(
        "gateway.upstream",
        "Bootstrap servers of the cluster behind the gateway; empty: `kafka.bootstrap_servers`.",
        None,
        "--gateway-upstream",
    ),
    Key(
        "gateway.upstream_properties",
        "librdkafka's properties of TLS and SASL for its brokers; without any: those of `kafka`.",
        secret=True,
    ),
    Key(
        "gateway.upstream_properties_file",
        "File with more of them, a name=value in a line, read anew when it changes.",
        rules.PROPERTIES_FILE,
    ),
    Key("gateway.connect_timeout", "Seconds to connect to a broker, TLS and SASL included.", rules.SECONDS),
    Key("gateway.upstream_timeout", "Seconds for a broker's answer to the gateway's own requests.", rules.SECONDS),
    Key("gateway.tls_certificate", "File with the certificate the gateway shows, chain included."),
    Key("gateway.tls_key", "File with the key of that certificate."),
    Key("gateway.tls_client_ca", "File with the authority whose certificates clients must show."),
    Key("gateway.tls_reload_interval", "Seconds between looks at the TLS files.", rules.SECONDS),
    Key("gateway.sasl_mechanisms", "Mechanisms by which clients must authenticate; none: they need not."),
    Key("gateway.sasl_credentials", "File with the users of `PLAIN` and `SCRAM`."),
    Key(
        "gateway.leader_tls_ca",
        "File with the authorities of the instances that lead classic groups; empty: they are called without TLS.",
    ),
    Key("gateway.leader_tls_certificate", "File with the certificate shown to them."),
    Key("gateway.leader_tls_key", "File with the key of that certificate."),
    Key("gateway.leader_token_file", "File with the token shown to them, read anew when it changes."),
    Key("gateway.backlog", "Connections that may wait to be accepted.", _COUNT),
    Key("gateway.max_connections", "Connections at once.", _COUNT),
    Key("gateway.max_connections_per_address", "Connections at once from one address (IPv6: one /64).", _COUNT),
    Key("gateway.max_request_bytes", "Bytes of a request that is passed on.", AllowedRange(least=1, most=2**31 - 1)),
    Key("gateway.max_group_request_bytes", "Bytes of a request that the gateway reads whole.", _COUNT),
    Key("gateway.max_requests_in_flight", "Requests of a connection that wait for their answers.", _COUNT),
    Key("gateway.handshake_timeout", "Seconds for the TLS handshake, and again for SASL.", rules.SECONDS),
    Key("gateway.request_timeout", "Seconds from a request's first byte to its last.", rules.SECONDS),
    Key("gateway.idle_timeout", "Seconds after which a connection without requests is closed.", rules.SECONDS),
    Key(
        "gateway.heartbeat_interval",
        "Seconds between heartbeats of Kafka 4 members; 0: 5, or a third of `consumer_ttl` if that is less.",
        _PAUSE,
    ),
    Key("gateway.initial_rebalance_delay", "Seconds an empty classic group waits for more members.", _PAUSE),
    Key("gateway.min_session_timeout", "Least `session.timeout.ms` of classic members, in seconds.", rules.SECONDS),
    Key("gateway.max_session_timeout", "Most `session.timeout.ms` of classic members, in seconds.", rules.SECONDS),
    Key(
        "gateway.max_group_size",
        "Members of a group: of a classic one, and those who are there when a Kafka 4 member joins.",
        AllowedRange(least=1, most=100_000),
    ),
    Key(
        "gateway.offsets_retention",
        "Seconds the offsets of a classic group without members are kept.",
        AllowedRange(above=0, most=10 * 365 * 86_400),
    ),
    Key("log.level", "Least severity that is logged.", None, "--log-level"),
    Key("log.format", "`json`, `text`, or `auto`: text where stderr is a terminal.", None, "--log-format"),
    Key("metrics.per_consumer", "Also publish series per consumer.", None, "--metrics-per-consumer"),
    Key(
        "metrics.max_groups",
        "Groups with series of their own; the rest is counted as `_other`.",
        AllowedRange(least=1, most=100_000),
    ),
)

CATALOG = {key.name: key for key in _KEYS}

NOT_SETTINGS = frozenset({"group.rebalance_requests"})
"""Fields of other packages' structs that are not settings."""


class Leaf(msgspec.Struct, frozen=True):
    """A settable field: its key, type and default."""

    key: Key
    type: Any
    default: Any


@cache
def leaves() -> dict[str, Leaf]:
    """Every settable field of `Settings`, in the order of the catalog."""
    found = dict(_fields(Settings, ""))
    return {name: Leaf(key, *found[name]) for name, key in CATALOG.items()}


def _fields(kind: type[msgspec.Struct], path: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for field in msgspec.structs.fields(kind):
        name = f"{path}{field.name}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _fields(field.type, f"{name}.")
        elif name not in NOT_SETTINGS:
            # A generated default, such as the instance's name, has no value to show.
            fresh = field.default_factory
            literal = fresh() if fresh in (dict, list) else ... if fresh is not msgspec.NODEFAULT else field.default
            yield name, (field.type, literal)


def field_names() -> set[str]:
    """Every field of the struct, in the catalog or not; a test compares them with the catalog."""
    return {name for name, _ in _fields(Settings, "")}
