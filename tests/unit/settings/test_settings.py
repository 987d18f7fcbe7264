"""Settings: who wins, what is refused and how it is said, what is hidden, and that the reference page is true."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import msgspec
import pytest

from assigner.errors import InvalidInput
from assigner.model.records import HandoffMode
from assigner.settings import InstanceSection, Settings, load
from assigner.settings.catalog import CATALOG, field_names, leaves
from assigner.settings.rendering import REDACTED, as_json, as_toml, reference_tables, schema, shown

PAGE = Path(__file__).parents[3] / "docs/reference/settings.md"


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "assigner.toml"
    path.write_text(text)
    return str(path)


def refusal(**sources: object) -> str:
    with pytest.raises(InvalidInput) as caught:
        load(**sources)  # type: ignore[arg-type]
    return str(caught.value)


# --- who wins ----------------------------------------------------------------------------------------------------


def test_without_any_source_the_defaults_hold() -> None:
    loaded = load()
    expected = msgspec.structs.replace(Settings(), instance=loaded.settings.instance)
    assert loaded.settings == expected
    assert loaded.origins == {}


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    config = write(tmp_path, "consumer_ttl = 10\nleader_ttl = 11\nshutdown_timeout = 12\n")
    environment = {"ASSIGNER_LEADER_TTL": "21", "ASSIGNER_SHUTDOWN_TIMEOUT": "22"}
    loaded = load(flags={"shutdown_timeout": "32"}, environment=environment, config=config)
    settings = loaded.settings
    assert (settings.consumer_ttl, settings.leader_ttl, settings.shutdown_timeout) == (10, 21, 32)
    assert loaded.origin("consumer_ttl") == f"file {config}"
    assert loaded.origin("leader_ttl") == "environment ASSIGNER_LEADER_TTL"
    assert loaded.origin("shutdown_timeout") == "flag --shutdown-timeout"
    assert loaded.origin("http.port") == "default"


def test_our_name_beats_upstreams_for_the_same_key() -> None:
    loaded = load(environment={"BIND_PORT": "1", "ASSIGNER_GRPC_PORT": "2"})
    assert loaded.settings.grpc.port == 2


def test_set_reaches_every_key_and_beats_the_rest() -> None:
    loaded = load(
        assignments=['group.copartitioned=[["a", "b"]]', 'kafka.properties={"k": "v"}', "grpc.port=7"],
        flags={"grpc.port": "6"},
    )
    assert loaded.settings.group.copartitioned == (("a", "b"),)
    assert loaded.settings.kafka.properties == {"k": "v"}
    assert loaded.settings.grpc.port == 7


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    config = write(tmp_path, "[http]\nport = 99\n")
    assert load(environment={"ASSIGNER_CONFIG": config}).settings.http.port == 99


def test_tables_and_enums_are_read_from_the_file(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        '[group]\nhandoff_mode = "exclusive"\n[topics.orders]\n"a.b" = 3\n[store]\nendpoints = ["h:1", "h:2"]\n',
    )
    settings = load(config=config).settings
    assert settings.group.handoff_mode is HandoffMode.EXCLUSIVE
    assert settings.topics == {"orders": {"a.b": 3}}
    assert settings.store.endpoints == ("h:1", "h:2")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("No", False), ("off", False)])
def test_the_environment_says_yes_and_no_in_many_words(text: str, value: bool) -> None:
    assert load(environment={"ASSIGNER_METRICS_PER_CONSUMER": text}).settings.metrics.per_consumer is value


def test_lists_in_the_environment_are_separated_by_commas() -> None:
    settings = load(environment={"ASSIGNER_STORE_ENDPOINTS": "a:1, b:2,"}).settings
    assert settings.store.endpoints == ("a:1", "b:2")


def test_two_instances_never_get_the_same_name() -> None:
    assert InstanceSection().name != InstanceSection().name
    assert load().settings.instance.name != load().settings.instance.name


# --- upstream's names --------------------------------------------------------------------------------------------


def test_an_upstream_deployment_is_understood() -> None:
    loaded = load(
        environment={
            "ETCD_ENDPOINTS": "http://etcd-0:2379,http://etcd-1:2379",
            "ETCD_PREFIX": "/kafka-assigner/",
            "BIND_HOST": "127.0.0.2",
            "BIND_PORT": "6000",
            "CONSUMER_LEASE_TTL_SECS": "31",
            "ASSIGNER_NAME": "assigner-7",
            "LEADER_LEASE_TTL_SECS": "16",
            "REBALANCE_DEBOUNCE_INTERVAL_SECS": "2",
            "HANDOFF_TIMEOUT_SECS": "400",
            "KAFKA_HOSTS": "kafka:9092",
            "KAFKA_TLS": "true",
            "KAFKA_METADATA_TIMEOUT_SECS": "14",
            "ASSIGNMENT_STRATEGY": "sticky-balanced",
            "RUST_LOG": "warn,h2=info",
        }
    )
    settings = loaded.settings
    assert settings.store.backend == "etcd"
    assert settings.store.endpoints == ("etcd-0:2379", "etcd-1:2379")
    assert settings.default_prefix == "/kafka-assigner/"
    assert (settings.grpc.host, settings.grpc.port) == ("127.0.0.2", 6000)
    assert (settings.consumer_ttl, settings.leader_ttl) == (31, 16)
    assert settings.instance.name == "assigner-7"
    assert (settings.group.debounce, settings.group.warming_timeout) == (2, 400)
    assert settings.group.strategy == "sticky_balanced"
    assert settings.kafka.bootstrap_servers == "kafka:9092"
    assert settings.kafka.properties == {"security.protocol": "ssl"}
    assert settings.kafka.metadata_timeout == 14
    assert settings.log.level.value == "warning"


def test_upstream_names_without_use_are_accepted_and_reported() -> None:
    loaded = load(environment={"STREAM_CHANNEL_SIZE": "1024", "K8S_AWARENESS_ENABLED": "true"})
    assert len(loaded.notes) == 2
    assert "STREAM_CHANNEL_SIZE has no effect" in loaded.notes[0]


def test_a_prefix_that_is_a_groups_own_place_names_that_group_as_the_default() -> None:
    settings = load(environment={"ETCD_PREFIX": "/kafka-assigner/dedup/"}).settings
    assert settings.default_group == "dedup"
    assert settings.keys().group("dedup").prefix == "/kafka-assigner/dedup/"


@pytest.mark.parametrize("prefix", ["/kafka-assigner/dedup/", "/elsewhere/", "/kafka-assigner/team/dedup/"])
def test_a_deployments_own_branches_are_below_its_prefix_unless_a_root_is_named(prefix: str) -> None:
    keys = load(environment={"ETCD_PREFIX": prefix}).settings.keys()
    assert keys.instance("assigner-0") == f"{prefix}~instances/assigner-0"
    assert keys.group(keys.default_group).prefix == prefix
    named = load(environment={"ETCD_PREFIX": prefix, "ASSIGNER_STORE_ROOT": "/shared/"}).settings.keys()
    assert named.instance("assigner-0") == "/shared/~instances/assigner-0"
    assert named.group(named.default_group).prefix == prefix


def test_one_place_reached_under_two_group_names_is_refused() -> None:
    environment = {"ETCD_PREFIX": "/kafka-assigner/dedup/", "ASSIGNER_DEFAULT_GROUP": "other"}
    assert load(environment=environment).settings.default_group == "other", "it is the only one there"
    said = refusal(environment={**environment, "ASSIGNER_STORE_ROOT": "/kafka-assigner/"})
    assert "set default_group to 'dedup'" in said


def test_a_file_that_chooses_the_store_is_not_overruled_by_upstreams_endpoints(tmp_path: Path) -> None:
    config = write(tmp_path, '[store]\nbackend = "memory"\n')
    assert load(environment={"ETCD_ENDPOINTS": "h:1"}, config=config).settings.store.backend == "memory"


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("consumr_ttl = 3", "unknown key consumr_ttl; did you mean consumer_ttl?"),
        ("[htttp]\nport = 3", "unknown key htttp"),
        ("[http]\nprot = 3", "unknown key http.prot; did you mean http.port?"),
        ("[group]\nrebalance_requests = 3", "unknown key group.rebalance_requests"),
        ("[http]\nport = '80'", "http.port: '80' is not a whole number"),
        ("[http]\nport = 80.5", "http.port: 80.5 is not a whole number"),
        ("http = 3", "unknown key http"),
        ("[http]\nport = 65536", "http.port must be at most 65535; it is 65536"),
        ("consumer_ttl = 0", "consumer_ttl must be at least 1"),
        ("consumer_ttl = nan", "consumer_ttl must be a number"),
        ("consumer_ttl = true", "consumer_ttl: True is not a number"),
        ('[group]\nhandoff_mode = "x"', "group.handoff_mode: 'x' is not one of overlap, exclusive"),
        ('[log]\nlevel = "loud"', "log.level: 'loud' is not one of debug, info, warning, error"),
        ("[topics.g]\nt = 0", "has 0 partitions; give it 1 to"),
        ("[topics.g]\n't/1' = 1", "is not a Kafka topic name"),
        ("[topics.config]\nt = 1", "group 'config' is the name of a branch"),
        ("default_group = ''", "group is empty"),
        ("[store]\nroot = 'x'", "store.root must begin and end with '/'"),
        ("[store]\nendpoints = ['x', '']", "store.endpoints holds an empty one"),
        ("[store]\nendpoints = []", "store.endpoints must name at least one"),
        ("[store]\ntls_cert = 'c'", "store.tls_cert and store.tls_key go together"),
        ("[store]\npassword = 'p'", "store.password is set without store.user"),
        ("[instance]\nname = ''", "instance.name is not allowed: instance is empty"),
        ("[instance]\naddress = 'here'", "instance.address holds 'here'"),
        ("[grpc]\nport = 80\n[http]\nport = 80", "grpc.port and http.port are both 80"),
        ("[loads]\ninterval = 400", "loads.stale_after (600 s) is less than twice loads.interval (400 s)"),
        ("[grpc]\nping_timeout = 1", "ping_timeout"),
        ("[grpc]\ntls_key = 'k'", "tls_certificate and tls_key go together"),
        ("= 3", "are not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_key_rule_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(config=write(tmp_path, text))


def test_every_problem_is_listed_at_once(tmp_path: Path) -> None:
    said = refusal(
        config=write(tmp_path, "consumr_ttl = 3"),
        environment={"ASSIGNER_HTTP_PROT": "1", "BIND_PORT": "x"},
        assignments=["nonsense", "grpc.prt=1"],
        flags={"leader_ttl": "-1"},
    )
    assert said.startswith("6 problems in the settings:")
    assert "ASSIGNER_HTTP_PROT; did you mean ASSIGNER_HTTP_PORT?" in said
    assert "environment BIND_PORT: grpc.port: 'x' is not a whole number" in said
    assert "--set nonsense: write it as KEY=VALUE" in said
    assert "flag --leader-ttl: leader_ttl must be at least 1" in said


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "absent.toml: No such file or directory" in refusal(config=str(tmp_path / "absent.toml"))


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    assert "larger than" in refusal(config=write(tmp_path, "#" * 1_000_001))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    assert "are not TOML" in refusal(config=str(path))


def test_a_wrong_secret_is_not_repeated() -> None:
    said = refusal(environment={"ASSIGNER_KAFKA_PROPERTIES": "sasl.password=hunter2"})
    assert "hunter2" not in said


def test_kubernetes_service_links_are_no_settings() -> None:
    loaded = load(
        environment={
            "ASSIGNER_PORT": "tcp://10.0.0.1:50051",
            "ASSIGNER_PORT_50051_TCP_ADDR": "10.0.0.1",
            "ASSIGNER_SERVICE_HOST": "10.0.0.1",
            "ASSIGNER_SERVICE_PORT_GRPC": "50051",
            "ASSIGNER_HEADLESS_SERVICE_PORT": "50051",
            "ASSIGNER_GRPC_PORT": "tcp://10.0.0.1:50051",
        }
    )
    assert loaded.settings.grpc.port == 50051
    assert loaded.origins == {}


def test_a_request_timeout_as_long_as_the_lease_is_worth_a_note() -> None:
    loaded = load(environment={"ASSIGNER_STORE_BACKEND": "etcd", "ASSIGNER_LEADER_TTL": "5"})
    assert any("costs the leadership" in note for note in loaded.notes)


# --- what is shown -----------------------------------------------------------------------------------------------


def secretive() -> Settings:
    return load(
        environment={
            "ASSIGNER_STORE_USER": "u",
            "ASSIGNER_STORE_PASSWORD": "hunter2",
            "ASSIGNER_KAFKA_PROPERTIES": '{"sasl.password": "hunter3", "sasl.mechanism": "PLAIN"}',
            "ASSIGNER_KAFKA_BOOTSTRAP_SERVERS": "sasl://me:hunter4@kafka:9092",
        }
    ).settings


def test_secrets_are_never_shown() -> None:
    text = json.dumps(shown(secretive()))
    assert "hunter" not in text
    assert text.count(REDACTED) == 3
    assert "PLAIN" in text


def test_printed_toml_loads_to_the_same_settings(tmp_path: Path) -> None:
    environment = {
        "ASSIGNER_TOPICS": '{"g \\"1\\"": {"a.b": 3}}',
        "ASSIGNER_GROUP_STRATEGY_OPTIONS": '{"x": [1, true, 2.5, "y"]}',
        "ASSIGNER_INSTANCE_NAME": "caf\u00e9 \u2603",
    }
    loaded = load(environment=environment)
    text = as_toml(loaded)
    assert load(config=write(tmp_path, text)).settings == loaded.settings
    assert "# environment ASSIGNER_TOPICS" in text


def test_printed_json_says_where_each_value_came_from() -> None:
    printed = as_json(load(environment={"BIND_PORT": "7"}))
    assert printed["settings"]["grpc"]["port"] == 7
    assert printed["origins"] == {"grpc.port": "environment BIND_PORT"}
    json.dumps(printed)


def test_the_schema_knows_ranges_and_meanings_and_refuses_unknown_keys() -> None:
    made = schema()
    http = made["$defs"]["HttpSettings"]
    assert http["additionalProperties"] is False
    assert http["properties"]["port"]["maximum"] == 65535
    assert http["properties"]["port"]["description"] == CATALOG["http.port"].meaning
    assert "rebalance_requests" not in made["$defs"]["GroupOptions"]["properties"]
    json.dumps(made)


def test_every_field_is_in_the_catalog_and_every_entry_has_a_field() -> None:
    assert set(CATALOG) == field_names()


def test_environment_names_and_flags_are_unique() -> None:
    environment = [key.environment for key in CATALOG.values()]
    flags = [key.flag for key in CATALOG.values() if key.flag]
    assert len(environment) == len(set(environment))
    assert len(flags) == len(set(flags))


def test_every_default_keeps_its_own_rule() -> None:
    for leaf in leaves().values():
        if leaf.key.rule and leaf.default is not ...:
            assert leaf.key.rule.broken_by(leaf.default) is None, leaf.key.name


def test_the_reference_page_is_the_catalog() -> None:
    """To renew it: python -m assigner.settings.rendering docs/reference/settings.md"""
    assert reference_tables() in PAGE.read_text()


def test_printed_toml_is_toml_even_when_nothing_is_set() -> None:
    tree = tomllib.loads(as_toml(load()))
    assert tree["store"]["backend"] == "memory"


# --- addresses ---------------------------------------------------------------------------------------------------


def test_the_advertised_address_is_reachable_by_others() -> None:
    assert load(flags={"instance.address": "pod-1:50051"}).settings.advertised_address(1) == "pod-1:50051"
    assert load(flags={"grpc.host": "10.0.0.1"}).settings.advertised_address(5) == "10.0.0.1:5"
    assert load(flags={"grpc.host": "::1"}).settings.advertised_address(5) == "[::1]:5"
    assert "0.0.0.0" not in load(flags={"grpc.host": "0.0.0.0"}).settings.advertised_address(5)


def test_https_in_an_upstream_endpoint_is_kept_because_it_asks_for_tls() -> None:
    settings = load(environment={"ETCD_ENDPOINTS": "https://etcd-0:2379/, http://etcd-1:2379"}).settings
    assert settings.store.endpoints == ("https://etcd-0:2379", "etcd-1:2379")
