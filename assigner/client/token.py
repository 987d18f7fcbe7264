"""Provides the token that a client's calls carry: a text, a file that is read again when it changes, or a function.

The token is asked for at each call, so that a renewed one is used without a reconnect. It is neither logged nor shown.

Not promised: that a token is hidden on its way. Whoever reads a connection without TLS can use it until it expires.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from assigner.errors import AssignerError, InvalidInput
from assigner.logs import get_logger, keep_headers_out
from assigner.secret_files import read_start, why_unread

Token = str | os.PathLike[str] | Callable[[], str]
"""A token, the path of a file that holds one, or a function that returns one and does not wait."""
MAX_BYTES = 8 * 1024
"""Of a token; the service reads no longer ones."""

_Identity = tuple[int, int, int]

_log = get_logger(__name__)


class TokenSource:
    """Returns the newest token of a client."""

    def __init__(self, token: Token) -> None:
        """Raises `InvalidInput` for what is no token, and for a file that can't be read."""
        keep_headers_out()
        self._function: Callable[[], str] | None = None
        self._path: Path | None = None
        self._token = ""
        self._read_from: _Identity | None = None
        self._failure = ""
        if isinstance(token, str):
            self._token = _checked(token, "token")
        elif isinstance(token, os.PathLike):
            self._path = Path(token)
            self._read(self._path)
        else:
            self._function = token

    def __repr__(self) -> str:
        return f"TokenSource({self._path or 'hidden'})"

    def current(self) -> str:
        """Return the token to send now. A file that can't be read any more leaves the last token in use. Raises
        `InvalidInput` if the function returns no token."""
        if self._function is not None:
            return _checked(_called(self._function), "what the token function returned")
        if self._path is not None:
            try:
                self._read(self._path)
            except InvalidInput as error:
                self._keep(str(error))
        return self._token

    def _read(self, path: Path) -> None:
        """Read the file if it changed since the last time."""
        try:
            found = path.stat()
            identity = found.st_ino, found.st_size, found.st_mtime_ns
            if identity == self._read_from:
                return
            content = read_start(path, MAX_BYTES + 1)
        except OSError as error:
            raise InvalidInput(f"can't read the token file {path}: {why_unread(error)}") from error
        self._token = _checked(content.decode("latin-1"), f"token file {path}", "make one with `assigner token issue`")
        self._read_from, self._failure = identity, ""

    def _keep(self, failure: str) -> None:
        if failure != self._failure:
            self._failure = failure
            _log.warning("token_reload_failed", error=failure, kept="previous")


def token_source(token: Token | None) -> TokenSource | None:
    return None if token is None else TokenSource(token)


def _called(function: Callable[[], str]) -> str:
    try:
        return function()
    except AssignerError:
        raise
    except Exception as error:
        raise InvalidInput(f"the token function failed: {type(error).__name__}: {error}") from error


def _checked(token: str, what: str, remedy: str = "for a file give a pathlib.Path") -> str:
    """Return the token without the white space around it. The error does not show it."""
    stripped = token.strip()
    if not stripped:
        raise InvalidInput(f"the {what} is empty; it must hold a token: make one with `assigner token issue`")
    if len(stripped) > MAX_BYTES:
        raise InvalidInput(f"the {what} is longer than {MAX_BYTES} bytes; is it a token?")
    if not (stripped.isascii() and stripped.isprintable()) or " " in stripped or "/" in stripped:
        raise InvalidInput(f"the {what} is not one word of base64url and dots; {remedy}")
    return stripped
