"""Where an identity is required, and what a service without one says before it starts."""

from __future__ import annotations

import pytest

from assigner.clock import SystemClock
from assigner.errors import InvalidInput
from assigner.server.access import access_by, check_identity, is_required
from assigner.server.settings import AuthSettings, ServerSettings

LOOPBACK, ANYWHERE = ServerSettings(), ServerSettings(host="0.0.0.0", insecure=True)
KEYS = ("key.pem",)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_on_loopback_identity_is_off_unless_the_settings_say_otherwise(host: str) -> None:
    server = ServerSettings(host=host)
    check_identity(AuthSettings(), server)
    assert not is_required(AuthSettings(), server)
    assert access_by(AuthSettings(), server, SystemClock()).mode == "off"
    assert access_by(AuthSettings(keys=KEYS), server, SystemClock()).mode == "optional"
    assert access_by(AuthSettings(keys=KEYS, required=True), server, SystemClock()).mode == "required"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.1.2.3", "assigner.example"])
def test_elsewhere_an_identity_is_required_unless_the_settings_say_otherwise(host: str) -> None:
    server = ServerSettings(host=host, insecure=True)
    with pytest.raises(InvalidInput, match=r"reached from outside.*auth\.keys.*--auth-required false"):
        check_identity(AuthSettings(), server)
    check_identity(AuthSettings(required=False), server)
    assert access_by(AuthSettings(keys=KEYS), server, SystemClock()).mode == "required"
    assert access_by(AuthSettings(keys=KEYS, required=False), server, SystemClock()).mode == "optional"
    assert access_by(AuthSettings(required=False), server, SystemClock()).mode == "off"


@pytest.mark.parametrize("server", [LOOPBACK, ANYWHERE])
def test_an_identity_that_nobody_can_show_is_refused_with_the_remedy(server: ServerSettings) -> None:
    with pytest.raises(InvalidInput, match=r"auth\.required is set.*auth\.certificates"):
        check_identity(AuthSettings(required=True), server)


def test_rules_for_certificates_need_clients_that_are_asked_for_one() -> None:
    with pytest.raises(InvalidInput, match=r"grpc\.tls_client_ca"):
        check_identity(AuthSettings(certificates="rules.toml"), LOOPBACK)
    mutual = ServerSettings(tls_certificate="c", tls_key="k", tls_client_ca="ca")
    check_identity(AuthSettings(certificates="rules.toml", required=True), mutual)
