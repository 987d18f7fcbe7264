"""The log of a fenced directory: numbered manifests, each a commit that came after all lower ones.

A manifest is made complete under another name and then linked to its number. The link fails if the number is taken,
so of two members that decided on the same contents one commits, and the other reads the log again and decides anew.
Every `WHOLE_EVERY` commits the sum of all is written beside the log, from which reading starts.

It needs a file system with atomic exclusive links: a local one, NFS, most that POSIX programs use. Object stores do not
have links; there a manifest would be put on the condition that its name is absent.
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

WHOLE_EVERY = 64
# How long a removed file is remembered; a vacuum that comes later finds it as an orphan.
_REMOVED_SECONDS = 7 * 24 * 3600
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP)

_Read = TypeVar("_Read")

COMMITS = "_manifests"
DATA, STATES = "_data", "_states"
_FOLDERS = (DATA, STATES, COMMITS, f"{COMMITS}/whole")
_NUMBER = re.compile(r"[0-9]{20}")

# Manifests are read by members, readers and a vacuum that deletes: a name that leads elsewhere is no name.
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


class Guarded(msgspec.Struct, frozen=True, order=True):
    """What a fence stands before."""

    group: str
    sink: str
    topic: str
    partition: int

    @classmethod
    def of(cls, sink: SinkId, tp: TopicPartition) -> Guarded:
        return cls(sink.group, sink.name, tp.topic, tp.partition)


class FenceEntry(msgspec.Struct, frozen=True):
    at: Guarded
    fence: Fence


class StateFile(msgspec.Struct, frozen=True):
    at: Guarded
    epoch: int
    next_offset: int
    name: StateName


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One commit: what it changed."""

    written_at: float
    """Wall time, in seconds: only for how long to keep what it removed."""
    schema: str | None = None
    added: list[DataFile] = []
    removed: list[DataName] = []
    fences: list[FenceEntry] = []
    states: list[StateFile] = []
    forgotten: list[Guarded] = []
    """Fences and states that were reset."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """All that the commits up to `number` add up to."""

    number: int = 0
    schema: str | None = None
    files: dict[str, DataFile] = {}
    fences: dict[Guarded, Fence] = {}
    states: dict[Guarded, StateFile] = {}
    removed: dict[str, float] = {}
    """Files that readers of earlier contents may still be at, and when they were removed."""


class _Whole(msgspec.Struct, frozen=True, kw_only=True):
    """`Contents` as JSON can hold them."""

    number: int
    schema: str | None
    files: list[DataFile]
    fences: list[FenceEntry]
    states: list[StateFile]
    removed: dict[DataName, float]


def after(contents: Contents, manifest: Manifest) -> Contents:
    """The contents that a commit leads to."""
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
        self._wholes = self._commits / "whole"

    def prepare(self) -> None:
        """Make the folders of a fenced directory that are missing."""
        for folder in _FOLDERS:
            (self._directory / folder).mkdir(parents=True, exist_ok=True)
        self._refuse_links()

    def read(self, known: Contents | None = None) -> Contents:
        """The contents now; `known` saves reading what led to them."""
        self._refuse_links()
        contents = known or Contents()
        while True:
            contents = self._followed(self._from_whole(contents))
            # A commit's manifest is deleted only when a whole one holds it: otherwise none was missed.
            if self._last_whole() <= contents.number:
                return contents

    def append(self, contents: Contents, manifest: Manifest) -> Contents | None:
        """Commit what was decided on `contents`. None: another commit came first, or whether it did can't be told; read
        and decide again."""
        number = contents.number + 1
        if not _create(self._commits / _name(number), msgspec.json.encode(manifest)):
            return None
        if self._last_whole() >= number:
            # So late that a vacuum may have freed this number. If the commit counts, the next try finds it done.
            return None
        result = after(contents, manifest)
        if number % WHOLE_EVERY == 0:
            _create(self._wholes / _name(number), msgspec.json.encode(_whole(result, manifest.written_at)))
        return result

    def outdated(self, before: float) -> list[Path]:
        """Manifests that nobody needs, since a whole one from before that time holds them."""
        wholes = {path: number for path, number in _numbered(self._wholes) if path.stat().st_mtime < before}
        last = max(wholes.values(), default=0)
        commits = [path for path, number in _numbered(self._commits) if number <= last]
        drafts = [path for path in self._commits.glob(".draft-*") if path.stat().st_mtime < before]
        return [*commits, *(path for path, number in wholes.items() if number < last), *drafts]

    def _from_whole(self, contents: Contents) -> Contents:
        last = self._last_whole()
        if last <= contents.number:
            return contents
        try:
            whole = _decoded(self._wholes / _name(last), _Whole)
        except FileNotFoundError:
            return contents
        if whole.number != last:
            raise _unreadable(self._wholes / _name(last), f"it holds the commits up to {whole.number}")
        return Contents(
            number=whole.number,
            schema=whole.schema,
            files={each.name: each for each in whole.files},
            fences={entry.at: entry.fence for entry in whole.fences},
            states={state.at: state for state in whole.states},
            removed=whole.removed,
        )

    def _followed(self, contents: Contents) -> Contents:
        with contextlib.suppress(FileNotFoundError):
            while True:
                contents = after(contents, _decoded(self._commits / _name(contents.number + 1), Manifest))
        return contents

    def _last_whole(self) -> int:
        return max((number for _, number in _numbered(self._wholes)), default=0)

    def _refuse_links(self) -> None:
        for folder in _FOLDERS:
            refuse_link(self._directory / folder)


def refuse_link(path: Path) -> Path:
    """Return a path of a fenced directory, or refuse it because it leads elsewhere."""
    if path.is_symlink():
        raise UnreadableRecord(f"{path} is a link, and a fenced directory has none; put back what belongs there")
    return path


def write_durably(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _create(path: Path, content: bytes) -> bool:
    """Make a file that is complete from its first moment, unless there is one."""
    draft = path.with_name(f".draft-{uuid.uuid4().hex}")
    write_durably(draft, content)
    try:
        os.link(draft, path)
    except FileExistsError:
        # Over NFS the answer to a link that was made may be lost, and its repetition finds the name taken.
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
    """The manifests in a folder with their numbers. Files of other names are somebody else's."""
    for path in folder.glob("*.json"):
        if _NUMBER.fullmatch(path.stem):
            yield path, int(path.stem)


def _whole(contents: Contents, now: float) -> _Whole:
    return _Whole(
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
