"""Tokens: which are accepted, and what is said about those that are not."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed448, rsa
from hypothesis import given
from hypothesis import strategies as st

from assigner.auth.failed_verifications import AT_ONCE, FailedVerifications
from assigner.auth.identity import Principal, Role, Source
from assigner.auth.issuing import public_pem
from assigner.auth.keys import KeySet
from assigner.auth.rules import Denial, DenialKind
from assigner.auth.tokens import LEEWAY, LONGEST, MAX_BYTES, TokenVerifier, unverified
from tests.support.signed_tokens import NOW, Signer, base64url, encoded

HERE = "192.0.2.1"
SIGNER = Signer()
STRANGER = Signer()


class Service:
    """A verifier whose keys a test can change."""

    def __init__(self, *signers: Signer, **options: Any) -> None:
        self.keys: KeySet = {}
        self.trust(*(signers or (SIGNER,)))
        self.verifier = TokenVerifier(lambda: self.keys, **options)

    def trust(self, *signers: Signer) -> None:
        self.keys = {signer.kid: signer.public for signer in signers}

    def verify(self, token: str, now: float = NOW, address: str = HERE) -> Principal | Denial:
        return self.verifier.verify(token, address, now)

    def refusal(self, token: str, now: float = NOW, address: str = HERE) -> Denial:
        found = self.verify(token, now, address)
        assert isinstance(found, Denial), found
        assert found.kind is (DenialKind.LIMITED if "too many" in found.message else DenialKind.UNAUTHENTICATED)
        return found

    def accepts(self, token: str, now: float = NOW, address: str = HERE) -> bool:
        return isinstance(self.verify(token, now, address), Principal)


# --- good ones ---------------------------------------------------------------------------------------------------


def test_a_good_token_is_a_principal_with_its_claims() -> None:
    assert Service().verify(SIGNER.token()) == Principal(
        name="worker-1",
        organization="acme",
        groups=("billing-*",),
        names=("worker-*",),
        roles=frozenset({Role.CONSUMER}),
        expires=NOW + 3600 + LEEWAY,
        source=Source.TOKEN,
        key=SIGNER.kid,
    )


def test_a_token_that_another_library_made_is_accepted() -> None:
    claims = {"sub": "w", "aud": ["other", "kafka-assigner"], "exp": int(NOW) + 60, "iat": int(NOW), "nbf": int(NOW)}
    assert Service().accepts(jwt.encode(claims, SIGNER.key, algorithm="EdDSA", headers={"kid": SIGNER.kid}))


def test_unknown_claims_are_ignored() -> None:
    assert Service().accepts(SIGNER.token(scope="all", nested={"a": [1, None]}, iss="https://issuer.example"))


def test_two_keys_are_live_at_once() -> None:
    service = Service(SIGNER, STRANGER)
    assert service.accepts(SIGNER.token())
    assert service.accepts(STRANGER.token())


# --- header ------------------------------------------------------------------------------------------------------


def unsigned(header: dict[str, Any]) -> str:
    _, claims, _ = SIGNER.token().split(".")
    return f"{encoded(header)}.{claims}."


def hs256_with_the_public_key_as_secret() -> str:
    """The known attack on verifiers that let the header choose the algorithm."""
    claims = {"sub": "w", "aud": "kafka-assigner", "exp": NOW + 60}
    signed = f"{encoded({'alg': 'HS256', 'kid': SIGNER.kid})}.{encoded(claims)}"
    mac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    return f"{signed}.{base64url(mac.sign(signed.encode(), public_pem(SIGNER.key).encode()))}"


def rs256() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    claims = {"sub": "w", "aud": "kafka-assigner", "exp": NOW + 60}
    return jwt.encode(claims, key, algorithm="RS256", headers={"kid": SIGNER.kid})


def ed448_under_our_kid() -> str:
    claims = {"sub": "w", "aud": "kafka-assigner", "exp": NOW + 60}
    return jwt.encode(claims, ed448.Ed448PrivateKey.generate(), algorithm="EdDSA", headers={"kid": SIGNER.kid})


FORGED = {
    "alg none": (unsigned({"alg": "none", "kid": SIGNER.kid}), ""),
    "alg none, with a signature": (SIGNER.token(header={"alg": "none"}), "alg"),
    "alg NONE": (SIGNER.token(header={"alg": "NONE"}), "alg"),
    "no alg": (SIGNER.token(header={"alg": ...}), "alg"),
    "alg is a list": (SIGNER.token(header={"alg": ["EdDSA"]}), "alg"),
    "HS256 by the public key": (hs256_with_the_public_key_as_secret(), "alg"),
    "RS256": (rs256(), "alg"),
    "Ed448 under our kid": (ed448_under_our_kid(), ""),
    "another key's": (STRANGER.token(), "kid"),
    "another key under our kid": (STRANGER.token(header={"kid": SIGNER.kid}), ""),
    "no kid": (SIGNER.token(header={"kid": ...}), "kid"),
    "kid is a number": (SIGNER.token(header={"kid": 1}), "kid"),
    "kid is empty": (SIGNER.token(header={"kid": ""}), "kid"),
    "kid is a list": (SIGNER.token(header={"kid": [SIGNER.kid]}), "kid"),
    "two kids": (
        SIGNER.sign(
            f'{{"alg":"EdDSA","kid":"{STRANGER.kid}","kid":"{SIGNER.kid}"}}'.encode(),
            {"sub": "w", "aud": "kafka-assigner", "exp": NOW + 60},
        ),
        "",
    ),
    "its own key in the header": (STRANGER.token(header={"jwk": STRANGER.jwk, "kid": SIGNER.kid}), ""),
    "extensions": (SIGNER.token(header={"crit": ["b64"], "b64": False}), "crit"),
    "a payload that is not encoded": (SIGNER.token(header={"b64": False}), "crit"),
    "a header that is a list": (SIGNER.sign(b"[]", b"{}"), ""),
    "a header that is no JSON": (SIGNER.sign(b"EdDSA", b"{}"), ""),
    "a header without an end": (SIGNER.sign(b"[" * 3000, b"{}"), ""),
    "a header that is not UTF-8": (SIGNER.sign(b'{"alg":"\xff"}', b"{}"), ""),
    "a number of thousands of digits": (SIGNER.sign(b'{"alg":%s}' % (b"9" * 5000), b"{}"), ""),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_token_is_refused(case: str) -> None:
    token, claim = FORGED[case]
    assert Service().refusal(token).claim == claim


def test_a_claim_that_was_changed_after_signing_is_refused() -> None:
    header, _, signature = SIGNER.token().split(".")
    _, better, _ = STRANGER.token(roles=["admin"]).split(".")
    assert "signature" in Service().refusal(f"{header}.{better}.{signature}").message


def test_a_message_does_not_repeat_endless_text() -> None:
    assert len(Service().refusal(SIGNER.token(header={"alg": "x" * 3000})).message) < 200
    assert len(Service().refusal(SIGNER.token(header={"kid": "x" * 3000})).message) < 250
    assert len(Service().refusal(SIGNER.token(aud="x" * 3000)).message) < 200
    assert len(Service().refusal(SIGNER.token(roles=["x" * 3000])).message) < 400


# --- form --------------------------------------------------------------------------------------------------------


def test_every_beginning_of_a_token_is_refused() -> None:
    token = SIGNER.token()
    service = Service(failures=FailedVerifications(at_once=len(token)))
    for end in range(len(token)):
        service.refusal(token[:end])


def test_a_token_with_any_one_character_changed_is_refused() -> None:
    token = SIGNER.token()
    service = Service(failures=FailedVerifications(at_once=len(token)))
    for at, character in enumerate(token):
        service.refusal(f"{token[:at]}{'A' if character != 'A' else 'B'}{token[at + 1 :]}")


@given(st.text(max_size=300))
def test_any_text_is_refused_with_a_reason(text: str) -> None:
    assert Service().refusal(text).message


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_signed_bytes_are_refused_with_a_reason(header: bytes, claims: bytes) -> None:
    assert Service().refusal(SIGNER.sign(header, claims)).message
    assert Service().refusal(SIGNER.sign({"alg": "EdDSA", "kid": SIGNER.kid}, claims)).message


@pytest.mark.parametrize("token", ["", ".", "..", "a.b", "a.b.c.d", "....", "\x00.\x00.\x00", "é.é.é", "\ud800.a.b"])
def test_a_token_that_is_none_is_refused(token: str) -> None:
    assert Service().refusal(token).claim == ""


@pytest.mark.parametrize("extra", ["=", " ", "\n", "+", "."])
def test_characters_besides_base64url_are_refused(extra: str) -> None:
    Service().refusal(SIGNER.token() + extra)


def test_an_oversized_token_is_refused_unread() -> None:
    within = SIGNER.token(more="x" * 5500)
    beyond = SIGNER.token(more="x" * 6500)
    assert len(within) < MAX_BYTES < len(beyond)
    service = Service()
    assert service.accepts(within)
    assert str(MAX_BYTES) in service.refusal(beyond).message


# --- claims ------------------------------------------------------------------------------------------------------


MALFORMED: dict[str, dict[str, Any]] = {
    "exp": {"exp": ...},
    "exp as text": {"exp": "tomorrow"},
    "exp as a boolean": {"exp": True},
    "exp as null": {"exp": None},
    "exp that has no end": {"exp": 10**400},
    "nbf as text": {"nbf": "now"},
    "iat as a list": {"iat": [1]},
    "aud": {"aud": ...},
    "aud of another service": {"aud": "other"},
    "aud that only begins with ours": {"aud": "kafka-assigner-2"},
    "aud as an empty list": {"aud": []},
    "aud as a list of numbers": {"aud": [1]},
    "aud as an object": {"aud": {"kafka-assigner": 1}},
    "sub": {"sub": ...},
    "sub that is empty": {"sub": ""},
    "sub with a line end": {"sub": "a\nb"},
    "sub as a number": {"sub": 1},
    "org with a slash": {"org": "a/b"},
    "org as a list": {"org": ["a"]},
    "groups as text": {"groups": "billing"},
    "groups with a number": {"groups": [1]},
    "groups with an empty one": {"groups": [""]},
    "groups without an end": {"groups": [f"g{n}" for n in range(65)]},
    "names as an object": {"names": {}},
    "names with a control character": {"names": ["\x1b"]},
    "roles that are unknown": {"roles": ["root"]},
    "roles as text": {"roles": "admin"},
    "jti as a number": {"jti": 1},
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_claim_that_is_missing_or_malformed_is_named(case: str) -> None:
    found = Service().refusal(SIGNER.token(**MALFORMED[case]))
    assert found.claim == case.partition(" ")[0]
    assert found.message


@pytest.mark.parametrize("claims", [b"[]", b"1", b'"a"', b"", b"{", b"\xff", b"[" * 3000, b'{"x":' + b"[" * 3000])
def test_claims_that_are_no_object_are_refused(claims: bytes) -> None:
    Service().refusal(SIGNER.sign({"alg": "EdDSA", "kid": SIGNER.kid}, claims))


def test_a_number_that_is_not_one_is_no_time() -> None:
    for exp in (b"NaN", b"Infinity", b"1e999"):
        claims = b'{"sub":"w","aud":"kafka-assigner","exp":%s}' % exp
        Service().refusal(SIGNER.sign({"alg": "EdDSA", "kid": SIGNER.kid}, claims))


def test_a_token_counts_until_its_end_and_a_little_longer() -> None:
    service, token = Service(), SIGNER.token(exp=NOW)
    assert service.accepts(token, NOW + LEEWAY - 1)
    found = service.refusal(token, NOW + LEEWAY)
    assert found.claim == "exp"
    assert "expired 30 s ago" in found.message


@pytest.mark.parametrize("claim", ["nbf", "iat"])
def test_a_token_of_the_future_is_refused(claim: str) -> None:
    service = Service()
    within: dict[str, Any] = {claim: NOW + LEEWAY}
    beyond: dict[str, Any] = {claim: NOW + LEEWAY + 30}
    assert service.accepts(SIGNER.token(**within))
    early = service.refusal(SIGNER.token(**beyond))
    assert early.claim == claim
    assert "60 s in the future" in early.message


@pytest.mark.parametrize("exp", [NOW + LONGEST + LEEWAY + 1, NOW * 1000, 1e18, 1e300])
def test_a_token_that_would_count_for_too_long_is_refused(exp: float) -> None:
    """Whoever signs it: by a leaked key, or with `exp` in milliseconds."""
    found = Service().refusal(SIGNER.token(exp=exp))
    assert found.claim == "exp"
    assert "at most 400 days" in found.message
    assert Service().accepts(SIGNER.token(exp=NOW + LONGEST + LEEWAY))


@pytest.mark.parametrize("claims", [{"exp": -1e308}, {"exp": 1e308}, {"nbf": 1e308}, {"iat": 1e308}])
def test_a_time_that_is_far_off_is_told_in_few_digits(claims: dict[str, Any]) -> None:
    assert len(Service().refusal(SIGNER.token(**claims)).message) < 150


# --- remembered --------------------------------------------------------------------------------------------------


def test_a_token_is_verified_once_and_refused_when_it_ends() -> None:
    service, token = Service(), SIGNER.token(exp=NOW + 10)
    for seconds in range(10):
        assert service.accepts(token, NOW + seconds)
    assert service.verifier.statistics().verified == 1
    assert service.refusal(token, NOW + 10 + LEEWAY).claim == "exp"
    assert service.verifier.statistics().cached == 0


def test_a_removed_key_takes_its_remembered_tokens_with_it() -> None:
    service = Service(SIGNER, STRANGER)
    mine, other = SIGNER.token(), STRANGER.token()
    assert service.accepts(mine)
    assert service.accepts(other)
    service.trust(STRANGER)
    assert service.refusal(mine).claim == "kid"
    assert service.accepts(other)
    assert service.verifier.statistics().verified == 2


def test_another_key_under_the_same_kid_takes_the_remembered_tokens_with_it() -> None:
    service, token = Service(), SIGNER.token()
    assert service.accepts(token)
    service.keys = {SIGNER.kid: STRANGER.public}
    assert "signature" in service.refusal(token).message


def test_a_key_that_comes_back_brings_its_tokens_back() -> None:
    service, token = Service(), SIGNER.token()
    service.trust(STRANGER)
    service.refusal(token)
    service.trust(SIGNER, STRANGER)
    assert service.accepts(token)


def test_what_is_remembered_is_bounded_and_the_oldest_go_first() -> None:
    service = Service(cached=3)
    tokens = [SIGNER.token(jti=str(number)) for number in range(5)]
    for token in tokens:
        assert service.accepts(token)
        assert service.accepts(tokens[0])
    assert service.verifier.statistics().cached == 3
    verified = service.verifier.statistics().verified
    assert service.accepts(tokens[0])
    assert service.verifier.statistics().verified == verified
    assert service.accepts(tokens[1])
    assert service.verifier.statistics().verified == verified + 1


def test_the_token_itself_is_not_kept() -> None:
    service, token = Service(), SIGNER.token()
    assert service.accepts(token)
    assert service.verifier.statistics().cached == 1
    assert token.rpartition(".")[2] not in repr(vars(service.verifier))


# --- false signatures --------------------------------------------------------------------------------------------


def forged(number: int) -> str:
    return STRANGER.token(header={"kid": SIGNER.kid}, jti=str(number))


def test_too_many_false_signatures_from_an_address_are_refused_unseen() -> None:
    service = Service()
    for number in range(AT_ONCE):
        assert "signature" in service.refusal(forged(number)).message
    for number in range(100):
        assert "too many false tokens" in service.refusal(forged(number)).message
    counted = service.verifier.statistics()
    assert (counted.forged, counted.limited) == (AT_ONCE, 100)


def test_other_addresses_and_known_tokens_go_on_meanwhile() -> None:
    service, known = Service(), SIGNER.token(jti="known")
    assert service.accepts(known)
    for number in range(AT_ONCE + 1):
        service.refusal(forged(number))
    assert service.accepts(known)
    assert "too many" in service.refusal(SIGNER.token(jti="new")).message
    assert service.accepts(SIGNER.token(jti="new"), address="192.0.2.2")
    assert service.accepts(SIGNER.token(jti="newer"), NOW + 1.5)


def test_a_token_that_is_wrong_otherwise_uses_nothing_up() -> None:
    service = Service()
    for number in range(AT_ONCE + 10):
        service.refusal(SIGNER.token(exp=NOW - 100, jti=str(number)))
        service.refusal(STRANGER.token(jti=str(number)))
        service.refusal("nonsense")
    assert service.accepts(SIGNER.token())


# --- reading without believing -----------------------------------------------------------------------------------


def test_an_unverified_token_shows_its_claims_whoever_signed_it() -> None:
    found = unverified(STRANGER.token(sub="x"))
    assert not isinstance(found, Denial)
    assert (found.claims.sub, found.kid) == ("x", STRANGER.kid)
    assert json.loads(found.payload)["sub"] == "x"


def test_a_signature_that_is_written_in_two_ways_counts_in_one() -> None:
    token = SIGNER.token()
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    # The last character has bits that stand for nothing.
    other = token[:-1] + alphabet[alphabet.index(token[-1]) + 1]
    parts = [base64.urlsafe_b64decode(text.rpartition(".")[2] + "==") for text in (token, other)]
    assert parts[0] == parts[1]
    Service().refusal(other)
