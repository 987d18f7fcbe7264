"""Verifies signed tokens: JWTs with the algorithm EdDSA on Ed25519 keys, and the claims of a principal.

| claim | meaning |
|---|---|
| `sub` | who it is, such as a workload's name; required |
| `aud` | must be, or hold, `kafka-assigner`; required |
| `exp` | when it ends, in Unix time; at most 400 days from now; required |
| `nbf`, `iat` | when it begins, when it was made |
| `org` | the tenant |
| `groups`, `names` | patterns of the groups it may name, and of the consumers or routers it may be |
| `roles` | what it may do: see `assigner.auth.actions` |
| `jti` | the token's own id; nothing is decided by it |

Claims that are unknown are ignored. What is wrong with a token apart from its signature is found first, because that
costs little; nothing is accepted before PyJWT has verified the signature. Its checks of the claims are not used: the
caller says what time it is, and a denial has to name the claim.

Not promised: that a token is used by the one it was made for. Whoever holds it can send it again until it ends. What
limits that: TLS, so that nobody reads it on the way; a short `exp`; and sessions, which are bound to the principal that
opened them, so that a stolen token takes no session of another principal.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jwt
import msgspec

from assigner.auth.failed_verifications import FailedVerifications
from assigner.auth.identity import Principal, principal
from assigner.auth.keys import KeySet, PublicKey
from assigner.auth.rules import Denial, limited, unauthenticated
from assigner.errors import AssignerError

ALGORITHM = "EdDSA"
AUDIENCE = "kafka-assigner"
LEEWAY = 30.0
"""Seconds that the clocks of issuer and service may differ."""
LONGEST = 400 * 86_400.0
"""Seconds that a token may count: it can't be taken back."""
MAX_BYTES = 8 * 1024
CACHED = 20_000
"""Verified tokens that are remembered, some 1 KiB each: more than one instance has consumers."""

_JWS = jwt.PyJWS(algorithms=[ALGORITHM])
_URL_SAFE = bytes.maketrans(b"-_+/=", b"+/!!!")
_FIELD = re.compile(r"(?:field `|at `\$\.)(\w+)")
_SHOWN = 60
"""Characters of a peer's own text that a denial repeats."""
_REASON = 300
"""Characters of a reason that may hold such text."""


class Claims(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a token says. The names are those of JWT (RFC 7519) and ours."""

    sub: str
    aud: str | tuple[str, ...]
    exp: float
    org: str = ""
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    nbf: float | None = None
    iat: float | None = None
    jti: str = ""


class UnverifiedToken(msgspec.Struct, frozen=True):
    """A token's parts, of which nothing is known to be true."""

    kid: str
    claims: Claims
    payload: bytes


class _Verified(msgspec.Struct, frozen=True):
    principal: Principal
    kid: str


class TokenStatistics(msgspec.Struct, frozen=True):
    cached: int
    verified: int
    """Good signatures; a token that is still remembered is not verified again."""
    forged: int
    """False signatures."""
    limited: int
    """Tokens that were refused unseen, because too many from that address were false."""


class TokenVerifier:
    """Verifies tokens with the keys that are live now, and remembers those that were good until they end.

    A token's SHA-256 is remembered, never the token. It counts as long as its key is live.
    """

    def __init__(
        self,
        keys: Callable[[], KeySet],
        *,
        cached: int = CACHED,
        failures: FailedVerifications | None = None,
    ) -> None:
        self._keys = keys
        self._most = cached
        self._cache: OrderedDict[bytes, _Verified] = OrderedDict()
        self._failures = FailedVerifications() if failures is None else failures
        self._verified = self._forged = self._limited = 0

    def statistics(self) -> TokenStatistics:
        return TokenStatistics(len(self._cache), self._verified, self._forged, self._limited)

    def verify(self, token: str, address: str, now: float) -> Principal | Denial:
        """Decide who sent the token from the address. `now` is Unix time."""
        if len(token) > MAX_BYTES:
            return unauthenticated("", f"the token is {len(token)} bytes long; at most {MAX_BYTES} are read")
        keys = self._keys()
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._cache.get(digest)
        if known is not None:
            if _still_counts(known, keys, now):
                self._cache.move_to_end(digest)
                return known.principal
            del self._cache[digest]
        return self._verify(token, digest, keys, address, now)

    def withdrawn(self, caller: Principal) -> Denial | None:
        """Why this caller's token, which was good, would be refused now, whatever its end is; None: it would not."""
        if any(key.thumbprint == caller.key for key in self._keys().values()):
            return None
        return unauthenticated(
            "kid", f"the key that signed the token of {caller.identity!r} is live no more; get a token of a live one"
        )

    def _verify(self, token: str, digest: bytes, keys: KeySet, address: str, now: float) -> Principal | Denial:
        found = unverified(token)
        if isinstance(found, Denial):
            return found
        key = keys.get(found.kid)
        if key is None:
            return _unknown_key(found.kid)
        caller = _check_times(found.claims, now) or _principal(found.claims)
        if isinstance(caller, Denial):
            return caller
        wait = self._failures.wait(address, now)
        if wait > 0:
            self._limited += 1
            return limited(f"too many false tokens came from {address}; try again in {wait:.1f} s")
        if not _is_signed(token, found.payload, key):
            self._forged += 1
            self._failures.failed(address, now)
            return unauthenticated("", f"the token's signature is not that of key {found.kid!r}; get another token")
        self._verified += 1
        caller = msgspec.structs.replace(caller, key=key.thumbprint)
        self._cache[digest] = _Verified(caller, key.kid)
        if len(self._cache) > self._most:
            self._cache.popitem(last=False)
        return caller


def _still_counts(known: _Verified, keys: KeySet, now: float) -> bool:
    key = keys.get(known.kid)
    ends = known.principal.expires
    return key is not None and key.thumbprint == known.principal.key and ends is not None and now < ends


def _is_signed(token: str, payload: bytes, key: PublicKey) -> bool:
    try:
        verified = _JWS.decode(token, key.key, algorithms=[ALGORITHM])
    except jwt.PyJWTError:
        return False
    return bool(verified == payload)


# --- reading without believing -------------------------------------------------------------------------------------


def unverified(token: str) -> UnverifiedToken | Denial:
    """Read a token without looking at its signature, its key or its times."""
    parts = token.split(".")
    if len(parts) != 3:
        return unauthenticated("", f"the token has {len(parts)} parts instead of 3; is it a JWT, and complete?")
    header, payload, signature = map(_decoded, parts)
    if header is None or payload is None or not signature:
        return unauthenticated("", "the token is not written in base64url; is it a JWT, and complete?")
    kid = _kid(header)
    if isinstance(kid, Denial):
        return kid
    try:
        claims = msgspec.json.decode(payload, type=Claims)
    except (ValueError, RecursionError) as error:
        return _malformed(str(error))
    return UnverifiedToken(kid, claims, payload)


def _decoded(part: str) -> bytes | None:
    try:
        text = part.encode("ascii").translate(_URL_SAFE)
        return binascii.a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
    except ValueError:
        return None


def _kid(header: bytes) -> str | Denial:
    try:
        fields = json.loads(header, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        return unauthenticated("", f"the token's header can't be read: {_short(str(error))}")
    if not isinstance(fields, dict):
        return unauthenticated("", "the token's header is no JSON object; is it a JWT?")
    algorithm, kid = fields.get("alg"), fields.get("kid")
    if algorithm != ALGORITHM:
        return unauthenticated(
            "alg", f"algorithm {_short(repr(algorithm))} is refused; sign with {ALGORITHM} (Ed25519)"
        )
    if "crit" in fields or "b64" in fields:
        return unauthenticated("crit", "the token's header asks for extensions; none are known here, leave them out")
    if not isinstance(kid, str) or not kid:
        return unauthenticated("kid", "the token's header has no `kid`; name the key that signed it by its thumbprint")
    return kid


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that comes twice: two readers may each take another one of the two."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name comes twice")
    return fields


# --- claims --------------------------------------------------------------------------------------------------------


def _check_times(claims: Claims, now: float) -> Denial | None:
    audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
    if AUDIENCE not in audiences:
        return unauthenticated(
            "aud", f"the token is meant for {_short(repr(claims.aud))}; claim `aud` must be {AUDIENCE!r}"
        )
    if now >= claims.exp + LEEWAY:
        return unauthenticated("exp", f"the token expired {_seconds(now - claims.exp)} ago; get a new one")
    if claims.exp > now + LONGEST + LEEWAY:
        return unauthenticated(
            "exp",
            f"the token ends in {_seconds(claims.exp - now)}, and may count for at most {LONGEST / 86_400:g} days; "
            "issue one that ends sooner, with `exp` in seconds",
        )
    for claim, since in (("nbf", claims.nbf), ("iat", claims.iat)):
        if since is not None and since > now + LEEWAY:
            ahead = _seconds(since - now)
            return unauthenticated(claim, f"claim `{claim}` is {ahead} in the future; compare the clocks")
    return None


def _seconds(span: float) -> str:
    return f"{span:.0f} s" if span < 1e10 else f"{span:.0e} s"


def _principal(claims: Claims) -> Principal | Denial:
    try:
        return principal(
            claims.sub,
            organization=claims.org,
            groups=claims.groups,
            names=claims.names,
            roles=claims.roles,
            expires=claims.exp + LEEWAY,
        )
    except AssignerError as error:
        return unauthenticated(_wrong_claim(claims), _short(str(error), _REASON))


def _wrong_claim(claims: Claims) -> str:
    """Name the first claim that no principal can be made of."""
    tries: tuple[tuple[str, Callable[[], Principal]], ...] = (
        ("sub", lambda: principal(claims.sub)),
        ("org", lambda: principal("-", organization=claims.org)),
        ("groups", lambda: principal("-", groups=claims.groups)),
        ("names", lambda: principal("-", names=claims.names)),
        ("roles", lambda: principal("-", roles=claims.roles)),
    )
    for claim, make in tries:
        try:
            make()
        except AssignerError:
            return claim
    return ""


def _malformed(reason: str) -> Denial:
    field = _FIELD.search(reason)
    if field is None:
        return unauthenticated("", f"the token's claims can't be read: {_short(reason)}")
    missing = "missing" in reason
    text = f"claim `{field[1]}` is missing; add it" if missing else f"claim `{field[1]}` is malformed: {_short(reason)}"
    return unauthenticated(field[1], text)


def _unknown_key(kid: str) -> Denial:
    return unauthenticated(
        "kid", f"no live key is called {_short(repr(kid))}; get a token of a live one, or add its public key"
    )


def _short(text: str, most: int = _SHOWN) -> str:
    return text if len(text) <= most else text[:most] + "..."
