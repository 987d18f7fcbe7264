"""Maintains a fenced directory: joins small files, and deletes files that no commit needs.

Both may run concurrently with writers and readers. A vacuum decides by age: `older_than` must exceed the longest batch,
since the files of an uncommitted batch look like orphans, and the longest read, since a reader may still use files that
a compaction has replaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from assigner.spark.sinks.parquet.files import open_rows, write_rows
from assigner.spark.sinks.parquet.manifests import DATA, STATES, Contents, DataFile, Manifest, ManifestLog
from assigner.spark.sinks.parquet.sink import committed, local_directory

ORPHAN_SECONDS = 24 * 3600
TARGET_BYTES = 128 * 2**20


def vacuum(path: str, older_than: float = ORPHAN_SECONDS) -> int:
    """Delete files and manifests that no commit needs and that are older than so many seconds. Returns how many were
    deleted."""
    directory = local_directory(path)
    before = time.time() - older_than
    contents = committed(directory)
    unneeded = [*_orphans(directory, contents, before), *ManifestLog(directory).outdated(before)]
    for each in unneeded:
        each.unlink(missing_ok=True)
    return len(unneeded)


def compact(path: str, target_bytes: int = TARGET_BYTES) -> int:
    """Join small files into larger ones of about `target_bytes` each. Returns how many files were replaced."""
    directory = local_directory(path)
    log = ManifestLog(directory)
    return sum(_join(directory, log, group) for group in _groups(committed(directory), target_bytes))


def _orphans(directory: Path, contents: Contents, before: float) -> Iterator[Path]:
    states = {state.name for state in contents.states.values()}
    for folder, needed in ((DATA, contents.files.keys()), (STATES, states)):
        for each in (directory / folder).iterdir():
            gone_since = contents.removed.get(each.name) or each.stat().st_mtime
            if each.name not in needed and gone_since < before:
                yield each


def _groups(contents: Contents, target_bytes: int) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    for file in contents.files.values():
        if file.size * 2 > target_bytes:
            continue
        if group and sum(each.size for each in group) + file.size > target_bytes:
            yield from [group] if len(group) > 1 else []
            group = []
        group.append(file)
    if len(group) > 1:
        yield group


def _join(directory: Path, log: ManifestLog, group: list[DataFile]) -> int:
    joined = write_rows(directory, _rows(directory, group))
    if joined is None:
        return 0
    manifest = Manifest(written_at=time.time(), added=[joined], removed=[file.name for file in group])
    while True:
        contents = log.read()
        if any(name not in contents.files for name in manifest.removed):
            # Another compaction replaced some of them; the new file stays an orphan.
            return 0
        if log.append(contents, manifest) is not None:
            return len(group)


def _rows(directory: Path, group: list[DataFile]) -> Iterator[pa.RecordBatch]:
    for file in group:
        with open_rows(directory, file) as source:
            yield from source.iter_batches()
