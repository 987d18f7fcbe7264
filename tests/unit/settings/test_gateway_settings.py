"""Settings of the gateway: what is taken from the section of the brokers, and what is refused with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from assigner.errors import InvalidInput
from assigner.gateway.settings import GatewaySettings, SaslMechanism
from assigner.settings import KafkaSection, Settings, load
from assigner.settings.rendering import REDACTED, shown

ENABLED = "gateway.enabled=true"


def refusal(*assignments: str) -> str:
    with pytest.raises(InvalidInput) as refused:
        load(assignments=assignments)
    return str(refused.value)


@pytest.mark.parametrize(
    ("assignments", "why"),
    [
        (
            ["gateway.sasl_mechanisms=PLAIN"],
            "gateway: sasl_mechanisms has PLAIN, which needs users: set sasl_credentials",
        ),
        (["gateway.sasl_credentials=users.toml"], "has neither PLAIN nor a SCRAM mechanism"),
        (
            ["gateway.sasl_mechanisms=GSSAPI"],
            "gateway.sasl_mechanisms: 'GSSAPI' is not a list, each one of PLAIN, SCRAM-SHA-256",
        ),
        (["gateway.tls_certificate=a.pem"], "gateway: tls_certificate and tls_key go together; set both or none"),
        (["gateway.tls_client_ca=a.pem"], "gateway: tls_client_ca needs tls_certificate and tls_key too"),
        (["gateway.leader_tls_key=a.pem"], "gateway: leader_tls_certificate and leader_tls_key go together"),
        (["gateway.min_session_timeout=60", "gateway.max_session_timeout=50"], "no member could join"),
        (["gateway.max_connections=0"], "gateway.max_connections must be at least 1"),
        ([ENABLED, "gateway.port=8080"], "http.port and gateway.port are both 8080; give each its own"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_section(assignments: list[str], why: str) -> None:
    assert why in refusal(*assignments)


def test_a_gateway_that_is_not_wanted_takes_no_port() -> None:
    assert load(assignments=["gateway.port=8080"]).settings.gateway.port == 8080


def test_the_brokers_are_those_of_kafka_unless_others_are_named() -> None:
    kafka = KafkaSection(bootstrap_servers="k:1", properties={"security.protocol": "ssl"}, properties_file="f")
    gateway = Settings(kafka=kafka).gateway_in_force()
    assert (gateway.upstream, gateway.upstream_properties_file) == ("k:1", "f")
    assert gateway.upstream_properties == {"security.protocol": "ssl"}
    own = GatewaySettings(upstream="u:1", upstream_properties={"security.protocol": "plaintext"})
    gateway = Settings(kafka=kafka, gateway=own).gateway_in_force()
    assert (gateway.upstream, gateway.upstream_properties_file) == ("u:1", None)
    assert gateway.upstream_properties == {"security.protocol": "plaintext"}


def test_topics_are_discovered_from_the_brokers_behind_the_gateway_where_no_others_are_named() -> None:
    gateway = GatewaySettings(enabled=True, upstream="u:1")
    assert Settings(gateway=gateway).kafka_in_force().bootstrap_servers == "u:1"
    named = KafkaSection(bootstrap_servers="k:1")
    assert Settings(gateway=gateway, kafka=named).kafka_in_force().bootstrap_servers == "k:1"
    assert Settings(gateway=GatewaySettings(upstream="u:1")).kafka_in_force().bootstrap_servers == ""


def test_the_heartbeat_interval_is_a_third_of_a_short_ttl() -> None:
    assert GatewaySettings().interval(30.0) == 5.0
    assert GatewaySettings().interval(6.0) == 2.0
    assert GatewaySettings(heartbeat_interval=1.0).interval(30.0) == 1.0


def test_ports_of_brokers_begin_after_the_bootstrap_port() -> None:
    assert GatewaySettings(port=100).first_broker_port == 101
    assert GatewaySettings(port=100, broker_base_port=500).first_broker_port == 500
    assert GatewaySettings(port=0).first_broker_port == 0


def test_secrets_of_the_gateway_are_not_shown_and_files_that_all_can_read_are_named(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text("")
    users.chmod(0o644)
    properties = '{"sasl.password": "hunter2", "sasl.username": "me"}'
    loaded = load(
        environment={
            "ASSIGNER_GATEWAY_UPSTREAM_PROPERTIES": properties,
            "ASSIGNER_GATEWAY_SASL_CREDENTIALS": str(users),
            "ASSIGNER_GATEWAY_SASL_MECHANISMS": "PLAIN,SCRAM-SHA-256",
        }
    )
    assert loaded.settings.gateway.sasl_mechanisms == (SaslMechanism.PLAIN, SaslMechanism.SCRAM_SHA_256)
    assert shown(loaded.settings)["gateway.upstream_properties"] == {"sasl.password": REDACTED, "sasl.username": "me"}
    assert any("gateway.sasl_credentials can be read by everybody" in note for note in loaded.notes)
