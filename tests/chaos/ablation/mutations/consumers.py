"""Switch off rules about consumers: the client's gates and epochs, and the streams that serve it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import anyio
import msgspec

from assigner.aio.waiters import Waiters
from assigner.core.client import partition
from assigner.core.client.gate import Lease
from assigner.core.client.state import ClientState
from assigner.core.consumer_view import CommandBuilder
from assigner.members.streams import ConsumerStream
from assigner.model.commands import Release
from assigner.model.keys import TopicPartition
from assigner.storage.mirror import GroupMirror
from assigner.streams.registry import StreamRegistry
from tests.chaos.ablation.mutations import Patch


def gates_do_not_look_at_the_clock(patch: Patch) -> None:
    patch.setattr(Lease, "holds", lambda self, now: self.deadline > 0)


def gates_trust_the_whole_ttl(patch: Patch) -> None:
    patch.setattr(Lease, "renewed", lambda self, sent_at, ttl: setattr(self, "deadline", sent_at + ttl))


def no_grant_is_stale(patch: Patch) -> None:
    patch.setattr(partition.Partition, "is_stale", lambda self, epoch: False)


def ownership_outlives_the_store(patch: Patch) -> None:
    def changed(self: partition.Partition, why: str) -> None:
        self.over = self.highest = -1

    patch.setattr(partition.Partition, "begin_anew", changed)
    patch.setattr(ClientState, "session_lost", lambda self, reason: [])


def a_higher_epoch_slips_in(patch: Patch) -> None:
    patch.setattr(
        ClientState, "_may_continue", lambda self, p: self.live and not p.interrupted and p.granted is not None
    )


def releases_name_no_epoch(patch: Patch) -> None:
    original = CommandBuilder._release

    def changed(self: CommandBuilder, tp: TopicPartition) -> Release:
        return msgspec.structs.replace(original(self, tp), epoch=0)

    patch.setattr(CommandBuilder, "_release", changed)


def snapshots_show_whatever_is_mirrored(patch: Patch) -> None:
    original = GroupMirror.wait_for

    async def changed(self: GroupMirror, revision: int, *, within: float = 10.0) -> None:
        await original(self, min(revision, 1), within=within)

    patch.setattr(GroupMirror, "wait_for", changed)


class _EveryEvent(list[TopicPartition]):
    """An outbox that is a queue."""

    add = list.append

    def difference_update(self, others: Iterable[TopicPartition]) -> None:
        for other in others:
            self.remove(other)


def an_outbox_keeps_every_event(patch: Patch) -> None:
    original = ConsumerStream.__init__

    def changed(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._outbox.waiting = _EveryEvent()

    patch.setattr(ConsumerStream, "__init__", changed)


def there_is_always_room(patch: Patch) -> None:
    patch.setattr(StreamRegistry, "check_room", lambda self: None)


def every_change_wakes_all_who_wait(patch: Patch) -> None:
    shared: dict[int, anyio.Event] = {}
    last: dict[int, int] = {}

    async def wait(self: Waiters, number: int) -> None:
        while last.get(id(self), 0) < number:
            await shared.setdefault(id(self), anyio.Event()).wait()

    def reached(self: Waiters, number: int) -> None:
        last[id(self)] = number
        if id(self) in shared:
            shared.pop(id(self)).set()

    patch.setattr(Waiters, "wait", wait)
    patch.setattr(Waiters, "reached", reached)
