"""Keeps the content of files up to date: looks at them every few seconds and reads them again when they changed.

Changes are found by content, so neither Kubernetes' swaps of symbolic links nor a copy that keeps its times is missed.
What can't be read or understood leaves the last good content in force: it is logged once per change, counted, and `age`
rises until the files are good again. So files that vanish from a running service take nothing away from it.

Not promised: that several files are read at one moment. Half of a change may fail; the next look finds the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import anyio
import msgspec
from anyio.to_thread import run_sync

from assigner.clock import Clock
from assigner.errors import AssignerError, InvalidInput
from assigner.logs import get_logger
from assigner.secret_files import read_start

T = TypeVar("T")
INTERVAL = 5.0
"""Seconds between looks at the files, unless the settings say otherwise."""
COMPARED_BYTES = 1024 * 1024
"""Bytes from the beginning of a file in which changes are noticed."""
MOST_ENTRIES = 64
"""Files of a folder that are looked at."""

_Fingerprint = tuple[tuple[str, str], ...]

_log = get_logger(__name__)


class ReloadState(msgspec.Struct, frozen=True, kw_only=True):
    """How files that are reloaded are doing, for metrics and alerts."""

    loaded_at: float
    """Unix time at which the content in force was read."""
    age: float
    """Seconds since the files were last seen to be what is in force: up to the interval if all is well."""
    reloads: int
    failures: int
    """Changes that could not be read or understood, and left the content before in force."""


class ReloadedFiles(Generic[T]):
    """The content of some files, which stays what it was while they can't be read."""

    def __init__(
        self, what: str, paths: Sequence[str], read: Callable[[], T], clock: Clock, interval: float = INTERVAL
    ) -> None:
        """`what` names the content in logs and errors, `read` reads it on a thread: it raises `InvalidInput`,
        `OSError` or `ValueError`. A path may be a folder."""
        self.what = what
        self._paths = tuple(paths)
        self._read = read
        self._clock = clock
        self._interval = interval
        self._seen: _Fingerprint = ()
        self._current: T | None = None
        self._loaded_at = 0.0
        self._confirmed = 0.0
        self._failure = ""
        """Why the files could not be read the last time; empty: they could."""
        self.reloads = 0
        self.failures = 0

    @property
    def current(self) -> T:
        """The content in force. It is a new object after each reload."""
        assert self._current is not None, f"{self.what} is used before it was loaded"
        return self._current

    @property
    def names(self) -> str:
        return ", ".join(self._paths)

    def state(self) -> ReloadState:
        return ReloadState(
            loaded_at=self._loaded_at,
            age=max(0.0, self._clock.now() - self._confirmed),
            reloads=self.reloads,
            failures=self.failures,
        )

    async def load(self) -> None:
        """Read the files for the first time. Raises `InvalidInput` if they can't be used."""
        self._seen = await run_sync(fingerprint, self._paths)
        try:
            self._put_in_force(await run_sync(self._read))
        except InvalidInput:
            raise
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{self.what} can't be set up from {self.names}: {error}; check the files") from error

    async def watch(self) -> None:
        """Reload the files whenever they change, until cancelled."""
        while True:
            await anyio.sleep(self._interval)
            await self.look()

    async def look(self) -> None:
        """Reload the files if they have changed since the last look, or could not be read then: what failed may have
        been the reading and not the files."""
        found = await run_sync(fingerprint, self._paths)
        changed = found != self._seen
        if not changed and not self._failure:
            self._confirmed = self._clock.now()
            return
        # Noted before reading: a change during the reading is found by the next look.
        self._seen = found
        try:
            content = await run_sync(self._read)
        except (OSError, ValueError, AssignerError) as error:
            failure = str(error) or type(error).__name__
            if changed or failure != self._failure:
                self.failures += 1
                _log.error("files_reload_failed", what=self.what, files=self.names, error=failure, kept="previous")
            self._failure = failure
            return
        self._put_in_force(content)
        self.reloads += 1
        _log.info("files_reloaded", what=self.what, files=self.names)

    def _put_in_force(self, content: T) -> None:
        self._current = content
        self._failure = ""
        self._loaded_at = self._clock.wall()
        self._confirmed = self._clock.now()


# --- files and folders ---------------------------------------------------------------------------------------------


def files_of(path: str) -> list[Path]:
    """List the file, or the files of the folder. Kubernetes' own entries, which begin with a dot, are left out."""
    root = Path(path)
    if not root.is_dir():
        return [root]
    return sorted(entry for entry in root.iterdir() if not entry.name.startswith("."))


def fingerprint(paths: Sequence[str]) -> _Fingerprint:
    """Compute what changes when one of the files changes, appears, or can't be read any more."""
    found: list[tuple[str, str]] = []
    for path in paths:
        try:
            found += [(str(file), _identity(file)) for file in files_of(path)[: MOST_ENTRIES + 1]]
        except (OSError, ValueError) as error:
            found.append((path, f"unreadable {error}"))
    return tuple(found)


def _identity(file: Path) -> str:
    try:
        content = read_start(file, COMPARED_BYTES)
        return f"{file.stat().st_size} {hashlib.blake2b(content, digest_size=16).hexdigest()}"
    except (OSError, ValueError) as error:
        return f"unreadable {error}"
