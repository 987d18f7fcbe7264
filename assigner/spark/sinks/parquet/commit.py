"""Commits a batch to a fenced directory: applies the fencing rule to the present contents and appends a manifest, and
retries if another member committed first. Readers see only files that a manifest names.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from assigner.errors import FailedPrecondition, InvalidInput
from assigner.model.keys import TopicPartition
from assigner.spark.sinks.fence import Fence, FenceDecision, OnStale, Slice, decide, merged
from assigner.spark.sinks.ledger import SinkId
from assigner.spark.sinks.outcome import Outcome, StagedRowsLost, outcome_of
from assigner.spark.sinks.parquet.files import FilesStaged, copy_passing
from assigner.spark.sinks.parquet.manifests import (
    DATA,
    Contents,
    DataFile,
    FencedPartition,
    FenceEntry,
    Manifest,
    ManifestLog,
    StateFile,
)

# Each lost race is another member's commit, so this many mean that something else is wrong.
_TRIES = 1_000


class Commit(msgspec.Struct, frozen=True):
    """A commit to one directory, retried until it succeeds."""

    directory: Path
    sink: SinkId
    schema: str
    on_stale: OnStale

    def run(self, staged: Sequence[FilesStaged], batch_id: int) -> tuple[Outcome, FenceDecision]:
        log, contents = ManifestLog(self.directory), None
        extents = [extent for each in staged for extent, _ in each.states]
        slices = merged([*(part for each in staged for part in each.slices), *extents])
        for _ in range(_TRIES):
            contents = log.read(contents)
            self._check_schema(contents)
            decision = decide(fences_of(contents, self.sink), slices, self.on_stale)
            manifest = self._manifest(contents, staged, decision)
            if manifest is None or log.append(contents, manifest) is not None:
                written = 0 if manifest is None else sum(file.rows for file in manifest.added)
                states = 0 if manifest is None else len(manifest.states)
                return outcome_of(batch_id, slices, decision, written=written, states=states), decision
        raise FailedPrecondition(
            f"{self.directory} is committed to so often that {_TRIES} tries of {self.sink} came too late"
        )

    def _manifest(self, contents: Contents, staged: Sequence[FilesStaged], decision: FenceDecision) -> Manifest | None:
        """Build the manifest of the commit; None: nothing changes, as when the whole batch was committed before."""
        added = [file for each in staged if (file := self._passing_file(each, decision.floors)) is not None]
        changed = [
            FenceEntry(at, fence)
            for tp, fence in decision.fences.items()
            if contents.fences.get(at := FencedPartition.of(self.sink, tp)) != fence
        ]
        states = [
            StateFile(FencedPartition.of(self.sink, extent.tp), extent.epoch, extent.next_offset, name)
            for each in staged
            for extent, name in each.states
            if extent.tp in decision.floors
        ]
        if not added and not changed and not states:
            return None
        schema = self.schema if contents.schema is None else None
        return Manifest(written_at=time.time(), schema=schema, added=added, fences=changed, states=states)

    def _passing_file(self, staged: FilesStaged, floors: dict[TopicPartition, int]) -> DataFile | None:
        if staged.data is None or not any(_some_pass(part, floors) for part in staged.slices):
            return None
        if not (self.directory / DATA / staged.data.name).exists():
            raise StagedRowsLost(
                f"{staged.data.name} is not in {self.directory}: the executors write to another directory of that "
                f"name, or a vacuum took it for an orphan. Nothing was written; mount one directory for the driver and "
                f"all executors, let vacuum's older_than exceed the longest batch, and restart the query, which "
                f"repeats it"
            )
        if all(_all_pass(part, floors) for part in staged.slices):
            return staged.data
        return copy_passing(self.directory, staged.data, floors)

    def _check_schema(self, contents: Contents) -> None:
        if contents.schema not in (None, self.schema):
            raise InvalidInput(
                f"{self.directory} holds rows of schema {contents.schema}, the query writes {self.schema}; write rows "
                f"of another shape to another directory"
            )


def fences_of(contents: Contents, sink: SinkId) -> dict[TopicPartition, Fence]:
    return {
        TopicPartition(at.topic, at.partition): fence
        for at, fence in contents.fences.items()
        if (at.group, at.sink) == (sink.group, sink.name)
    }


def _all_pass(part: Slice, floors: dict[TopicPartition, int]) -> bool:
    return part.tp in floors and part.first >= floors[part.tp]


def _some_pass(part: Slice, floors: dict[TopicPartition, int]) -> bool:
    return part.tp in floors and part.next_offset > floors[part.tp]
