"""Logging in: what each mechanism accepts, what every refusal looks like, and when a login ends."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from assigner.auth.authenticator import Authenticator
from assigner.auth.reload import ReloadedFiles
from assigner.auth.tokens import LEEWAY
from assigner.clock import Clock
from assigner.gateway.codec import NO_TIME, error_code, make, response_class
from assigner.gateway.login.credentials import credential_line, read_credentials
from assigner.gateway.login.sasl import Login, LoginAnswer, Logins
from assigner.gateway.login.scram import ScramClient
from assigner.gateway.requests import HandledApi
from assigner.gateway.settings import SaslMechanism
from tests.support.gateway.wired import SetClock, WiredClient, WiredGateway, settle
from tests.support.signed_tokens import Signer

HANDSHAKE, AUTHENTICATE, API_VERSIONS, METADATA, HEARTBEAT = 17, 36, 18, 3, 12
EVERY = (SaslMechanism.PLAIN, SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512)
MEMBER: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
SIGNER = Signer()
LINES = {one: credential_line("pencil", one) for one in ("SCRAM-SHA-256", "SCRAM-SHA-512")}


def users(*names: str, org: str = "acme") -> str:
    return "".join(
        f'[[user]]\nname = "{name}"\norg = "{org}"\nrole = "consumer"\ngroups = "*"\nnames = "*"\n'
        + "".join(f'{mechanism.lower()} = "{line}"\n' for mechanism, line in LINES.items())
        for name in names
    )


@pytest.fixture
async def file(tmp_path: Path) -> ReloadedFiles[Any]:
    path = tmp_path / "users.toml"
    path.write_text(users("alice", "bob"))
    files: ReloadedFiles[Any] = ReloadedFiles(
        "credentials", [str(path)], lambda: read_credentials(str(path)), SetClock()
    )
    await files.load()
    return files


@pytest.fixture
async def logins(file: ReloadedFiles[Any]) -> Logins:
    return Logins(EVERY, SetClock(), credentials=file)


def heartbeats() -> dict[int, HandledApi]:
    def heartbeat(*_: Any) -> Any:
        return make(response_class(HEARTBEAT, 4), throttle_time=NO_TIME, error_code=error_code(0))

    return {HEARTBEAT: HandledApi(0, 4, heartbeat)}


@pytest.fixture
async def gateway(logins: Logins) -> WiredGateway:
    return WiredGateway(
        heartbeats(),
        logins=logins,
        required=True,
        sasl_mechanisms=EVERY,
        sasl_credentials="unused here",
    )


async def told(answer: LoginAnswer | Awaitable[LoginAnswer]) -> LoginAnswer:
    return answer if isinstance(answer, LoginAnswer) else await answer


async def plain(login: Login, user: str, password: str) -> LoginAnswer:
    assert login.handshake("PLAIN") == 0
    return await told(login.authenticate(f"\0{user}\0{password}".encode()))


async def scram(login: Login, mechanism: str, user: str, password: str) -> LoginAnswer:
    assert login.handshake(mechanism) == 0
    client = ScramClient(mechanism, user, password, "nonce")
    challenge = await told(login.authenticate(client.first()))
    assert not challenge.error
    answer = await told(login.authenticate(client.final(challenge.data)))
    if not answer.error:
        client.check(answer.data)
    return answer


# --- mechanisms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", *LINES])
async def test_the_right_password_makes_the_client_the_user(logins: Logins, mechanism: str) -> None:
    login = Login(logins, "192.0.2.7")
    found = plain(login, "alice", "pencil") if mechanism == "PLAIN" else scram(login, mechanism, "alice", "pencil")
    assert (await found).done
    assert login.principal is not None
    assert login.principal.identity == "acme/alice"
    assert logins.outcomes == {"accepted": 1}


@pytest.mark.parametrize("mechanism", ["PLAIN", *LINES])
@pytest.mark.parametrize(("user", "password"), [("alice", "pen"), ("mallory", "pencil"), ("", "")])
async def test_a_wrong_password_and_a_wrong_user_look_alike(
    logins: Logins, mechanism: str, user: str, password: str
) -> None:
    login = Login(logins, "192.0.2.7")
    found = plain(login, user, password) if mechanism == "PLAIN" else scram(login, mechanism, user, password)
    answer = await found
    assert (answer.error, answer.message, answer.data, answer.done) == (58, "authentication failed", b"", False)
    assert login.principal is None


async def test_a_user_without_keys_of_a_mechanism_is_refused_by_it(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.write_text(
        f'[[user]]\nname = "alice"\nrole = "consumer"\ngroups = "*"\nscram-sha-256 = "{LINES["SCRAM-SHA-256"]}"\n'
    )
    file: ReloadedFiles[Any] = ReloadedFiles(
        "credentials", [str(path)], lambda: read_credentials(str(path)), SetClock()
    )
    await file.load()
    login = Login(Logins(EVERY, SetClock(), credentials=file), "192.0.2.7")
    assert (await scram(login, "SCRAM-SHA-512", "alice", "pencil")).error == 58


@pytest.mark.parametrize("message", [b"", b"\0alice", b"\0alice\0pencil\0more", b"\xff\0a\0b", b"bob\0alice\0pencil"])
async def test_a_message_of_plain_that_can_t_be_taken_is_refused(logins: Logins, message: bytes) -> None:
    login = Login(logins, "192.0.2.7")
    login.handshake("PLAIN")
    assert (await told(login.authenticate(message))).error == 58


async def test_messages_out_of_order_are_refused(logins: Logins) -> None:
    login = Login(logins, "192.0.2.7")
    assert (await told(login.authenticate(b"\0alice\0pencil"))).error == 34
    assert login.handshake("GSSAPI") == 33
    assert (await told(login.authenticate(b""))).error == 34
    await plain(login, "alice", "pencil")
    # An exchange is over with its last message.
    assert (await told(login.authenticate(b"\0alice\0pencil"))).error == 34


async def test_an_address_that_failed_often_is_not_looked_at_for_a_while(logins: Logins) -> None:
    for _ in range(20):
        assert (await plain(Login(logins, "192.0.2.7"), "alice", "guess")).error == 58
    refused = await plain(Login(logins, "192.0.2.7"), "alice", "pencil")
    assert refused.error == 58
    assert "too many" in (refused.message or "")
    assert (await plain(Login(logins, "192.0.2.8"), "alice", "pencil")).done
    assert logins.outcomes == {"refused": 20, "limited": 1, "accepted": 1}


async def test_a_connection_stays_with_its_principal(logins: Logins) -> None:
    login = Login(logins, "192.0.2.7")
    await plain(login, "alice", "pencil")
    assert (await plain(login, "alice", "pencil")).done
    assert (await plain(login, "bob", "pencil")).error == 58
    assert login.principal is not None
    assert login.principal.name == "alice"


async def test_a_user_that_was_removed_or_changed_does_not_count_any_more(
    logins: Logins, file: ReloadedFiles[Any], tmp_path: Path
) -> None:
    login, anybody = Login(logins, "192.0.2.7"), Login(logins, "192.0.2.7")
    await plain(login, "alice", "pencil")
    (tmp_path / "users.toml").write_text(users("alice") + "# changed")
    await file.look()
    assert login.still_counts()
    (tmp_path / "users.toml").write_text(users("bob"))
    await file.look()
    assert not login.still_counts()
    assert anybody.still_counts()


# --- tokens --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def token_logins(tmp_path: Path) -> Logins:
    """Logins by tokens of one signer."""
    clock = SetClock()
    authenticator = Authenticator(keys=[SIGNER.publish(tmp_path / "key.pem")], clock=clock)
    await authenticator.load()
    return Logins((SaslMechanism.OAUTHBEARER,), clock, authenticator=authenticator)


def token(clock: Clock, *, lasts: float = 600.0, **claims: Any) -> str:
    return SIGNER.token(exp=int(clock.wall() + lasts - LEEWAY), **claims)


def bearer(text: str) -> bytes:
    return f"n,,\x01auth=Bearer {text}\x01\x01".encode()


async def test_a_token_of_the_service_makes_the_client_its_principal_for_as_long_as_it_counts(
    token_logins: Logins,
) -> None:
    login = Login(token_logins, "192.0.2.7")
    assert login.handshake("OAUTHBEARER") == 0
    answer = await told(login.authenticate(bearer(token(token_logins.clock))))
    assert (answer.done, answer.lifetime) == (True, 600.0)
    assert login.principal is not None
    assert login.principal.organization == "acme"
    assert login.expires == token_logins.clock.wall() + 600


@pytest.mark.parametrize("message", [b"", b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01auth=Bearer \x01\x01", b"\xff"])
async def test_a_message_without_a_token_is_refused(token_logins: Logins, message: bytes) -> None:
    login = Login(token_logins, "192.0.2.7")
    login.handshake("OAUTHBEARER")
    assert (await told(login.authenticate(message))).error == 58


async def test_a_token_that_nobody_here_signed_or_that_has_ended_is_refused(token_logins: Logins) -> None:
    for text in (token(token_logins.clock)[:-4] + "AAAA", token(token_logins.clock, lasts=-600)):
        login = Login(token_logins, "192.0.2.7")
        login.handshake("OAUTHBEARER")
        assert (await told(login.authenticate(bearer(text)))).error == 58


async def test_a_token_whose_key_was_removed_does_not_count_any_more(tmp_path: Path) -> None:
    clock, path = SetClock(), tmp_path / "key.pem"
    authenticator = Authenticator(keys=[SIGNER.publish(path)], clock=clock)
    await authenticator.load()
    login = Login(Logins((SaslMechanism.OAUTHBEARER,), clock, authenticator=authenticator), "192.0.2.7")
    login.handshake("OAUTHBEARER")
    assert (await told(login.authenticate(bearer(token(clock))))).done
    assert login.still_counts()
    Signer().publish(path)
    await authenticator.look()
    assert not login.still_counts()


async def test_a_client_logs_in_again_before_its_token_ends_or_is_cut_off(token_logins: Logins) -> None:
    gateway = WiredGateway(
        heartbeats(), logins=token_logins, required=True, sasl_mechanisms=(SaslMechanism.OAUTHBEARER,)
    )
    clock: Any = token_logins.clock
    gateway.wire.clock = clock
    client = gateway.client()

    def log_in(**claims: Any) -> Any:
        answer_to(client, HANDSHAKE, 1, mechanism="OAUTHBEARER")
        return answer_to(client, AUTHENTICATE, 1, auth_bytes=bearer(token(clock, **claims)))

    assert log_in().session_lifetime.total_seconds() == 600
    clock.time += 590
    assert int(answer_to(client, HEARTBEAT, 4, **MEMBER).error_code) == 0
    assert int(log_in().error_code) == 0
    clock.time += 590
    assert int(answer_to(client, HEARTBEAT, 4, **MEMBER).error_code) == 0
    clock.time += 10
    client.request(HEARTBEAT, 4, **MEMBER)
    assert gateway.refused == {"session_expired": 1}


# --- on a connection -----------------------------------------------------------------------------------------------


def answer_to(client: WiredClient, api: int, version: int, **fields: Any) -> Any:
    client.request(api, version, **fields)
    ((_, answer),) = client.answers(api, version)
    return answer


async def authenticated(client: WiredClient, version: int, message: bytes) -> Any:
    """The answer to a password, which takes a thread a moment."""
    client.request(AUTHENTICATE, version, auth_bytes=message)
    while not (found := client.answers(AUTHENTICATE, version)):
        await settle()
    return found[0][1]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_client_logs_in_and_then_works(gateway: WiredGateway, version: int) -> None:
    client = gateway.client()
    offered = answer_to(client, API_VERSIONS, 3, client_software_name="x", client_software_version="1")
    assert {17, 36} <= {int(one.api_key) for one in offered.api_keys}
    handshake = answer_to(client, HANDSHAKE, 1, mechanism="PLAIN")
    assert (int(handshake.error_code), handshake.mechanisms) == (0, ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"))
    answer = await authenticated(client, version, b"\0alice\0pencil")
    assert (int(answer.error_code), answer.error_message) == (0, None)
    assert client.connection.client.identity == "acme/alice"
    assert client.connection.client.org == "acme"
    assert int(answer_to(client, HEARTBEAT, 4, **MEMBER).error_code) == 0
    assert client.place.used == 1


@pytest.mark.parametrize("api", [METADATA, HEARTBEAT])
async def test_nothing_is_done_for_a_client_that_did_not_log_in(gateway: WiredGateway, api: int) -> None:
    client = gateway.client()
    if api == HEARTBEAT:
        client.request(HEARTBEAT, 4, **MEMBER)
    else:
        client.request(METADATA, 1, topics=())
    assert not client.is_open
    assert gateway.refused == {"unauthenticated": 1}
    assert not gateway.brokers.connections


async def test_a_refused_login_is_answered_and_then_the_connection_is_closed(gateway: WiredGateway) -> None:
    client = gateway.client()
    answer_to(client, HANDSHAKE, 1, mechanism="PLAIN")
    answer = await authenticated(client, 2, b"\0alice\0guess")
    assert int(answer.error_code) == 58
    assert not client.is_open


async def test_an_unknown_mechanism_is_answered_with_those_that_are_known(gateway: WiredGateway) -> None:
    client = gateway.client()
    answer = answer_to(client, HANDSHAKE, 1, mechanism="GSSAPI")
    assert int(answer.error_code) == 33
    assert "PLAIN" in answer.mechanisms
    assert not client.is_open


async def test_a_handshake_of_raw_tokens_is_not_offered(gateway: WiredGateway) -> None:
    client = gateway.client()
    client.request(HANDSHAKE, 0, mechanism="PLAIN")
    assert gateway.refused == {"unsupported": 1}


async def test_a_client_that_does_not_log_in_in_time_is_cut_off(gateway: WiredGateway) -> None:
    client = gateway.client()
    gateway.clock.time += 10
    client.connection.look(gateway.clock.now())
    assert gateway.refused == {"handshake": 1}


async def test_a_client_that_has_not_logged_in_may_send_small_requests_only(gateway: WiredGateway) -> None:
    client = gateway.client()
    client.send((64 * 1024 + 1).to_bytes(4, "big"))
    assert gateway.refused == {"too_large": 1}


async def test_a_withdrawn_login_ends_the_connection(
    gateway: WiredGateway, file: ReloadedFiles[Any], tmp_path: Path
) -> None:
    client = gateway.client()
    answer_to(client, HANDSHAKE, 1, mechanism="PLAIN")
    await authenticated(client, 2, b"\0alice\0pencil")
    client.connection.look_at_login()
    assert client.is_open
    (tmp_path / "users.toml").write_text(users("bob"))
    await file.look()
    client.connection.look_at_login()
    assert gateway.refused == {"withdrawn": 1}
