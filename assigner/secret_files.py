"""Reads secrets from files of their own, as secret stores and Kubernetes mount them.

They are read when they are needed and not kept, so that a secret that is replaced counts from the next login on. What
a file holds is never part of an error.
"""

from __future__ import annotations

import stat
from pathlib import Path

from assigner.errors import InvalidInput

MAX_BYTES = 64 * 1024


def read_secret(path: str) -> str:
    """Read the file's text without its last line end. Raises `InvalidInput`."""
    text = _text(path)
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise InvalidInput(f"the secret in {path} is empty; write it into the file")
    return secret


def read_properties(path: str) -> dict[str, str]:
    """Read lines of `name=value`, as Kafka's own tools accept them. Raises `InvalidInput`."""
    found: dict[str, str] = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals or not name.strip():
            raise InvalidInput(f"the secret properties in {path} are wrong in line {number}: write name=value")
        found[name.strip()] = value.strip()
    return found


def stamp(path: str) -> tuple[int, int] | None:
    """Return a value that changes when the file is written; None: it does not exist."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def readable_by_everybody(path: str) -> bool:
    try:
        return bool(Path(path).stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"can't read the secret in {path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"the secret in {path} is longer than {MAX_BYTES} bytes; is it the right file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"the secret in {path} is not UTF-8 text; is it the right file?") from None
