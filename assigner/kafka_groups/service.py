"""`ClassicGroupService` answers requests of classic groups: as their coordinator where they are led here, else that it
is not.

A group comes into being by the first JoinGroup, or by a commit of a consumer that is in no group. Whichever instance is
asked enters it in the index; the elected leader then answers. Any instance answers what needs no leader: which offsets
are committed, and which groups there are.

Errors are answers: a store that is away is 14, for clients try again at once and keep what they have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from assigner.api import WantedOffsets
from assigner.clock import Clock
from assigner.core.kafka_groups.classic.actions import Limits
from assigner.core.kafka_groups.classic.offsets import refused
from assigner.core.kafka_groups.classic.requests import check_commit_to_nobody
from assigner.election import Term
from assigner.errors import (
    AssignerError,
    GroupKindMismatch,
    InvalidName,
    StoreError,
    UnknownGroup,
    UnreadableRecord,
)
from assigner.kafka_groups.assignor import ServerAssignor
from assigner.kafka_groups.commits import ClassicOffsets
from assigner.kafka_groups.coordinator import LOADING, NOT_HERE, GroupCoordinator
from assigner.kafka_groups.expiry import OffsetExpiry
from assigner.kafka_groups.held import HeldRequests
from assigner.kafka_groups.listing import listed
from assigner.kafka_groups.records import GroupRecords
from assigner.kafka_groups.watching import GroupWatch
from assigner.logs import get_logger
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicFetch,
    ClassicGroupDescription,
    ClassicState,
    CommitAnswer,
    FetchAnswer,
    FetchedOffset,
    GroupListing,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    KafkaError,
    LeaveAnswer,
    LeaveRequest,
    OffsetDeletion,
    OffsetDeletionAnswer,
    SyncAnswer,
    SyncRequest,
)
from assigner.model.keys import Keys, TopicPartition
from assigner.model.names import check_name, org_and_group, qualified_group
from assigner.model.records import Offset
from assigner.observability.metrics import Metrics
from assigner.offsets.commit import OffsetService
from assigner.storage.groups import GroupDirectory
from assigner.storage.kinds import CLASSIC
from assigner.storage.mirror import Mirrors
from assigner.store import Store

MAX_FETCHED = 100_000
"""Offsets in one answer."""
Delete = Callable[[str], Awaitable[None]]
"""Deletes a group with all its records."""

log = get_logger("assigner.kafka_groups.service")


class ClassicGroupService:
    """Implements `assigner.api.ClassicGroups` for the groups that are led by this instance."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        directory: GroupDirectory,
        mirrors: Mirrors,
        offsets: OffsetService,
        clock: Clock,
        metrics: Metrics,
        *,
        limits: Limits,
        retention: float,
        delete: Delete,
        assignor: ServerAssignor,
    ) -> None:
        """`retention`: seconds for which offsets of a group without members are kept."""
        self._store = store
        self._keys = keys
        self._directory = directory
        self._mirrors = mirrors
        self._offsets = offsets
        self._clock = clock
        self._metrics = metrics
        self._limits = limits
        self._delete = delete
        self._assignor = assignor
        self._commits = ClassicOffsets(store, keys, offsets, limits)
        self._expiry = OffsetExpiry(store, keys, self._commits, clock, retention, self._forget)
        self._held = HeldRequests(refused=metrics.refused)
        self._led: dict[str, GroupCoordinator] = {}

    @property
    def held(self) -> int:
        """How many requests wait here for others."""
        return len(self._held)

    def leads(self, org: str, group: str) -> bool:
        """Whether this instance is the group's coordinator, as far as it knows."""
        led = self._led.get(qualified_group(org, group))
        return led is not None and led.refusal is not NOT_HERE

    # --- leading -----------------------------------------------------------------------------------------------------

    async def run_term(self, term: Term) -> None:
        """Coordinate a group of classic members, until cancelled."""
        while True:
            coordinator = self._coordinator(term)
            self._led[term.group] = coordinator
            try:
                await self._coordinate(coordinator)
            finally:
                if self._led.get(term.group) is coordinator:
                    del self._led[term.group]

    def _coordinator(self, term: Term) -> GroupCoordinator:
        records = GroupRecords(self._store, self._keys, term.group, term.fence, self._clock)
        name = org_and_group(term.group)[1]
        return GroupCoordinator(
            name, term, records, self._clock, self._limits, self._held, self._assignor, self._metrics
        )

    async def _coordinate(self, coordinator: GroupCoordinator) -> None:
        """Coordinate the group until it has to be loaded again."""
        term = coordinator.term
        async with self._mirrors.of(term.group, leads=True) as mirror, anyio.create_task_group() as tasks:
            await mirror.wait_for(term.revision)
            tasks.start_soon(self._expiry.run, coordinator, name=f"offset expiry of {term.group}")
            watch = GroupWatch(mirror, coordinator)
            with watch.listening():
                await coordinator.run(server_assigns=watch.server_assigns)
            # A term that is over ends from outside; until then the answer is that this is not the coordinator.
            await coordinator.to_reload.wait()
            tasks.cancel_scope.cancel()

    # --- members -----------------------------------------------------------------------------------------------------

    async def join(self, org: str, request: JoinRequest, *, principal: str = "") -> JoinAnswer:
        led = self._led.get(qualified_group(org, request.group))
        if led is not None:
            return await led.join(request)
        error = await self._enter(org, request.group)
        return JoinAnswer(error=error or NOT_HERE, member_id=request.member_id)

    async def sync(self, org: str, request: SyncRequest, *, principal: str = "") -> SyncAnswer:
        led = self._led.get(qualified_group(org, request.group))
        if led is not None:
            return await led.sync(request)
        error = await self._elsewhere(org, request.group, KafkaError.UNKNOWN_MEMBER_ID)
        return SyncAnswer(error=KafkaError.REBALANCE_IN_PROGRESS if error is LOADING else error)

    async def heartbeat(self, org: str, request: HeartbeatRequest, *, principal: str = "") -> HeartbeatAnswer:
        led = self._led.get(qualified_group(org, request.group))
        if led is not None:
            return led.heartbeat(request)
        error = await self._elsewhere(org, request.group, KafkaError.UNKNOWN_MEMBER_ID)
        return HeartbeatAnswer(error=KafkaError.NONE if error is LOADING else error)

    async def leave(self, org: str, request: LeaveRequest, *, principal: str = "") -> LeaveAnswer:
        led = self._led.get(qualified_group(org, request.group))
        if led is not None:
            return led.leave(request)
        return LeaveAnswer(error=await self._elsewhere(org, request.group, KafkaError.UNKNOWN_MEMBER_ID))

    # --- offsets -----------------------------------------------------------------------------------------------------

    async def commit(self, org: str, request: ClassicCommit, *, principal: str = "") -> CommitAnswer:
        led = self._led.get(qualified_group(org, request.group))
        if led is not None:
            return await self._commits.commit(led, request, self._clock.now())
        error = await self._elsewhere(org, request.group, check_commit_to_nobody(request))
        if not error:
            error = await self._enter(org, request.group)
        return refused(request, error or NOT_HERE)

    async def fetch(self, org: str, request: ClassicFetch, *, principal: str = "") -> FetchAnswer:
        group = qualified_group(org, request.group)
        if not request.every and not request.partitions:
            return FetchAnswer()
        wanted = WantedOffsets(tuple(TopicPartition(*one) for one in request.partitions))
        found: list[FetchedOffset] = []
        try:
            while True:
                page = await self._offsets.fetch(group, wanted)
                found += [_fetched(tp, offset) for tp, offset in page.offsets if offset or not request.every]
                found += [_unreadable(tp) for tp in page.unreadable]
                if len(found) > MAX_FETCHED:
                    # Not a part of them: what is left out would count as not committed.
                    return FetchAnswer(error=KafkaError.MESSAGE_TOO_LARGE)
                if page.last is None:
                    return FetchAnswer(offsets=tuple(found))
                rest = wanted.partitions[wanted.partitions.index(page.last) + 1 :] if wanted.partitions else ()
                wanted = WantedOffsets(rest, after=None if rest else page.last)
        except StoreError as error:
            log.warning("classic_fetch_failed", group=group, error=str(error))
            return FetchAnswer(error=LOADING)

    async def delete_offsets(self, org: str, request: OffsetDeletion, *, principal: str = "") -> OffsetDeletionAnswer:
        led = self._led.get(qualified_group(org, request.group))
        if led is not None:
            return await self._commits.delete(led, request)
        return OffsetDeletionAnswer(error=await self._elsewhere(org, request.group, KafkaError.GROUP_ID_NOT_FOUND))

    # --- groups ------------------------------------------------------------------------------------------------------

    async def list_groups(self, org: str, *, principal: str = "") -> GroupListing:
        groups = [group for group in self._directory.names(CLASSIC) if org_and_group(group)[0] == org]
        live = {group: led.machine for group, led in self._led.items() if not led.refusal}
        try:
            return GroupListing(groups=await listed(self._store, self._keys, sorted(groups), live))
        except StoreError as error:
            log.warning("classic_listing_failed", error=str(error))
            return GroupListing(error=LOADING)

    async def describe(self, org: str, group: str, *, principal: str = "") -> ClassicGroupDescription:
        led = self._led.get(qualified_group(org, group))
        if led is not None:
            return led.describe()
        error = await self._elsewhere(org, group, KafkaError.GROUP_ID_NOT_FOUND)
        return ClassicGroupDescription(group=group, error=error, state=ClassicState.DEAD)

    async def delete(self, org: str, group: str, *, principal: str = "") -> KafkaError:
        led = self._led.get(qualified_group(org, group))
        if led is None:
            return await self._elsewhere(org, group, KafkaError.GROUP_ID_NOT_FOUND)
        await led.settled()
        error = led.refusal or led.machine.check_delete()
        if error:
            return error
        if not led.records.is_empty:
            # The write that would say so failed, and will be tried again.
            return LOADING
        return await self._remove(led, principal)

    async def _forget(self, led: GroupCoordinator, commits: int) -> None:
        """Delete a group of which nothing is left, unless somebody has come back."""
        if led.is_unused_since(commits) and led.records.is_empty:
            await self._remove(led, "")

    async def _remove(self, led: GroupCoordinator, principal: str) -> KafkaError:
        # From here on nobody joins or commits. A deletion ends the term; if it fails, the group is loaded again.
        led.end()
        try:
            await self._delete(led.term.group)
        except UnknownGroup:
            return KafkaError.NONE
        except AssignerError as failure:
            log.warning("classic_deletion_failed", group=led.term.group, error=str(failure))
            led.to_reload.set()
            return LOADING
        log.info("classic_group_deleted", group=led.term.group, principal=principal)
        return KafkaError.NONE

    # --- groups that are not led here --------------------------------------------------------------------------------

    async def _enter(self, org: str, group: str) -> KafkaError:
        """Have the group exist as one of classic members."""
        name = qualified_group(org, group)
        try:
            check_name("group", group)
            await self._directory.enter(name, CLASSIC)
        except InvalidName:
            return KafkaError.INVALID_GROUP_ID
        except GroupKindMismatch as error:
            self._metrics.refused("group_kind")
            log.warning(
                "classic_group_refused",
                group=name,
                reason=str(error),
                remedy="set group.protocol=consumer, or give this consumer another group.id",
            )
            return KafkaError.INCONSISTENT_GROUP_PROTOCOL
        except UnreadableRecord as error:
            log.error("record_unreadable", group=name, key=self._keys.group_index(name), error=str(error))
            return KafkaError.COORDINATOR_NOT_AVAILABLE
        except AssignerError as error:
            log.warning("classic_group_not_made", group=name, error=str(error))
            return LOADING
        return KafkaError.NONE

    async def _elsewhere(self, org: str, group: str, unknown: KafkaError) -> KafkaError:
        """What to answer for a group that is not led here: `unknown` if it is no group of classic members."""
        name = qualified_group(org, group)
        if self._directory.mirrored_kind(name) == CLASSIC:
            return NOT_HERE
        try:
            check_name("group", group)
            kind = await self._directory.kind(name)
        except InvalidName:
            return KafkaError.INVALID_GROUP_ID
        except StoreError:
            return LOADING
        return NOT_HERE if kind == CLASSIC else unknown


def _fetched(tp: TopicPartition, found: Offset | None) -> FetchedOffset:
    if found is None:
        return FetchedOffset(topic=tp.topic, partition=tp.partition)
    return FetchedOffset(
        topic=tp.topic,
        partition=tp.partition,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


def _unreadable(tp: TopicPartition) -> FetchedOffset:
    # Not as if there were none: its reader would go back to the beginning.
    return FetchedOffset(topic=tp.topic, partition=tp.partition, error=KafkaError.UNKNOWN_SERVER_ERROR)
