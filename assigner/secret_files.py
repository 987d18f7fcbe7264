"""Reads secrets from files of their own, as secret stores and Kubernetes mount them.

They are read when they are needed and not kept, so that a secret that is replaced counts from the next login on. What
a file holds is never part of an error. Nothing here waits: what is no file, such as a pipe, is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from assigner.errors import InvalidInput

MAX_BYTES = 64 * 1024


class NotAFile(OSError):
    """The path is that of something else, which may have no end, or nothing to read until somebody writes."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "it is a folder, a pipe or a device; put a file there", path)


def read_start(path: str | os.PathLike[str], most: int) -> bytes:
    """Read the file's first `most` bytes. Raises `OSError`, also for what is no file."""
    if "\0" in os.fspath(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    # Without the flag opening a pipe waits for its writer. Asking first what it is would not help: files are swapped.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(_file(descriptor, path), "rb") as file:
        return file.read(most)


def _file(descriptor: int, path: str | os.PathLike[str]) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise NotAFile(os.fspath(path))


def why_unread(error: OSError) -> str:
    """Say why a file could not be read, and what to look at."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file; check the path"
    if isinstance(error, PermissionError):
        return "permission denied; check its mode and its owner"
    return error.strerror or str(error)


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
        content = read_start(path, MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"can't read the secret in {path}: {why_unread(error)}") from error
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"the secret in {path} is longer than {MAX_BYTES} bytes; is it the right file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"the secret in {path} is not UTF-8 text; is it the right file?") from None
