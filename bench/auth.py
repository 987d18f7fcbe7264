"""What it costs to tell who calls: `python -m bench.auth` prints the time of one decision, by what the call shows.

PyJWT's own `jwt.decode` is the peer: what any service pays that verifies its tokens at each call. All cases take turns
in the same run, and the time is the CPU time of the thread, so that waiting for a core is not in it. The event loop
stands still for as long, so the longest of single decisions is shown too.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console
from rich.table import Table

from assigner.auth.authenticator import Authenticator, PeerCertificate
from assigner.auth.certificates import MOST_RULES
from assigner.auth.identity import Principal
from assigner.auth.issuing import TokenRequest, generate_key, issue, public_pem
from assigner.auth.keys import thumbprint
from assigner.auth.rules import Denial
from assigner.auth.tokens import AUDIENCE, MAX_BYTES
from assigner.clock import SystemClock

AIM_US = 500.0
HERE = "192.0.2.1"
_HOUR = 3600.0
_LONG = 5_800
"""Characters of a claim that make a token almost as long as may be."""

Outcome = Principal | Denial | object | None


class Place:
    """Files of keys and rules, and the tokens that are shown."""

    def __init__(self, folder: Path, tokens: int) -> None:
        self.now = time.time()
        self.key, self.stranger = generate_key(), generate_key()
        self.kid = thumbprint(self.key.public_key())
        self._keys, self._rules = folder / "key.pem", folder / "rules.toml"
        self._keys.write_text(public_pem(self.key))
        rule = '[[allow]]\nwho = "spiffe://corp/ns/*/sa/worker-%d"\nrole = "consumer"\ngroups = "*"\nnames = "*"\n'
        self._rules.write_text("".join(rule % number for number in range(MOST_RULES)))
        request = TokenRequest(
            name="worker-1",
            organization="acme",
            groups=("billing-*", "orders"),
            names=("worker-*",),
            roles=("consumer",),
            lifetime=_HOUR,
        )
        self.good = [issue(self.key, request, self.now) for _ in range(tokens)]
        self.expired = [issue(self.key, request, self.now - 3 * _HOUR) for _ in range(tokens)]
        self.foreign = [issue(self.stranger, request, self.now) for _ in range(tokens)]
        self.forged = [self._sign(self.stranger, number) for number in range(tokens)]
        self.long = [self._sign(self.key, number, "x" * _LONG) for number in range(tokens)]
        assert max(map(len, self.long)) <= MAX_BYTES

    def _sign(self, key: Ed25519PrivateKey, number: int, text: str = "") -> str:
        claims = {"sub": "worker-1", "aud": AUDIENCE, "exp": int(self.now + _HOUR), "jti": str(number), "text": text}
        parts = [json.dumps(part).encode() for part in ({"alg": "EdDSA", "kid": self.kid}, claims)]
        signed = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
        signature = base64.urlsafe_b64encode(key.sign(signed.encode())).rstrip(b"=").decode()
        return f"{signed}.{signature}"

    async def authenticator(self) -> Authenticator:
        made = Authenticator(keys=[str(self._keys)], certificates=str(self._rules), clock=SystemClock())
        await made.load()
        return made


class Case(msgspec.Struct, frozen=True):
    decide: Callable[[], Outcome]
    accepted: bool
    """What each decision must come to, so that a case can't measure something else."""


async def cases(place: Place, runs: int) -> dict[str, Case]:
    return {
        "nothing": Case(await _with_certificate(place, None), accepted=False),
        "good token, the first time": Case(await _with_tokens(place, place.good, fresh=runs), accepted=True),
        "good token, known": Case(await _with_tokens(place, place.good, seen=True), accepted=True),
        "good token of 8 KiB, the first time": Case(await _with_tokens(place, place.long, fresh=runs), accepted=True),
        "good token of 8 KiB, known": Case(await _with_tokens(place, place.long, seen=True), accepted=True),
        "expired token": Case(await _with_tokens(place, place.expired), accepted=False),
        "token of an unknown key": Case(await _with_tokens(place, place.foreign), accepted=False),
        "false signature": Case(await _with_tokens(place, place.forged, fresh=runs), accepted=False),
        "false signature, from an address that sent too many": Case(
            await _with_tokens(place, place.forged, exhausted=True), accepted=False
        ),
        f"certificate, the first time, {MOST_RULES} rules": Case(
            await _with_certificate(place, 0, new=True), accepted=True
        ),
        "certificate, known": Case(await _with_certificate(place, 0), accepted=True),
        PEER: Case(_by_pyjwt(place), accepted=True),
    }


PEER = "`jwt.decode` of PyJWT, at each call"


async def _with_tokens(
    place: Place, tokens: list[str], *, fresh: int = 0, seen: bool = False, exhausted: bool = False
) -> Callable[[], Outcome]:
    """`fresh`: for so many rounds through the tokens, none of them is known, nor an address. `seen`: all are known.
    `exhausted`: the address has used up its allowance of false signatures."""
    authenticators = iter([await place.authenticator() for _ in range(max(1, fresh))])
    authenticator = next(authenticators)
    shown = [[(":path", "/x"), ("authorization", f"Bearer {token}")] for token in tokens]
    for metadata in shown if seen or exhausted else []:
        authenticator.authenticate(metadata, None, HERE, place.now)
    addresses = cycle([f"10.0.{number // 250}.{number % 250}" for number in range(2_000)] if fresh else [HERE])
    left = iter(shown)

    def decide() -> Outcome:
        nonlocal authenticator, left
        metadata = next(left, None)
        if metadata is None:
            authenticator, left = next(authenticators, authenticator), iter(shown)
            metadata = next(left)
        return authenticator.authenticate(metadata, None, next(addresses), place.now)

    return decide


async def _with_certificate(place: Place, number: int | None, *, new: bool = False) -> Callable[[], Outcome]:
    authenticator = await place.authenticator()
    names = cycle(f"ns-{one}" if new else "ns" for one in range(1_000_000 if new else 1))

    def decide() -> Outcome:
        # The last rule, so that all before it are compared.
        uri = f"spiffe://corp/ns/{next(names)}/sa/worker-{MOST_RULES - 1}"
        certificate: PeerCertificate | None = None
        if number is not None:
            certificate = {"subjectAltName": (("URI", uri),), "notAfter": "Jan  5 09:34:43 2099 GMT"}
        return authenticator.authenticate((), certificate, HERE, place.now)

    return decide


def _by_pyjwt(place: Place) -> Callable[[], Outcome]:
    key, left = place.key.public_key(), cycle(place.good)

    def decide() -> Outcome:
        jwt.decode(next(left), key, algorithms=["EdDSA"], audience=AUDIENCE)
        return PEER

    return decide


class Cost(msgspec.Struct, frozen=True):
    """CPU time of one decision, in microseconds."""

    median: float
    p99: float
    longest: float


async def measure(*, runs: int, times: int) -> dict[str, Cost]:
    """Each case is decided `times` times in each of the runs."""
    spent: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        measured = await cases(Place(Path(folder), times), runs)
        for _ in range(runs):
            for name, case in measured.items():
                spent.setdefault(name, []).extend(_timed(name, case, times))
    return {name: _cost(figures) for name, figures in spent.items()}


def _timed(name: str, case: Case, times: int) -> Iterator[float]:
    # Or a case would pay for what the others left behind.
    gc.collect()
    for _ in range(times):
        began = time.thread_time()
        outcome = case.decide()
        yield (time.thread_time() - began) * 1e6
        assert case.accepted == (outcome is not None and not isinstance(outcome, Denial)), f"{name}: {outcome}"


def _cost(figures: list[float]) -> Cost:
    figures = sorted(figures)
    return Cost(statistics.median(figures), figures[int(len(figures) * 0.99)], figures[-1])


def table(costs: dict[str, Cost], *, runs: int, times: int) -> Table:
    made = Table(title=f"CPU time of one decision, us, {runs} runs of {times:,}; the aim is {AIM_US:g}")
    made.add_column("what a call shows")
    for column in ("median", "p99", "longest"):
        made.add_column(column, justify="right")
    for name, cost in costs.items():
        made.add_row(name, f"{cost.median:.1f}", f"{cost.p99:.1f}", f"{cost.longest:.0f}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.auth", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--times", type=int, default=1_000, help="decisions of each kind in each run")
    options = parser.parse_args()
    costs = asyncio.run(measure(runs=options.runs, times=options.times))
    console = Console()
    console.width = max(console.width, 120)
    console.print(table(costs, runs=options.runs, times=options.times))


if __name__ == "__main__":
    main()
