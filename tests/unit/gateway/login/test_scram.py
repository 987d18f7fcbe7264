"""SCRAM: the example of RFC 7677 to the letter, both sides against each other, and all that is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from assigner.gateway.login.scram import (
    HASHES,
    MOST_ITERATIONS,
    ScramClient,
    ScramError,
    ScramKeys,
    ScramServer,
    has_password,
    make_keys,
    read_client_first,
)


def keys(mechanism: str = "SCRAM-SHA-256", password: str = "pencil") -> ScramKeys:
    return make_keys(mechanism, password, b"a salt of some", 4_096)


def exchange(mechanism: str, user: str, password: str, held: ScramKeys) -> None:
    client = ScramClient(mechanism, user, password, "client-nonce")
    first = read_client_first(client.first())
    assert first.user == user
    server = ScramServer(first, held, "server-nonce")
    client.check(server.finish(client.final(server.challenge())))


def test_the_example_of_rfc_7677_comes_out_to_the_letter() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    server = ScramServer(
        read_client_first(client.first()),
        make_keys("SCRAM-SHA-256", "pencil", salt, 4_096),
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    )
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert server.challenge() == challenge
    final = client.final(challenge)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    verdict = server.finish(final)
    assert verdict == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(verdict)


@pytest.mark.parametrize("mechanism", list(HASHES))
@pytest.mark.parametrize("user", ["alice", "a,b=c", "ünïcode"])
def test_both_sides_understand_each_other(mechanism: str, user: str) -> None:
    exchange(mechanism, user, "pencil", keys(mechanism))


@pytest.mark.parametrize("mechanism", list(HASHES))
def test_a_wrong_password_is_refused(mechanism: str) -> None:
    with pytest.raises(ScramError, match="password is wrong"):
        exchange(mechanism, "alice", "pen", keys(mechanism))


def test_a_server_without_the_users_keys_is_refused_by_the_client() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "pencil", "nonce")
    server = ScramServer(read_client_first(client.first()), keys(), "more")
    client.final(server.challenge())
    with pytest.raises(ScramError, match="another server"):
        client.check(b"v=" + base64.b64encode(bytes(32)))


def test_keys_know_their_password_and_hold_none() -> None:
    held = keys()
    assert has_password(held, "pencil")
    assert not has_password(held, "pencil ")
    assert held.stored_key == hashlib.sha256(_client_key(held)).digest()
    assert "pencil" not in repr(held)
    assert held.stored_key.hex() not in repr(held)


def _client_key(held: ScramKeys) -> bytes:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", held.salt, held.iterations)
    return hmac.digest(salted, b"Client Key", "sha256")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"p=tls-unique,,n=u,r=x", "channel binding"),
        (b"n,,n=u", "no nonce"),
        (b"n,,r=x", "no user"),
        (b"n,,m=ext,n=u,r=x", "extension"),
        (b"n,a=other,n=u,r=x", "another user"),
        (b"n,,n=a=zb,r=x", "escaped"),
        (b"n,,n=u,r=x,tokenauth=true", "delegation tokens"),
        (b"n,,n=u,r=" + b"x" * 513, "too long"),
        (b"\xff", "UTF-8"),
        (b"", "channel binding"),
    ],
)
def test_a_first_message_that_can_t_be_taken_says_why(message: bytes, why: str) -> None:
    with pytest.raises(ScramError, match=why):
        read_client_first(message)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda final: final.replace(b"r=n", b"r=m"), "another nonce"),
        (lambda final: final.replace(b"c=biws", b"c=eSws"), "channel binding"),
        (lambda final: final.partition(b",p=")[0], "no proof"),
        (lambda final: final.partition(b",p=")[0] + b",p=AAAA", "length"),
        (lambda final: final.partition(b",p=")[0] + b",p=!", "base64"),
        (lambda final: b"\xff", "UTF-8"),
    ],
)
def test_a_last_message_that_can_t_be_taken_says_why(change: object, why: str) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "pencil", "n")
    server = ScramServer(read_client_first(client.first()), keys(), "more")
    final = client.final(server.challenge())
    assert callable(change)
    with pytest.raises(ScramError, match=why):
        server.finish(change(final))


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=other,s=AAAA,i=4096",
        b"r=n,s=AAAA,i=4096",
        b"r=nx,s=,i=4096",
        b"r=nx,s=AAAA,i=many",
        b"r=nx,s=AAAA,i=1",
        b"r=nx,s=AAAA,i=%d" % (MOST_ITERATIONS + 1),
        b"r=nx,s=?,i=4096",
    ],
)
def test_a_challenge_that_no_honest_server_sends_is_refused(challenge: bytes) -> None:
    with pytest.raises(ScramError):
        ScramClient("SCRAM-SHA-256", "alice", "pencil", "n").final(challenge)
