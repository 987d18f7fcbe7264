"""Kafka behind TLS and SASL: librdkafka's properties are passed on, and certificates are verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from assigner.topics import KafkaSource, TopicAnswer, TopicMissing, TopicUnavailable
from tests.support.servers.kafka import KafkaBroker

PASSWORD = "open sesame"


def broker_settings(authority: trustme.CA, directory: Path) -> dict[str, str]:
    """TLS with a login on the listener that the broker calls PLAINTEXT."""
    issued = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    # Kafka reads PKCS #8 only.
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    identity, trusted = directory / "broker.pem", directory / "trusted.pem"
    identity.write_bytes(pem + b"".join(it.bytes() for it in issued.cert_chain_pems))
    authority.cert_pem.write_to_path(str(trusted))
    login = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="broker" password="{PASSWORD}" user_broker="{PASSWORD}" user_reader="{PASSWORD}";'
    )
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": login,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(identity),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
    }


async def ask(broker: KafkaBroker, authority: Path, password: str, timeout: float) -> TopicAnswer:
    properties = {
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(authority),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "sasl.password": password,
    }
    source = KafkaSource(broker.bootstrap, properties, timeout=timeout)
    try:
        return (await source.describe(["t"]))["t"]
    finally:
        await source.aclose()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


async def test_only_the_right_authority_and_the_right_password_get_an_answer(
    start_kafka: Callable[..., KafkaBroker], authority: trustme.CA, tmp_path: Path
) -> None:
    broker = start_kafka(settings=broker_settings(authority, tmp_path))
    right, wrong = tmp_path / "right.pem", tmp_path / "wrong.pem"
    authority.cert_pem.write_to_path(str(right))
    trustme.CA().cert_pem.write_to_path(str(wrong))

    assert await ask(broker, right, PASSWORD, timeout=20) == TopicMissing()

    stranger = await ask(broker, wrong, PASSWORD, timeout=3)
    assert isinstance(stranger, TopicUnavailable)
    assert "certificate verify failed" in stranger.reason

    intruder = await ask(broker, right, "guess", timeout=3)
    assert isinstance(intruder, TopicUnavailable)
    assert "guess" not in intruder.reason
    assert "authentication failed" in intruder.reason.lower()
