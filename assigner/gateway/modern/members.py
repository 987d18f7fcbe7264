"""Keeps the members that call at this gateway: they join, are resumed, renewed, let go of partitions, and leave.

A member is a consumer of the group with a session of its own, its member id, and a consumer stream that says what it
owns. Its machine compares that with what the client says. All this can be had again from the store and from the client:
a member that called another gateway before is looked up by its session, and resumed.

One member is one machine here. Requests of one member are handled one at a time; the answer of an earlier one that is
still held back is given up, since its client does not wait for it any more.

What is here goes when its session is over, when another gateway serves it, and when nothing is heard of it for a TTL:
by then its lease has ended, unless it is renewed elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import anyio.abc

from assigner.api import CommandStream
from assigner.core.kafka_groups.modern.holds import renewal_is_due
from assigner.core.kafka_groups.modern.member import ModernMember
from assigner.core.kafka_groups.modern.requests import Heartbeat, member_name
from assigner.core.kafka_groups.modern.subscription import Subscription, of_record
from assigner.errors import (
    AssignerError,
    Evicted,
    LimitReached,
    NotRegistered,
    PermissionDenied,
    StoreUnavailable,
    UnknownGroup,
)
from assigner.gateway.modern.member import AnyChange, Client, Member, registration
from assigner.gateway.modern.parts import InstanceParts
from assigner.gateway.modern.subscriptions import FOLLOW_INTERVAL, Resolved, Subscriptions
from assigner.gateway.requests import Request
from assigner.logs import get_logger
from assigner.model.commands import Commands
from assigner.model.names import session_digest
from assigner.model.records import Consumer, Status

MOST_MEMBERS = 20_000
GONE_WITHIN = 2.0
"""Seconds that a leave waits until the mirror shows it."""
log = get_logger("assigner.gateway.modern")


class _Looking:
    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.users = 0


class Members:
    def __init__(self, parts: InstanceParts, subscriptions: Subscriptions, *, most: int = MOST_MEMBERS) -> None:
        self._parts = parts
        self._subscriptions = subscriptions
        self._most = most
        self._members: dict[tuple[str, str], Member] = {}
        self._alike: Counter[Client] = Counter()
        """How many members here can't be told apart by their connections."""
        self._looking: dict[tuple[str, str], _Looking] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Members]:
        keep = self._parts.supervisor.keep
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(keep, "kafka members", self._sweep, name="kafka members")
            self._tasks.start_soon(keep, "kafka subscriptions", self._follow_topics, name="kafka subscriptions")
            yield self
            self._tasks.cancel_scope.cancel()

    def __len__(self) -> int:
        return len(self._members)

    def get(self, group: str, member_id: str) -> Member | None:
        """The member as it is known here. It may be served elsewhere by now."""
        return self._members.get((group, member_id))

    # --- looking up ----------------------------------------------------------------------------------------------

    async def find(self, group: str, member_id: str, request: Request) -> Member | None:
        """The member, resumed if it called elsewhere before. None: no such session lives. Raises the error that ended
        its session, once."""
        member = self._here(group, member_id)
        if member is None:
            async with self._looking_for(group, member_id):
                member = self._here(group, member_id) or await self._resume(group, member_id, request)
        if member is not None:
            _check_identity(member, request)
        if member is not None and member.ended is not None:
            if member.is_over:
                self._remove(member)
                raise member.ended
            await self._mend(member)
        return member

    async def _mend(self, member: Member) -> None:
        """Open another stream for a session that goes on although its stream broke."""
        async with member.lock:
            if member.ended is not None and not member.is_over:
                await self._register(member)

    def _here(self, group: str, member_id: str) -> Member | None:
        member = self._members.get((group, member_id))
        if member is not None and self._is_elsewhere(member):
            self._remove(member)
            return None
        return member

    def _is_elsewhere(self, member: Member) -> bool:
        """Whether the client has called another gateway since, which told it things that are not known here."""
        mirror = self._parts.mirrors.get(member.group)
        record = mirror.state.consumers.get(member.name) if mirror else None
        if record is None or record.record.session != member.session:
            return False
        return record.record.instance != self._parts.name

    async def _resume(self, group: str, member_id: str, request: Request) -> Member | None:
        record = await self.on_record(group, member_id)
        if record is None or record.away or record.status is Status.DRAINING:
            return None
        now = self._parts.clock.now()
        member = Member(group, record.consumer_name, ModernMember(member_id, resumed=True), request, now)
        member.client_id = record.client_id or request.client_id
        member.subscription = of_record(record)
        self._check_room()
        await self._register(member)
        self._keep(member)
        log.info("kafka_member_resumed", group=group, consumer=member.name, session=session_digest(member_id))
        return member

    async def on_record(self, group: str, member_id: str) -> Consumer | None:
        """The registration of this session, if it lives. It may have stepped out."""
        try:
            async with self._parts.mirrors.of(group) as mirror:
                found = mirror.state.consumer_of_session(member_id)
                return found.record if found else None
        except UnknownGroup:
            return None

    @asynccontextmanager
    async def _looking_for(self, group: str, member_id: str) -> AsyncIterator[None]:
        """One request at a time that looks a member up, or has it join."""
        key = (group, member_id)
        looking = self._looking.setdefault(key, _Looking())
        looking.users += 1
        try:
            async with looking.lock:
                yield
        finally:
            looking.users -= 1
            if not looking.users:
                del self._looking[key]

    # --- joining -------------------------------------------------------------------------------------------------

    async def join(self, group: str, heard: Heartbeat, request: Request) -> Member:
        """Register a member that joins, or joins again. Raises as `Membership.register` does."""
        async with self._looking_for(group, heard.member_id):
            member = self._here(group, heard.member_id)
            if member is not None:
                _check_identity(member, request)
            if member is None or member.ended is not None:
                if member is not None:
                    self._remove(member)
                self._check_room()
                name = member_name(request.client_id, heard.member_id, heard.instance_id)
                member = Member(group, name, ModernMember(heard.member_id), request, self._parts.clock.now())
            async with member.lock:
                member.subscription = member.subscription.after(heard)
                member.joined_at = self._parts.clock.now()
                await self._register_anew(member)
            self._keep(member)
            return member

    def _keep(self, member: Member) -> None:
        key = member.group, member.session
        if self._members.get(key) is not member:
            self._members[key] = member
            self._alike[member.client] += 1

    async def _register_anew(self, member: Member) -> None:
        """Register a member that has nothing any more: whatever its session was, it may begin again."""
        try:
            await self._register(member)
        except Evicted:
            # It says itself that it has none of its partitions any more, so nobody needs to wait for them.
            with suppress(NotRegistered):
                await self._parts.membership.deregister(
                    member.group, member.name, member.session, gates_closed=True, principal=member.principal
                )
            await self._register(member)

    def _check_room(self) -> None:
        if len(self._members) >= self._most:
            self._parts.refused("kafka_members")
            raise LimitReached(f"this gateway serves {self._most} members already; connect to another one")

    async def follow(self, member: Member, heard: Heartbeat) -> None:
        """Register the member again if what it wants has changed."""
        member.subscription = member.subscription.after(heard)
        if member.subscription != member.registered:
            await self._register(member)

    async def _register(self, member: Member) -> None:
        """Register the member's session, and open its stream. Returns when the stream has told all that it owns."""
        assert self._tasks is not None
        await self._parts.directory.enter(member.group)
        subscription = member.subscription
        resolved = await self._subscriptions.resolve(member.group, subscription)
        began_at = self._parts.clock.now()
        stream = await self._parts.membership.register(
            registration(member, subscription, resolved), self._parts.clock.now
        )
        member.stream, member.ended = stream, None
        if subscription != member.registered:
            member.joined_at = began_at
        member.registered, member.resolved, member.renewed_at = subscription, resolved, began_at
        began = anyio.Event()
        work = partial(self._live, member, stream, began)
        self._tasks.start_soon(
            partial(
                self._parts.supervisor.keep,
                "kafka member",
                work,
                may_end=True,
                group=member.group,
                consumer=member.name,
            ),
            name=f"kafka member {member.group}/{member.name}",
        )
        await began.wait()

    # --- the stream ----------------------------------------------------------------------------------------------

    async def _live(self, member: Member, stream: CommandStream, began: anyio.Event) -> None:
        """Take what the stream says, until it ends."""
        if member.stream is not stream or member.ended is not None:
            # Started again after a failure: whoever asks for the member next registers it again.
            return
        try:
            with anyio.CancelScope() as member.scope:
                async for commands in stream.commands():
                    if member.stream is not stream:
                        return
                    await self._take(member, commands)
                    began.set()
                    member.news.notify()
                self._end(member, stream, NotRegistered(f"consumer {member.name!r} was drained; register again"))
        except AssignerError as error:
            self._end(member, stream, error)
        except Exception as error:
            self._end(member, stream, StoreUnavailable(f"the stream of {member.name!r} failed: {error}"))
            raise
        finally:
            began.set()
            member.news.notify()
            with anyio.CancelScope(shield=True):
                await stream.leave()

    async def _take(self, member: Member, commands: Commands) -> None:
        ready = member.machine.commands(commands)
        self._update_topics(member)
        if ready:
            await self._parts.membership.ready(
                member.group, member.name, member.session, ready, principal=member.principal
            )

    def _update_topics(self, member: Member) -> None:
        mirror = self._parts.mirrors.get(member.group)
        state = mirror.state if mirror else None
        ids = self._parts.topics
        member.machine.topics = frozenset(
            topic for topic in member.resolved.topics if ids.id_of(state, topic) is not None
        )

    def _end(self, member: Member, stream: CommandStream, error: AssignerError) -> None:
        if member.stream is not stream:
            return
        member.ended = error
        if member.is_over:
            # One that shares its name and address with others here may not be the one that goes on reading.
            alone = self._alike[member.client] <= 1
            closed = self._parts.fetchers.close_fetchers(*member.client) if alone else 0
            log.info(
                "kafka_member_ended",
                group=member.group,
                consumer=member.name,
                session=session_digest(member.session),
                reason=str(error),
                closed=closed,
            )

    # --- staying -------------------------------------------------------------------------------------------------

    async def renew(self, member: Member) -> None:
        """Renew the member's lease, unless it was renewed a moment ago."""
        began = self._parts.clock.now()
        if renewal_is_due(began - member.renewed_at, self._parts.ttl):
            await self._parts.membership.renew(member.group, member.name, member.session, principal=member.principal)
            member.renewed_at = began

    async def let_go(self, member: Member) -> None:
        """Write what the member has let go of."""
        due = member.machine.due
        if not due:
            return
        rejected = await self._parts.membership.released(
            member.group, member.name, member.session, due, principal=member.principal
        )
        for one in rejected:
            log.warning(
                "kafka_release_rejected",
                group=member.group,
                consumer=member.name,
                partition=str(one.tp),
                error=str(one.error),
            )
        member.machine.released(due)

    # --- leaving -------------------------------------------------------------------------------------------------

    async def leave(self, group: str, record: Consumer, principal: str) -> None:
        """End the session of a member that has let go of everything. Returns when that is mirrored: the client may join
        again at once, under the same member id."""
        name, session = record.consumer_name, record.session
        self._forget(group, session)
        async with self._parts.mirrors.of(group) as mirror:
            change = AnyChange()
            mirror.listen(change)
            try:
                await self._parts.membership.deregister(group, name, session, gates_closed=True, principal=principal)
                with anyio.move_on_after(GONE_WITHIN):
                    await change.wakeup.until(lambda: mirror.state.consumer_of_session(session) is None)
            finally:
                mirror.unlisten(change)

    async def step_out(self, group: str, record: Consumer, principal: str) -> None:
        """Let a static member leave for a while: it keeps its partitions for its next process."""
        self._forget(group, record.session)
        await self._parts.membership.step_out(group, record.consumer_name, record.session, principal=principal)

    def _forget(self, group: str, member_id: str) -> None:
        member = self._members.get((group, member_id))
        if member is not None:
            self._remove(member)

    def _remove(self, member: Member) -> None:
        """Stop serving the member here. Its session is not touched."""
        if self._members.get((member.group, member.session)) is member:
            del self._members[member.group, member.session]
            self._alike[member.client] -= 1
            if not self._alike[member.client]:
                del self._alike[member.client]
        member.stream = None
        member.turn += 1
        member.news.notify()
        if member.scope is not None:
            member.scope.cancel()

    async def _sweep(self) -> None:
        """Forget members of whom nothing was heard for a TTL."""
        while True:
            await anyio.sleep(self._parts.ttl / 2)
            silent = self._parts.clock.now() - self._parts.ttl
            for member in [one for one in self._members.values() if one.heard_at < silent]:
                self._remove(member)

    # --- topics that appear --------------------------------------------------------------------------------------

    async def _follow_topics(self) -> None:
        while True:
            await anyio.sleep(FOLLOW_INTERVAL)
            found: dict[tuple[str, Subscription], Resolved] = {}
            for member in list(self._members.values()):
                await self._look_again(member, found)

    async def _look_again(self, member: Member, found: dict[tuple[str, Subscription], Resolved]) -> None:
        """Register the member again if its subscription has other topics now. `found`: those of members before it, who
        mostly want the same."""
        wanted = member.group, member.subscription
        try:
            if wanted not in found:
                found[wanted] = await self._subscriptions.resolve(*wanted, again=True)
            if found[wanted] == member.resolved or member.ended is not None:
                return
            async with member.lock:
                if member.stream is not None:
                    await self._register(member)
        except AssignerError as error:
            log.warning("kafka_subscription_not_followed", group=member.group, consumer=member.name, error=str(error))


def _check_identity(member: Member, request: Request) -> None:
    """Raise `PermissionDenied` for a request of another identity than the one that the session is bound to: what a
    gateway does for a member, it does as that one."""
    if member.principal and member.principal != request.client.identity:
        raise PermissionDenied(
            f"member {member.name!r} of group {member.group!r} is another identity's than "
            f"{request.client.identity or 'none'!r}; use a member id of your own"
        )
