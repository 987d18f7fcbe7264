"""Who makes a call: by its token, by its connection's certificate, by both, or by neither."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from assigner.auth.authenticator import Authenticator
from assigner.auth.identity import Principal, Source
from assigner.auth.rules import Denial, DenialKind
from assigner.clock import SystemClock
from assigner.errors import InvalidInput
from tests.support.signed_tokens import NOW, Signer

HERE = "192.0.2.1"
SIGNER, NEXT = Signer(), Signer()
MACHINE = "spiffe://corp/machine"
CERTIFICATE = {"subjectAltName": (("URI", MACHINE),), "notAfter": "Jan  5 09:34:43 2030 GMT"}
LEAKED = {"subjectAltName": (("URI", "spiffe://corp/leaked"),)}
RULES = f"""
[[allow]]
who = "{MACHINE}"
role = "reader"
groups = "*"
[[deny]]
who = "spiffe://corp/leaked"
"""


class Place:
    """The files of a service, and who its authenticator takes a caller for."""

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "keys"
        self.keys.mkdir()
        self.rules = folder / "rules.toml"
        self.rules.write_text(RULES)
        SIGNER.publish(self.keys / "first.pem")
        self.authenticator = Authenticator(
            keys=[str(self.keys)], certificates=str(self.rules), clock=SystemClock(), interval=5
        )

    def who(self, *authorization: str, certificate: dict[str, Any] | None = None) -> Principal | Denial | None:
        metadata = [(":path", "/x"), *(("authorization", text) for text in authorization), ("user-agent", "test")]
        return self.authenticator.authenticate(metadata, certificate, HERE, NOW)

    def refusal(self, *authorization: str, certificate: dict[str, Any] | None = None) -> str:
        found = self.who(*authorization, certificate=certificate)
        assert isinstance(found, Denial), found
        assert found.kind is DenialKind.UNAUTHENTICATED
        return found.message

    def name(self, *authorization: str, certificate: dict[str, Any] | None = None) -> str:
        found = self.who(*authorization, certificate=certificate)
        assert isinstance(found, Principal), found
        return found.name


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    await place.authenticator.load()
    return place


def bearer(signer: Signer = SIGNER, **claims: Any) -> str:
    return f"Bearer {signer.token(**claims)}"


# --- one credential ----------------------------------------------------------------------------------------------


async def test_a_call_with_neither_is_nobodys(place: Place) -> None:
    assert place.who() is None
    assert place.who(certificate={}) is None


async def test_a_token_says_who_calls(place: Place) -> None:
    assert place.name(bearer()) == "worker-1"


async def test_a_certificate_says_who_calls(place: Place) -> None:
    found = place.who(certificate=CERTIFICATE)
    assert isinstance(found, Principal)
    assert (found.name, found.source) == (MACHINE, Source.CERTIFICATE)


async def test_a_certificate_without_a_rule_is_refused(place: Place) -> None:
    assert "no [[allow]]" in place.refusal(certificate={"subjectAltName": (("DNS", "other"),)})


async def test_paths_that_are_none_are_refused() -> None:
    for impossible in ({"keys": ["a\0b"]}, {"certificates": "a\0b"}):
        with pytest.raises(InvalidInput, match="no such file"):
            await Authenticator(clock=SystemClock(), **impossible).load()


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", " Bearer  "])
async def test_the_schemes_case_and_blanks_do_not_matter(place: Place, scheme: str) -> None:
    assert place.name(scheme + SIGNER.token()) == "worker-1"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic dTpw", SIGNER.token(), "Bearer\t" + SIGNER.token()],
    ids=["nothing", "scheme-alone", "scheme-and-blank", "basic", "token-alone", "tab"],
)
async def test_a_header_without_a_bearer_token_is_refused(place: Place, header: str) -> None:
    assert "authorization: Bearer TOKEN" in place.refusal(header)


async def test_two_tokens_are_refused_even_if_both_are_good(place: Place) -> None:
    assert "2 `authorization` headers" in place.refusal(bearer(), bearer())


# --- both --------------------------------------------------------------------------------------------------------


async def test_of_a_token_and_a_certificate_the_token_counts_and_nothing_is_added_up(place: Place) -> None:
    found = place.who(bearer(), certificate=CERTIFICATE)
    assert found == place.who(bearer())


@pytest.mark.parametrize(
    "token",
    [bearer(NEXT), bearer(exp=NOW - 100), "Bearer nonsense", "Basic dTpw"],
    ids=["another-key", "expired", "nonsense", "basic"],
)
async def test_a_certificate_does_not_make_up_for_a_bad_token(place: Place, token: str) -> None:
    place.refusal(token, certificate=CERTIFICATE)


async def test_a_certificate_without_a_rule_does_not_spoil_a_good_token(place: Place) -> None:
    assert place.name(bearer(), certificate={"subjectAltName": (("DNS", "proxy"),)}) == "worker-1"


async def test_a_denied_certificate_is_refused_with_any_token(place: Place) -> None:
    assert "[[deny]]" in place.refusal(certificate=LEAKED)
    assert "[[deny]]" in place.refusal(bearer(), certificate=LEAKED)


# --- what is set up ----------------------------------------------------------------------------------------------


async def test_without_keys_a_token_is_refused_and_a_certificate_counts(place: Place) -> None:
    only = Authenticator(certificates=str(place.rules), clock=SystemClock())
    await only.load()
    found = only.authenticate([("authorization", bearer())], CERTIFICATE, HERE, NOW)
    assert isinstance(found, Denial)
    assert "auth.keys" in found.message
    assert isinstance(only.authenticate([], CERTIFICATE, HERE, NOW), Principal)


async def test_without_rules_a_certificate_says_nothing(place: Place) -> None:
    only = Authenticator(keys=[str(place.keys)], clock=SystemClock())
    await only.load()
    assert only.authenticate([], CERTIFICATE, HERE, NOW) is None
    assert isinstance(only.authenticate([("authorization", bearer())], LEAKED, HERE, NOW), Principal)


async def test_files_that_can_not_be_used_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        await Authenticator(keys=[str(tmp_path / "none")], clock=SystemClock()).load()
    with pytest.raises(InvalidInput, match="no such file"):
        await Authenticator(certificates=str(tmp_path / "none"), clock=SystemClock()).load()


# --- rotation ----------------------------------------------------------------------------------------------------


async def test_keys_are_rotated_without_a_moment_in_which_a_token_is_refused(place: Place) -> None:
    old, new = bearer(), bearer(NEXT, sub="worker-2")
    place.refusal(new)
    NEXT.publish(place.keys / "second.pem")
    await place.authenticator.look()
    assert (place.name(old), place.name(new)) == ("worker-1", "worker-2")
    (place.keys / "first.pem").unlink()
    await place.authenticator.look()
    assert "no live key" in place.refusal(old)
    assert place.name(new) == "worker-2"


async def test_keys_that_vanish_leave_the_last_ones_live_and_show_in_the_statistics(place: Place) -> None:
    (place.keys / "first.pem").unlink()
    await place.authenticator.look()
    assert place.name(bearer()) == "worker-1"
    place.keys.rmdir()
    await place.authenticator.look()
    assert place.name(bearer()) == "worker-1"
    state = place.authenticator.statistics().keys
    assert state is not None
    assert state.failures == 2


async def test_rules_are_reloaded_and_broken_ones_leave_the_last_good_ones(place: Place) -> None:
    assert place.name(certificate=CERTIFICATE) == MACHINE
    place.rules.write_text("[[allow]]\nwho = ")
    await place.authenticator.look()
    assert place.name(certificate=CERTIFICATE) == MACHINE
    place.rules.write_text(f'[[deny]]\nwho = "{MACHINE}"')
    await place.authenticator.look()
    assert "[[deny]]" in place.refusal(certificate=CERTIFICATE)
    state = place.authenticator.statistics().certificates
    assert state is not None
    assert (state.reloads, state.failures) == (1, 1)


async def test_a_change_of_certificate_rules_leaves_the_keys_alone(place: Place) -> None:
    assert place.name(bearer()) == "worker-1"
    place.rules.write_text("")
    await place.authenticator.look()
    counted = place.authenticator.statistics()
    assert counted.keys is not None
    assert counted.keys.reloads == 0


# --- a real certificate ------------------------------------------------------------------------------------------


async def test_the_names_are_those_that_a_real_handshake_gives(tmp_path: Path) -> None:
    """Over memory buffers, so that no socket is needed."""
    authority = trustme.CA()
    rules = tmp_path / "rules.toml"
    rules.write_text('[[allow]]\nwho = "worker.corp"\nrole = "reader"\ngroups = "*"')
    authenticator = Authenticator(certificates=str(rules), clock=SystemClock())
    await authenticator.load()
    found = authenticator.authenticate([], shown_certificate(authority, "worker.corp"), HERE, NOW)
    assert isinstance(found, Principal)
    assert found.name == "worker.corp"
    assert found.expires is not None
    assert isinstance(authenticator.authenticate([], shown_certificate(authority, "b.corp"), HERE, NOW), Denial)


def shown_certificate(authority: trustme.CA, name: str) -> dict[str, Any]:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(server)
    authority.issue_cert(name).configure_cert(client)
    for context in (server, client):
        authority.configure_trust(context)
    server.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
    ]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return dict(ends[0].getpeercert() or {})
