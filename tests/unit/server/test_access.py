"""Where an identity is required, what a service without one says before it starts, and how long a stream may go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from assigner.auth.authenticator import Authenticator
from assigner.auth.rules import Denial
from assigner.auth.tokens import LEEWAY
from assigner.clock import LoopClock, SystemClock
from assigner.errors import InvalidInput
from assigner.server.access import EXPIRY_GRACE, Access, AdmittedCall, access_by, check_identity, is_required
from assigner.server.settings import AuthSettings, ServerSettings
from tests.support.signed_tokens import NOW, Signer

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


# --- streams whose credentials are withdrawn ---------------------------------------------------------------------

REGISTER = "/kafka_assigner.v1.KafkaAssigner/Register"


class Streaming:
    """A stream that was opened with a token of the first of two keys, and the clock of its server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.first, self.second = folder, Signer(), Signer()
        self.first.publish(folder / "one.pem")
        self.second.publish(folder / "two.pem")
        self.authenticator = Authenticator(keys=[str(folder)], clock=LoopClock())
        self.now = NOW

    async def open(self) -> None:
        await self.authenticator.load()
        access = Access(self.authenticator, wall=lambda: self.now)
        self.owner = access.connection(None, "192.0.2.1")
        admitted = self.show(self.first)
        assert isinstance(admitted, AdmittedCall)
        admitted.check("billing-1", "worker-1")
        self.stream = admitted

    def show(self, signer: Signer) -> AdmittedCall | Denial:
        return self.owner.admit(REGISTER, [("authorization", f"Bearer {signer.token(self.now)}")])

    async def withdraw(self) -> None:
        (self.folder / "one.pem").unlink()
        await self.authenticator.look()

    async def restore(self) -> None:
        self.first.publish(self.folder / "one.pem")
        await self.authenticator.look()

    def ended_after(self, seconds: float) -> bool:
        self.now += seconds
        return self.stream.ended() is not None


@pytest.fixture
async def streaming(tmp_path: Path) -> Streaming:
    found = Streaming(tmp_path)
    await found.open()
    return found


async def test_a_stream_whose_key_was_removed_goes_on_for_the_grace_time(streaming: Streaming) -> None:
    assert not streaming.ended_after(1)
    await streaming.withdraw()
    assert not streaming.ended_after(0)
    assert not streaming.ended_after(EXPIRY_GRACE - 1)
    assert streaming.ended_after(1)


async def test_a_stream_whose_token_has_expired_goes_on_for_the_grace_time(streaming: Streaming) -> None:
    assert not streaming.ended_after(3600 + LEEWAY + EXPIRY_GRACE - 1)
    assert streaming.ended_after(1)


async def test_a_key_that_is_missing_for_a_moment_ends_no_stream(streaming: Streaming) -> None:
    """As while the files of a folder are replaced one by one. The grace time begins anew with each moment."""
    for _ in range(3):
        await streaming.withdraw()
        assert not streaming.ended_after(0)
        assert not streaming.ended_after(EXPIRY_GRACE - 1)
        await streaming.restore()
        assert not streaming.ended_after(EXPIRY_GRACE)


async def test_a_token_of_a_live_key_carries_a_stream_on_whose_key_was_removed(streaming: Streaming) -> None:
    assert isinstance(streaming.show(streaming.second), AdmittedCall)
    await streaming.withdraw()
    assert not streaming.ended_after(0)
    assert not streaming.ended_after(2 * EXPIRY_GRACE)


async def test_what_was_withdrawn_and_what_expired_do_not_carry_a_stream_on_together(streaming: Streaming) -> None:
    streaming.show(streaming.first)
    assert not streaming.ended_after(3600 + LEEWAY)
    streaming.show(streaming.first)
    assert not streaming.ended_after(EXPIRY_GRACE)
    await streaming.withdraw()
    assert not streaming.ended_after(0)
    assert streaming.ended_after(EXPIRY_GRACE)
