"""Implements `assigner.api.Administration`: describes groups and changes their topics, options and members.

A change is a record in the store, which the group's leader acts on, on whichever instance it runs. So any instance
serves every call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import msgspec

from assigner.admin.classic import described, read_classic
from assigner.admin.deletion import GroupDeletion
from assigner.admin.group_options import check_options
from assigner.admin.loads import LoadOperations
from assigner.aio.wakeup import Wakeup
from assigner.api import (
    GroupDescription,
    GroupSummary,
    LoadDescription,
    Member,
    NewOffset,
    PartitionOwner,
    RouterMember,
    Weights,
)
from assigner.core.conditions import conditions, not_renewing
from assigner.core.group import GroupState
from assigner.core.planning.request import flat_partitions
from assigner.core.routers.quorum import abridged, missing, unacked
from assigner.errors import (
    FailedPrecondition,
    InvalidInput,
    NotRegistered,
    StoreError,
    UnreadableRecord,
)
from assigner.leader.history import read_history
from assigner.leader.summaries import summary
from assigner.members.registration import MemberService
from assigner.model.kafka_groups import ClassicGroupDescription, ClassicState
from assigner.model.keys import Keys, TopicPartition, decode_segment
from assigner.model.names import session_digest
from assigner.model.records import (
    Consumer,
    GroupIndex,
    GroupOptions,
    Handoff,
    HandoffMode,
    Router,
    Step,
    Stored,
    TopicConfig,
    decode,
)
from assigner.offsets.reset import OffsetReset
from assigner.storage.groups import GroupDirectory
from assigner.storage.kinds import CLASSIC
from assigner.storage.mirror import GroupMirror, Mirrors
from assigner.storage.multi_get import read_topics
from assigner.storage.update import FenceFailed, Updated, update
from assigner.store import Remaining, Store, read_all

LIST_TOGETHER = 16
MOST_SILENCES = 500
"""Consumers of a described group whose leases are read; each costs a request to the store."""
Registered = tuple[str, int, float]
"""A name, its lease and the lease's TTL."""
Silences = Mapping[str, float]
"""Name -> seconds since the last renewal, where the store told."""
SetTopic = Callable[[str, TopicConfig, bool], Awaitable[TopicConfig]]
"""(group, config, force)"""
EnsureTopics = Callable[[str, Sequence[str]], Awaitable[None]]
"""(group, topics): find out how many partitions these have. Raises `UnknownTopic`."""


class Operations:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        directory: GroupDirectory,
        mirrors: Mirrors,
        membership: MemberService,
        set_topic: SetTopic,
        loads: LoadOperations,
        offsets: OffsetReset,
        deletion: GroupDeletion,
        ensure_topics: EnsureTopics,
    ) -> None:
        self._store = store
        self._keys = keys
        self._directory = directory
        self._mirrors = mirrors
        self._membership = membership
        self._set_topic = set_topic
        self._loads = loads
        self._offsets = offsets
        self._deletion = deletion
        self._ensure_topics = ensure_topics

    # --- looking -------------------------------------------------------------------------------------------------

    async def groups(self) -> list[GroupSummary]:
        page = await read_all(self._store, self._keys.groups)
        index = [_indexed(entry.key, entry.value, self._keys.groups) for entry in page.entries]
        names = sorted(one.group for one in index)
        classic = {one.group for one in index if one.kind == CLASSIC}
        written = await self._written_summaries()
        found: dict[str, GroupSummary] = {}
        limiter = anyio.CapacityLimiter(LIST_TOGETHER)

        async def look(name: str) -> None:
            async with limiter:
                found[name] = await self._read_summary(name)
                if name in classic:
                    found[name] = _classic_summary(found[name], await self._read_classic(name))

        async with anyio.create_task_group() as tasks:
            for name in names:
                mirror = self._mirrors.get(name)
                if name in classic:
                    tasks.start_soon(look, name)
                elif mirror is not None:
                    found[name] = summary(mirror.state)
                elif name in written:
                    found[name] = written[name]
                else:
                    tasks.start_soon(look, name)
        return [found[name] for name in names]

    async def _written_summaries(self) -> dict[str, GroupSummary]:
        """Read the summaries that leaders wrote, without the leader's name if its instance is gone."""
        instances = await read_all(self._store, self._keys.instances)
        present = {decode_segment(entry.key[len(self._keys.instances) :]) for entry in instances.entries}
        written: dict[str, GroupSummary] = {}
        for entry in (await read_all(self._store, self._keys.summaries)).entries:
            try:
                one = decode(GroupSummary, entry.value)[0]
            except UnreadableRecord:
                continue
            written[one.group] = one if one.leader in present else msgspec.structs.replace(one, leader="")
        return written

    async def _read_summary(self, group: str) -> GroupSummary:
        """Compute the summary of a group for which no leader wrote one yet, from its records; it is not stored."""
        keys = self._keys.group(group)
        state = GroupState(keys)
        for event in state.replace((await read_all(self._store, keys.prefix)).entries):
            state.apply(event)
        return summary(state)

    async def _read_classic(self, group: str) -> ClassicGroupDescription:
        """Read a classic group. One whose record can't be read is shown as dead; `describe` says why."""
        try:
            return described(group, await read_classic(self._store, self._keys, group))
        except UnreadableRecord:
            return ClassicGroupDescription(group=group, state=ClassicState.DEAD)

    async def describe(self, group: str) -> GroupDescription:
        await self._directory.check(group)
        description = await self._describe(group)
        if await self._directory.kind(group) != CLASSIC:
            return description
        try:
            classic = described(group, await read_classic(self._store, self._keys, group))
        except UnreadableRecord as error:
            classic = ClassicGroupDescription(group=group, state=ClassicState.DEAD)
            unreadable = (*description.unreadable, f"{self._keys.kafka_state(group)}: {error}")
            description = msgspec.structs.replace(description, unreadable=unreadable)
        of_group = _classic_summary(description.summary, classic)
        return msgspec.structs.replace(description, summary=of_group, classic=classic)

    async def _describe(self, group: str) -> GroupDescription:
        async with self._mirrors.of(group) as mirror:
            history = await read_history(self._store, self._keys.history(group))
            silent = await self._silences(_leases(mirror.state.consumers))
            silent_routers = await self._silences(_leases(mirror.state.routers))
            state = mirror.state
            return GroupDescription(
                summary=summary(state),
                leader_address=state.leader.record.address if state.leader else "",
                epoch_floor=state.plan.epoch_floor,
                options=state.options,
                members=_members(state, silent),
                topics=tuple(state.topics[topic].record for topic in sorted(state.topics)),
                ownership=_ownership(state),
                handoffs=tuple(_with_missing_acks(state, tp) for tp in sorted(state.handoffs)),
                quarantined=state.plan.quarantined,
                standbys=tuple(state.standbys[tp].record for tp in sorted(state.standbys)),
                unreadable=tuple(f"{key}: {why}" for key, why in sorted(state.unreadable.items())),
                history=history,
                conditions=conditions(state),
                routers=_routers(state, silent_routers),
            )

    async def _silences(self, registered: Iterable[Registered]) -> Silences:
        """Compute the seconds since each consumer or router last renewed, at any instance, from the remaining TTL of
        its lease."""
        leases = sorted(registered)
        found: dict[str, float] = {}
        limiter = anyio.CapacityLimiter(LIST_TOGETHER)

        async def look(name: str, lease: int, ttl: float) -> None:
            async with limiter:
                try:
                    left = await self._store.remaining(lease)
                except StoreError:
                    return
            if isinstance(left, Remaining):
                found[name] = max(0.0, ttl - left.ttl)

        async with anyio.create_task_group() as tasks:
            # Registrations written by the upstream service do not name the TTL of their lease.
            for name, lease, ttl in [one for one in leases if one[1] and one[2]][:MOST_SILENCES]:
                tasks.start_soon(look, name, lease, ttl)
        return found

    async def topics(self, group: str) -> list[TopicConfig]:
        await self._directory.check(group)
        async with self._mirrors.of(group) as mirror:
            return [mirror.state.topics[topic].record for topic in sorted(mirror.state.topics)]

    async def loads(self, group: str, limit: int) -> LoadDescription:
        await self._directory.check(group)
        return await self._loads.describe(group, limit)

    # --- changing ------------------------------------------------------------------------------------------------

    async def set_topic(
        self, group: str, topic: str, partitions: int, *, force: bool = False, create: bool = True
    ) -> TopicConfig:
        await self._begin(group, create=create)
        config = TopicConfig(topic=topic, partition_count=partitions, source="admin")
        return await self._set_topic(group, config, force)

    async def find_topic(self, group: str, topic: str, *, create: bool = True) -> TopicConfig:
        await self._begin(group, create=create)
        await self._ensure_topics(group, [topic])
        return (await read_topics(self._store, self._keys.group(group), [topic]))[topic]

    async def set_options(self, group: str, changes: dict[str, Any], *, create: bool = False) -> GroupOptions:
        await self._begin(group, create=create)
        return await self._change_options(group, lambda options: check_options(options, changes, self._store.limits))

    async def rebalance(self, group: str) -> None:
        await self._begin(group, create=False)
        async with self._mirrors.of(group) as mirror:

            def ask(options: GroupOptions) -> GroupOptions:
                # The plan counts the requests that were carried out. Options that were deleted or restored since start
                # at a lower count, and a request within it would be taken for one that was carried out.
                asked = max(options.rebalance_requests, mirror.state.plan.forgiven)
                return msgspec.structs.replace(options, rebalance_requests=asked + 1)

            await self._change_options(group, ask)

    async def _begin(self, group: str, *, create: bool) -> None:
        """Check that the group exists, or create it with `create`, so that a misspelt name creates no group."""
        await (self._directory.make(group) if create else self._directory.check(group))

    async def _change_options(self, group: str, change: Callable[[GroupOptions], GroupOptions]) -> GroupOptions:
        async with self._mirrors.of(group) as mirror:
            key, before = mirror.state.keys.options, mirror.state.options
            if key in mirror.state.unreadable:
                raise InvalidInput(f"{key} can't be read ({mirror.state.unreadable[key]}); repair or delete it")
            if _becomes_exclusive(before, change(before)):
                await mirror.resync()

            def changed(current: Stored[GroupOptions] | None) -> GroupOptions:
                nonlocal before
                before = current.record if current else mirror.state.defaults
                wanted = change(before)
                if _becomes_exclusive(before, wanted):
                    _check_all_renew(mirror)
                return wanted

            what = f"the options of group {group!r}"
            known = mirror.state.stored_options
            result = await update(self._store, key, GroupOptions, changed, what=what, known=known)
            assert not isinstance(result, FenceFailed), "no fences are given"
            if isinstance(result, Updated):
                await mirror.wait_for(result.revision)
                if _becomes_exclusive(before, result.record):
                    await self._check_again(mirror, before)
            assert result.record is not None, "nothing is removed"
            return result.record

    async def _check_again(self, mirror: GroupMirror, before: GroupOptions) -> None:
        """Revert the switch to exclusive if a consumer that does not renew has registered meanwhile. None can register
        from now on, because its registration has the options as a precondition."""
        await mirror.resync()
        try:
            _check_all_renew(mirror)
        except FailedPrecondition:
            written = mirror.state.stored_options
            if written:

                def taken_back(current: Stored[GroupOptions] | None) -> GroupOptions | None:
                    return before if current and current.record == written.record else None

                await update(self._store, written.key, GroupOptions, taken_back, known=written)
            raise

    async def set_loads(self, group: str, weights: Sequence[Weights], valid_for: float, *, keep_others: bool) -> int:
        await self._directory.check(group)
        return await self._loads.publish(group, weights, valid_for, keep_others=keep_others)

    async def set_offsets(self, group: str, offsets: Mapping[TopicPartition, NewOffset | None], *, force: bool) -> int:
        await self._directory.check(group)
        return await self._offsets.set(group, offsets, force=force)

    async def delete_group(self, group: str, *, force: bool) -> tuple[int, bool]:
        return await self._deletion.delete_group(group, force=force)

    async def delete_topic(self, group: str, topic: str, *, force: bool) -> tuple[int, bool]:
        return await self._deletion.delete_topic(group, topic, force=force)

    async def drain(self, group: str, consumer: str) -> int:
        try:
            return await self._membership.drain(group, consumer)
        except NotRegistered:
            raise NotRegistered(
                f"consumer {consumer!r} is not registered in group {group!r}; `assigner describe` lists those who are"
            ) from None

    async def drain_progress(self, group: str, consumer: str) -> AsyncIterator[int]:
        async with self._mirrors.of(group) as mirror, aclosing(_remaining(mirror, consumer)) as remaining:
            async for count in remaining:
                yield count


async def _remaining(mirror: GroupMirror, consumer: str) -> AsyncGenerator[int, None]:
    listener = _ChangeListener()
    mirror.listen(listener)
    try:
        last = -1
        while last != 0:
            mark = listener.wakeup.mark()
            count = len(mirror.state.to_hand_over(consumer))
            if count != last:
                last = count
                yield count
            else:
                await listener.wakeup.since(mark)
    finally:
        mirror.unlisten(listener)


class _ChangeListener:
    def __init__(self) -> None:
        self.wakeup = Wakeup()

    def changed(self, _: object) -> None:
        self.wakeup.notify()


def _becomes_exclusive(before: GroupOptions, after: GroupOptions) -> bool:
    return after.handoff_mode is HandoffMode.EXCLUSIVE is not before.handoff_mode


def _check_all_renew(mirror: GroupMirror) -> None:
    names = not_renewing(mirror.state)
    if names:
        raise FailedPrecondition(
            f"group {mirror.group!r} can't become exclusive: consumers {', '.join(names)} do not renew a session of "
            "their own, so nothing would make them stop in time; stop them, or replace them by clients that call Renew"
        )


def _members(state: GroupState, silent: Mapping[str, float]) -> tuple[Member, ...]:
    return tuple(
        Member(
            state.consumers[name].record,
            len(state.owned.get(name, ())),
            sum(state.handoffs[tp].record.at is Step.WARMING for tp in state.incoming.get(name, ())),
            len(state.outgoing.get(name, ())),
            len(state.copies.get(name, ())),
            silent.get(name),
        )
        for name in sorted(state.consumers)
    )


def _leases(registered: Mapping[str, Stored[Consumer] | Stored[Router]]) -> list[Registered]:
    return [(name, one.lease, one.record.ttl) for name, one in registered.items()]


def _routers(state: GroupState, silent: Silences) -> tuple[RouterMember, ...]:
    """All routers that freezes wait for. One whose registration can't be read has no session to show."""
    found: list[RouterMember] = []
    for name, count in unacked(state).items():
        router = state.routers.get(name)
        session = session_digest(router.record.session) if router else ""
        principal = router.record.principal if router else ""
        found.append(
            RouterMember(name=name, session=session, unacked=count, principal=principal, silent_for=silent.get(name))
        )
    return tuple(found)


def _with_missing_acks(state: GroupState, tp: TopicPartition) -> Handoff:
    """The handoff, with the routers that it waits for."""
    handoff = state.handoffs[tp].record
    if not (state.has_routers and handoff.awaits_routers):
        return handoff
    return msgspec.structs.replace(handoff, unacked=abridged(missing(state, tp)))


def _ownership(state: GroupState) -> tuple[PartitionOwner, ...]:
    found = ((tp, state.assignments.get(tp)) for tp in flat_partitions(state))
    return tuple(PartitionOwner(tp, a.record.owner, a.record.session, a.record.epoch) for tp, a in found if a)


def _indexed(key: str, value: bytes, prefix: str) -> GroupIndex:
    try:
        return decode(GroupIndex, value)[0]
    except UnreadableRecord:
        return GroupIndex(group=decode_segment(key[len(prefix) :]))


def _classic_summary(summary: GroupSummary, group: ClassicGroupDescription) -> GroupSummary:
    """Put the figures of a classic group in place of those that only assigner's own groups have."""
    return msgspec.structs.replace(
        summary,
        consumers=len(group.members),
        unowned=0,
        generation=max(0, group.generation),
        kind=CLASSIC,
        state=group.state.value,
    )
