"""How the source speaks TLS with the assigner. Files are read where the member runs: on the driver."""

from __future__ import annotations

import ssl

import msgspec

from assigner.errors import InvalidInput


class Tls(msgspec.Struct, frozen=True):
    ca: str = ""
    """Empty: the system's authorities."""
    cert: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (self.ca, self.cert, self.key) if name)
            raise InvalidInput(
                f"files of options tlsCa, tlsCert and tlsKey ({files}) can't be used: {error}"
            ) from error
        context.set_alpn_protocols(["h2"])
        return context
