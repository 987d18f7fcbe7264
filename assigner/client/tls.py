"""TLS contexts for connections to the service: the one place where clients build them."""

from __future__ import annotations

import ssl

from assigner.errors import InvalidInput


def tls_context(tls: ssl.SSLContext | bool | None) -> ssl.SSLContext | None:
    """The TLS context for a setting. None: no TLS. True: TLS with the system's CAs. A context is used as it is, with
    HTTP/2 offered."""
    if tls is None or tls is False:
        return None
    context = ssl.create_default_context() if tls is True else tls
    # grpclib does not do it for a context that it did not make, and the service refuses clients without it.
    context.set_alpn_protocols(["h2"])
    return context


def tls_context_from_files(ca: str = "", cert: str = "", key: str = "") -> ssl.SSLContext:
    """`ca`: authorities to trust, the system's if empty. `cert`, `key`: the certificate that the client presents; an
    empty key is expected in the certificate's file. Raises `InvalidInput` if a file can't be used."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if cert:
            context.load_cert_chain(cert, key or None)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(name for name in (ca, cert, key) if name)
        raise InvalidInput(f"the TLS files ({files}) can't be used: {error}") from error
    context.set_alpn_protocols(["h2"])
    return context
