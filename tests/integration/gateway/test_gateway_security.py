"""TLS and SASL on both sides of a gateway: what unmodified clients need to get in, and the gateway to the brokers."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import KafkaError, Producer
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from assigner.auth.authenticator import Authenticator
from assigner.clock import SystemClock
from assigner.errors import InvalidInput
from assigner.gateway.login.credentials import credential_line
from assigner.gateway.server import GatewayServer
from assigner.gateway.settings import GatewaySettings, SaslMechanism
from assigner.testing.waiting import eventually
from tests.integration.kafka.test_kafka_topics_secured import PASSWORD, broker_settings
from tests.support.gateway.clients import SECONDS, aio_round, read, refusal, trusting, write
from tests.support.gateway.serving import address, gateway_before
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED, PARTITIONS, MockKafka

EVERY = (SaslMechanism.PLAIN, SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path) -> dict[str, Any]:
    """Settings of a gateway that shows a certificate of the authority."""
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = tmp_path / "gateway.pem", tmp_path / "gateway.key"
    certificate.write_bytes(b"".join(it.bytes() for it in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return {"tls_certificate": str(certificate), "tls_key": str(key)}


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    path = tmp_path / "users.toml"
    path.write_text(
        '[[user]]\nname = "alice"\norg = "acme"\nrole = "consumer"\ngroups = "*"\nnames = "*"\n'
        f'scram-sha-256 = "{credential_line("pencil", "SCRAM-SHA-256")}"\n'
        f'scram-sha-512 = "{credential_line("pencil", "SCRAM-SHA-512")}"\n'
    )
    return path


def login(mechanism: str, password: str = "pencil", **more: str) -> dict[str, Any]:
    return {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
        **more,
    }


@pytest.mark.parametrize("mechanism", [one.value for one in EVERY])
async def test_clients_log_in_over_tls_by_every_mechanism(
    authority: trustme.CA, tls: dict[str, str], credentials: Path, tmp_path: Path, mechanism: str
) -> None:
    mock = await asyncio.to_thread(MockKafka)
    settings: dict[str, Any] = {"sasl_mechanisms": EVERY, "sasl_credentials": str(credentials), **tls}
    async with gateway_before(mock.bootstrap, **settings) as server:
        properties = login(mechanism, **{"security.protocol": "sasl_ssl", "ssl.ca.location": str(tmp_path / "ca.pem")})
        await asyncio.to_thread(write, address(server), "t", [b"one", b"two"], **properties)
        found = await asyncio.to_thread(read, address(server), "t", PARTITIONS, 2, **properties)
        assert sorted(found) == [b"one", b"two"]
        secure: dict[str, Any] = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": "pencil",
            "ssl_context": trusting(authority),
        }
        assert await aio_round(address(server), "t", b"three", **secure) == b"three"
        assert await asyncio.to_thread(kafka_python_topics, address(server), secure) == {"t"}


@pytest.mark.parametrize("mechanism", [one.value for one in EVERY])
async def test_a_wrong_password_gets_nobody_in(credentials: Path, mechanism: str) -> None:
    mock = await asyncio.to_thread(MockKafka)
    settings: dict[str, Any] = {"sasl_mechanisms": EVERY, "sasl_credentials": str(credentials)}
    async with gateway_before(mock.bootstrap, **settings) as server:
        why = await asyncio.to_thread(lambda: refusal(address(server), **login(mechanism, "guess")))
        assert "authentication failed" in why.lower()
        assert await asyncio.to_thread(lambda: refusal(address(server), **login(mechanism))) == ""
        assert server.statistics().logins["refused"] >= 1


async def test_a_mechanism_that_is_not_offered_is_refused_with_those_that_are(credentials: Path) -> None:
    mock = await asyncio.to_thread(MockKafka)
    settings: dict[str, Any] = {"sasl_mechanisms": (SaslMechanism.SCRAM_SHA_512,), "sasl_credentials": str(credentials)}
    async with gateway_before(mock.bootstrap, **settings) as server:
        why = await asyncio.to_thread(lambda: refusal(address(server), **login("PLAIN")))
        assert "SCRAM-SHA-512" in why


async def test_a_user_that_is_removed_from_the_file_is_cut_off(credentials: Path) -> None:
    mock = await asyncio.to_thread(MockKafka)
    settings: dict[str, Any] = {"sasl_mechanisms": EVERY, "sasl_credentials": str(credentials)}
    async with gateway_before(mock.bootstrap, **settings) as server:
        staying: Any = AdminClient({"bootstrap.servers": address(server), **LOGGED, **login("PLAIN")})
        await asyncio.to_thread(lambda: staying.list_topics(timeout=SECONDS))
        await asyncio.to_thread(rename, credentials, "alice", "bob")
        await eventually(lambda: server.statistics().refused.get("withdrawn", 0) > 0, within=SECONDS)
        assert await asyncio.to_thread(lambda: refusal(address(server), **login("PLAIN")))


async def test_who_may_only_read_is_told_at_once_when_it_writes_or_changes_something(credentials: Path) -> None:
    await asyncio.to_thread(rename, credentials, '"consumer"', '"reader"')
    mock = await asyncio.to_thread(MockKafka)
    await asyncio.to_thread(mock.produce, "t", 1)
    settings: dict[str, Any] = {"sasl_mechanisms": EVERY, "sasl_credentials": str(credentials)}
    async with gateway_before(mock.bootstrap, **settings) as server:
        properties = login("SCRAM-SHA-256")
        found = await asyncio.to_thread(lambda: read(address(server), "t", PARTITIONS, PARTITIONS, **properties))
        assert len(found) == PARTITIONS
        assert await asyncio.to_thread(lambda: why_not_written(address(server), properties)) == [
            KafkaError.TOPIC_AUTHORIZATION_FAILED
        ]
        assert server.access.denials["denied", "roles"] >= 1


async def test_a_certificate_says_who_a_client_is(authority: trustme.CA, tls: dict[str, str], tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[allow]]\nwho = "billing.acme"\norg = "acme"\nrole = "consumer"\ngroups = "*"\n')
    authenticator = Authenticator(certificates=str(rules), clock=SystemClock())
    await authenticator.load()
    mock = await asyncio.to_thread(MockKafka)
    settings: dict[str, Any] = {"tls_client_ca": str(tmp_path / "ca.pem"), **tls}
    async with gateway_before(mock.bootstrap, authenticator=authenticator, **settings) as server:
        properties = {"security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "ca.pem")}

        def shown(name: str) -> dict[str, str]:
            issued = authority.issue_cert(name)
            certificate, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
            certificate.write_bytes(b"".join(it.bytes() for it in issued.cert_chain_pems))
            issued.private_key_pem.write_to_path(str(key))
            return {**properties, "ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}

        await asyncio.to_thread(write, address(server), "t", [b"one"], **shown("billing.acme"))
        assert await asyncio.to_thread(lambda: refusal(address(server), **shown("stranger.acme")))
        assert await asyncio.to_thread(lambda: refusal(address(server), **properties))
        assert server.statistics().refused["unauthenticated"] >= 1


async def test_a_gateway_is_not_open_to_others_by_accident(tls: dict[str, str], credentials: Path) -> None:
    def served(**settings: Any) -> GatewayServer:
        return GatewayServer(GatewaySettings(host="0.0.0.0", upstream="127.0.0.1:9092", **settings))

    with pytest.raises(InvalidInput, match="TLS is not set up"):
        served()
    with pytest.raises(InvalidInput, match="clients are nobody"):
        served(**tls)
    served(insecure=True)
    served(sasl_mechanisms=EVERY, sasl_credentials=str(credentials), **tls)


# --- towards the brokers -------------------------------------------------------------------------------------------


async def test_a_gateway_logs_in_to_brokers_by_plain_and_scram_over_tls(
    start_kafka: Callable[..., KafkaBroker], authority: trustme.CA, tmp_path: Path
) -> None:
    more = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.plaintext.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.plaintext.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    broker = await asyncio.to_thread(lambda: start_kafka(settings=broker_settings(authority, tmp_path) | more))
    trusted = tmp_path / "trusted.pem"

    def properties(mechanism: str, password: str = PASSWORD, ca: Path = trusted) -> dict[str, str]:
        return {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(ca),
            "sasl.mechanism": mechanism,
            "sasl.username": "reader",
            "sasl.password": password,
        }

    async with gateway_before(broker.bootstrap, upstream_properties=properties("PLAIN")) as server:
        assert await asyncio.to_thread(refusal, address(server)) == ""
        await asyncio.to_thread(make_scram_user, address(server))
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        async with gateway_before(broker.bootstrap, upstream_properties=properties(mechanism)) as server:
            assert await asyncio.to_thread(refusal, address(server)) == ""
    # In a file, which is read again when it changes.
    wrong, file = properties("SCRAM-SHA-512", "guess"), tmp_path / "upstream.properties"
    file.write_text("sasl.password=guess\n")
    server = GatewayServer(
        GatewaySettings(
            port=0, upstream=broker.bootstrap, upstream_properties=wrong, upstream_properties_file=str(file)
        )
    )
    async with server.serving({}):
        await eventually(lambda: server.statistics().upstream_failures > 0, within=SECONDS)
        assert not server.is_ready
        file.write_text(f"sasl.password={PASSWORD}\n")
        await eventually(lambda: server.is_ready, within=SECONDS)
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    settings = GatewaySettings(port=0, upstream=broker.bootstrap, upstream_properties=properties("PLAIN", ca=stranger))
    distrusting = GatewayServer(settings)
    async with distrusting.serving({}):
        await eventually(lambda: distrusting.statistics().upstream_failures > 1, within=SECONDS)
        assert not distrusting.is_ready


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"security.protocol": "magic"}, "unknown"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "GSSAPI"}, "GSSAPI"),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}, "sasl.username"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/missing"}, "TLS towards the brokers"),
    ],
)
def test_properties_that_can_t_be_used_say_why(properties: dict[str, str], why: str) -> None:
    from assigner.gateway.upstream.security import read_security

    with pytest.raises(InvalidInput, match=why):
        read_security(properties)


def make_scram_user(bootstrap: str) -> None:
    """Have the broker know the user's password for SCRAM, by a request that passes through the gateway."""
    admin: Any = AdminClient({"bootstrap.servers": bootstrap, **LOGGED})
    library: Any = kafka_admin
    mechanisms = library.ScramMechanism
    for mechanism in (mechanisms.SCRAM_SHA_256, mechanisms.SCRAM_SHA_512):
        info = library.ScramCredentialInfo(mechanism, 4_096)
        change = library.UserScramCredentialUpsertion("reader", info, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(SECONDS)


def why_not_written(bootstrap: str, properties: dict[str, Any]) -> list[int]:
    """The errors of one record that is not taken."""
    errors: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, **LOGGED, **properties})
    producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(error.code() if error else 0))
    producer.flush(SECONDS)
    return errors


def rename(credentials: Path, before: str, after: str) -> None:
    credentials.write_text(credentials.read_text().replace(before, after))


def kafka_python_topics(bootstrap: str, secure: dict[str, Any]) -> set[str]:
    with warnings.catch_warnings():
        # It reads its schemas in a way that is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka

        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, **secure)
        try:
            return set(consumer.topics())
        finally:
            consumer.close()
