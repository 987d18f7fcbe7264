"""Signs tokens for tests: good ones by default, and any header and any claims where a test wants a bad one."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from assigner.auth.issuing import generate_key, private_pem, public_pem
from assigner.auth.keys import PublicKey, public_key

NOW = 1_800_000_000.0


class Signer:
    """A key pair of a test."""

    def __init__(self) -> None:
        self.key: Ed25519PrivateKey = generate_key()

    @property
    def public(self) -> PublicKey:
        return public_key(self.key.public_key())

    @property
    def kid(self) -> str:
        return self.public.kid

    def token(self, now: float = NOW, *, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token that counts for an hour from `now`; a claim or a header field that is `...` is left out."""
        return self.sign(
            present({"alg": "EdDSA", "typ": "JWT", "kid": self.kid} | (header or {})),
            present(
                {
                    "sub": "worker-1",
                    "aud": "kafka-assigner",
                    "exp": now + 3600,
                    "org": "acme",
                    "groups": ["billing-*"],
                    "names": ["worker-*"],
                    "roles": ["consumer"],
                }
                | claims
            ),
        )

    def sign(self, header: dict[str, Any] | bytes, claims: dict[str, Any] | bytes) -> str:
        signed = f"{encoded(header)}.{encoded(claims)}"
        return f"{signed}.{base64url(self.key.sign(signed.encode()))}"

    def publish(self, path: Path) -> str:
        path.write_text(public_pem(self.key))
        return str(path)

    def keep(self, path: Path, mode: int = 0o600) -> str:
        path.write_text(private_pem(self.key))
        path.chmod(mode)
        return str(path)

    @property
    def jwk(self) -> dict[str, Any]:
        x = base64url(self.key.public_key().public_bytes_raw())
        return {"kty": "OKP", "crv": "Ed25519", "x": x}


def present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not ...}


def encoded(part: dict[str, Any] | bytes) -> str:
    return base64url(part if isinstance(part, bytes) else json.dumps(part).encode())


def base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
