"""Keeps the commit log of a fenced directory: numbered manifests, one per commit.

A manifest is written completely under a temporary name and then linked to its number. The link fails if the number is
taken, so of two members that decided on the same contents one commits, and the other reads the log again and decides
again. Every `CHECKPOINT_EVERY` commits a checkpoint with the contents so far is written, from which reading starts.

It needs a file system with atomic exclusive links: a local one, NFS, most that POSIX programs use. Object stores do not
have links; there it would take a conditional put.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from assigner.errors import InvalidInput, UnreadableRecord
from assigner.model.keys import TopicPartition
from assigner.spark.sinks.fence import Fence
from assigner.spark.sinks.ledger import SinkId

CHECKPOINT_EVERY = 64
# How long the contents list a removed file; after that a vacuum finds it as an orphan.
_REMOVED_SECONDS = 7 * 24 * 3600
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP)

_Read = TypeVar("_Read")

COMMITS = "_manifests"
DATA, STATES = "_data", "_states"
_FOLDERS = (DATA, STATES, COMMITS, f"{COMMITS}/whole")
_NUMBER = re.compile(r"[0-9]{20}")

# Members, readers and a vacuum that deletes files trust these names: a name outside the directory is rejected.
DataName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{12}-[0-9a-f]{32}\.parquet\Z")]
StateName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{12}-[0-9a-f]{32}\.state\Z")]


def new_data_name() -> DataName:
    return f"{_new_stem()}.parquet"


def new_state_name() -> StateName:
    return f"{_new_stem()}.state"


def _new_stem() -> str:
    return f"{int(time.time()):012d}-{uuid.uuid4().hex}"


class DataFile(msgspec.Struct, frozen=True):
    name: DataName
    rows: int
    size: int


class FencedPartition(msgspec.Struct, frozen=True, order=True):
    """The key of a fence: a partition in a group's sink."""

    group: str
    sink: str
    topic: str
    partition: int

    @classmethod
    def of(cls, sink: SinkId, tp: TopicPartition) -> FencedPartition:
        return cls(sink.group, sink.name, tp.topic, tp.partition)


class FenceEntry(msgspec.Struct, frozen=True):
    at: FencedPartition
    fence: Fence


class StateFile(msgspec.Struct, frozen=True):
    at: FencedPartition
    epoch: int
    next_offset: int
    name: StateName


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One commit: the files, fences and states that it changed."""

    written_at: float
    """Wall-clock time in seconds; it only decides how long removed files are kept."""
    schema: str | None = None
    added: list[DataFile] = []
    removed: list[DataName] = []
    fences: list[FenceEntry] = []
    states: list[StateFile] = []
    forgotten: list[FencedPartition] = []
    """Fences and states that were reset."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the directory after the commits up to `number`."""

    number: int = 0
    schema: str | None = None
    files: dict[str, DataFile] = {}
    fences: dict[FencedPartition, Fence] = {}
    states: dict[FencedPartition, StateFile] = {}
    removed: dict[str, float] = {}
    """Removed files that readers of earlier contents may still read, and when they were removed."""


class _Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`Contents` in a form that JSON can represent, as a checkpoint stores them."""

    number: int
    schema: str | None
    files: list[DataFile]
    fences: list[FenceEntry]
    states: list[StateFile]
    removed: dict[DataName, float]


def applied(contents: Contents, manifest: Manifest) -> Contents:
    """Apply a commit to the contents before it."""
    gone, forgotten = set(manifest.removed), set(manifest.forgotten)
    files = {name: each for name, each in contents.files.items() if name not in gone}
    fences = {at: fence for at, fence in contents.fences.items() if at not in forgotten}
    states = {at: state for at, state in contents.states.items() if at not in forgotten}
    return Contents(
        number=contents.number + 1,
        schema=manifest.schema or contents.schema,
        files=files | {each.name: each for each in manifest.added},
        fences=fences | {entry.at: entry.fence for entry in manifest.fences},
        states=states | {state.at: state for state in manifest.states},
        removed=contents.removed | dict.fromkeys(manifest.removed, manifest.written_at),
    )


class ManifestLog:
    """The manifests of one directory. Any number of processes may read and append."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._commits = directory / COMMITS
        self._checkpoints = self._commits / "whole"

    def prepare(self) -> None:
        """Create the missing folders of a fenced directory."""
        for folder in _FOLDERS:
            (self._directory / folder).mkdir(parents=True, exist_ok=True)
        self._refuse_links()

    def read(self, known: Contents | None = None) -> Contents:
        """Read the present contents; `known` saves reading the commits before it."""
        self._refuse_links()
        contents = known or Contents()
        while True:
            contents = self._with_later_commits(self._from_checkpoint(contents))
            # A manifest is deleted only when a checkpoint includes it: so without a newer checkpoint none was missed.
            if self._last_checkpoint() <= contents.number:
                return contents

    def append(self, contents: Contents, manifest: Manifest) -> Contents | None:
        """Append a commit that was decided on `contents`. None: another commit was first, or may have been; read and
        decide again."""
        number = contents.number + 1
        if not _create(self._commits / _name(number), msgspec.json.encode(manifest)):
            return None
        if self._last_checkpoint() >= number:
            # So late that a vacuum may have deleted this number's manifest. If the commit counts, the next try finds it
            # done.
            return None
        result = applied(contents, manifest)
        if number % CHECKPOINT_EVERY == 0:
            _create(self._checkpoints / _name(number), msgspec.json.encode(_checkpoint_of(result, manifest.written_at)))
        return result

    def outdated(self, before: float) -> list[Path]:
        """Manifests that are not needed any more, since a checkpoint from before that time includes them."""
        checkpoints = {path: number for path, number in _numbered(self._checkpoints) if path.stat().st_mtime < before}
        last = max(checkpoints.values(), default=0)
        commits = [path for path, number in _numbered(self._commits) if number <= last]
        drafts = [path for path in self._commits.glob(".draft-*") if path.stat().st_mtime < before]
        return [*commits, *(path for path, number in checkpoints.items() if number < last), *drafts]

    def _from_checkpoint(self, contents: Contents) -> Contents:
        last = self._last_checkpoint()
        if last <= contents.number:
            return contents
        try:
            checkpoint = _decoded(self._checkpoints / _name(last), _Checkpoint)
        except FileNotFoundError:
            return contents
        if checkpoint.number != last:
            raise _unreadable(self._checkpoints / _name(last), f"it holds the commits up to {checkpoint.number}")
        return Contents(
            number=checkpoint.number,
            schema=checkpoint.schema,
            files={each.name: each for each in checkpoint.files},
            fences={entry.at: entry.fence for entry in checkpoint.fences},
            states={state.at: state for state in checkpoint.states},
            removed=checkpoint.removed,
        )

    def _with_later_commits(self, contents: Contents) -> Contents:
        with contextlib.suppress(FileNotFoundError):
            while True:
                contents = applied(contents, _decoded(self._commits / _name(contents.number + 1), Manifest))
        return contents

    def _last_checkpoint(self) -> int:
        return max((number for _, number in _numbered(self._checkpoints)), default=0)

    def _refuse_links(self) -> None:
        for folder in _FOLDERS:
            refuse_link(self._directory / folder)


def refuse_link(path: Path) -> Path:
    """Return a path of a fenced directory, or raise `UnreadableRecord` if it is a symbolic link."""
    if path.is_symlink():
        raise UnreadableRecord(f"{path} is a link, and a fenced directory has none; put back what belongs there")
    return path


def write_durably(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names in it are durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _create(path: Path, content: bytes) -> bool:
    """Create a file atomically with its content; false if it exists."""
    draft = path.with_name(f".draft-{uuid.uuid4().hex}")
    write_durably(draft, content)
    try:
        os.link(draft, path)
    except FileExistsError:
        # Over NFS the answer to a successful link may be lost, and the retry finds the name taken.
        if draft.stat().st_nlink == 1:
            return False
    except OSError as failure:
        if failure.errno in _NO_LINKS:
            raise InvalidInput(f"{path.parent} is on a file system without hard links; use another one") from failure
        raise
    finally:
        draft.unlink()
    sync_folder(path.parent)
    return True


def _name(number: int) -> str:
    return f"{number:020d}.json"


def _numbered(folder: Path) -> Iterator[tuple[Path, int]]:
    """List the manifests in a folder with their numbers. Files with other names are ignored."""
    for path in folder.glob("*.json"):
        if _NUMBER.fullmatch(path.stem):
            yield path, int(path.stem)


def _checkpoint_of(contents: Contents, now: float) -> _Checkpoint:
    return _Checkpoint(
        number=contents.number,
        schema=contents.schema,
        files=list(contents.files.values()),
        fences=[FenceEntry(at, fence) for at, fence in contents.fences.items()],
        states=list(contents.states.values()),
        removed={name: at for name, at in contents.removed.items() if at > now - _REMOVED_SECONDS},
    )


def _decoded(path: Path, kind: type[_Read]) -> _Read:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.MsgspecError, RecursionError) as failure:
        raise _unreadable(path, str(failure)) from None


def _unreadable(path: Path, why: str) -> UnreadableRecord:
    return UnreadableRecord(f"{path} is no manifest: {why}; nothing reads past it: restore the file")
