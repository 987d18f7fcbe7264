"""Whose fences they are: several groups, and several sinks of one group, may share a database or a directory."""

from __future__ import annotations

import msgspec

from assigner.model.names import check_name


class SinkId(msgspec.Struct, frozen=True):
    """A group's sink. All members of the group that write to one place use the same name, and nobody else does."""

    group: str
    name: str

    def __post_init__(self) -> None:
        check_name("group", self.group)
        check_name("sink", self.name)

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"
