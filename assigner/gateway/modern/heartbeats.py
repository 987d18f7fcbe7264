"""Answers one ConsumerGroupHeartbeat: checks it, acts on what it says, and holds the answer while there is no news.

An error is always one of those that clients survive, or that they must not. While the store is away the answer is 14,
upon which clients keep what they have.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Iterator

import anyio
import msgspec

from assigner.auth.actions import Action
from assigner.core.group import GroupState
from assigner.core.kafka_groups.modern.holds import GATHERED, NEWCOMER, TALKATIVE, hold_until, next_interval
from assigner.core.kafka_groups.modern.member import Answer
from assigner.core.kafka_groups.modern.requests import (
    KAFKA_ASSIGNORS,
    LEAVE,
    Heartbeat,
    HeartbeatError,
    Refusal,
    check_instance,
    check_names,
    check_request,
    member_name,
    refusal_of,
    unknown_member,
)
from assigner.errors import AssignerError, GroupKindMismatch, Superseded, UnknownGroup
from assigner.gateway.codec import consumer_heartbeat_answer
from assigner.gateway.modern import encoding
from assigner.gateway.modern.member import Member
from assigner.gateway.modern.members import Members
from assigner.gateway.modern.parts import InstanceParts
from assigner.gateway.modern.patterns import InvalidPattern, check_pattern
from assigner.gateway.requests import Answer as Answered
from assigner.gateway.requests import Entity, Interruption, Request
from assigner.logs import get_logger
from assigner.model.keys import TopicPartition
from assigner.model.names import qualified_group

_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 22

log = get_logger("assigner.gateway.modern")


class Refused(Exception):
    """The heartbeat is answered with an error."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Heartbeats:
    def __init__(self, parts: InstanceParts, members: Members) -> None:
        self._parts = parts
        self._members = members

    async def handle(self, request: Request, entity: Entity) -> Answered:
        group = qualified_group(request.client.org, entity.group_id)
        try:
            state = self._state(group)
            await self._parts.topics.know(state, encoding.topic_ids(entity))
            heard = encoding.heartbeat(entity, self._parts.topics, state)
            return await self._answer(group, request, heard)
        except Refused as refused:
            return encoding.refusal(request.version, refused.refusal)
        except GroupKindMismatch as error:
            log.warning("group_kind_mismatch", group=group, client_id=request.client_id, error=str(error))
            return encoding.refusal(request.version, refusal_of(error))
        except AssignerError as error:
            return encoding.refusal(request.version, refusal_of(error))

    def failed(self, request: Request, entity: Entity, error: Exception) -> Answered:
        message = "an internal error, which the gateway's log tells more about"
        return encoding.refusal(request.version, Refusal(HeartbeatError.COORDINATOR_LOAD_IN_PROGRESS, message))

    async def _answer(self, group: str, request: Request, heard: Heartbeat) -> Answered:
        self._check(group, request, heard)
        if not heard.member_id:
            # Version 0: the service makes the id.
            heard = msgspec.structs.replace(
                heard, member_id="".join(map(secrets.choice, [_ID_CHARACTERS] * _ID_LENGTH))
            )
        _refuse(check_names(heard))
        if heard.leaves:
            await self._leave(group, request, heard)
            return encoding.heartbeat_answer(
                request.version, heard, Answer(heard.member_epoch), 0.0, self._parts.topics, None
            )
        member = await self._member(group, request, heard)
        turn = await self._take(member, heard, request)
        cut_short = await self._hold(member, turn, request, heard)
        return self._told(member, turn, request, heard, cut_short)

    # --- checks --------------------------------------------------------------------------------------------------

    def _check(self, group: str, request: Request, heard: Heartbeat) -> None:
        state = self._state(group)
        strategy = state.options.strategy if state else self._parts.strategy
        _refuse(check_request(heard, request.version, {strategy, *KAFKA_ASSIGNORS}))
        if heard.pattern and not heard.leaves:
            try:
                check_pattern(heard.pattern)
            except InvalidPattern as error:
                _refuse(Refusal(HeartbeatError.INVALID_REGULAR_EXPRESSION, str(error)))

    def _check_access(self, request: Request, group: str, action: Action, name: str) -> None:
        reason = request.client.reason(action, group=group, name=name)
        if reason:
            self._parts.refused("kafka_group_denied")
            _refuse(Refusal(HeartbeatError.GROUP_AUTHORIZATION_FAILED, reason))

    # --- joining, leaving, staying -------------------------------------------------------------------------------

    async def _member(self, group: str, request: Request, heard: Heartbeat) -> Member:
        if heard.joins:
            name = member_name(request.client_id, heard.member_id, heard.instance_id)
            self._check_access(request, heard.group, Action.REGISTER, name)
            await self._check_size(group, name)
            try:
                return await self._members.join(group, heard, request)
            except Superseded as error:
                # Another process has its name. A client that is told 25 would join again at once.
                _refuse(Refusal(HeartbeatError.UNRELEASED_INSTANCE_ID, str(error)))
        await self._check_static(group, heard)
        member = await self._members.find(group, heard.member_id, request)
        if member is None:
            raise Refused(unknown_member(heard))
        self._check_access(request, heard.group, Action.RENEW, member.name)
        return member

    async def _check_static(self, group: str, heard: Heartbeat) -> None:
        if heard.instance_id is None:
            return
        try:
            async with self._parts.mirrors.of(group) as mirror:
                _refuse(check_instance(heard, mirror.state.consumers.get(heard.instance_id)))
        except UnknownGroup:
            raise Refused(unknown_member(heard)) from None

    async def _check_size(self, group: str, name: str) -> None:
        most = self._parts.max_group_size
        try:
            async with self._parts.mirrors.of(group) as mirror:
                if len(mirror.state.consumers) < most or name in mirror.state.consumers:
                    return
        except UnknownGroup:
            return
        self._parts.refused("group_size")
        message = f"group {group!r} has {most} members, as many as gateway.max_group_size allows"
        _refuse(Refusal(HeartbeatError.GROUP_MAX_SIZE_REACHED, message))

    async def _leave(self, group: str, request: Request, heard: Heartbeat) -> None:
        await self._check_static(group, heard)
        record = await self._members.on_record(group, heard.member_id)
        if record is None:
            raise Refused(unknown_member(heard))
        self._check_access(request, heard.group, Action.DEREGISTER, record.consumer_name)
        leave = self._members.leave if heard.member_epoch == LEAVE else self._members.step_out
        await leave(group, record, request.client.identity)

    async def _take(self, member: Member, heard: Heartbeat, request: Request) -> int:
        """Act on what the client says, and return the number of its turn."""
        async with member.lock:
            member.turn += 1
            member.news.notify()
            member.heard_at = self._parts.clock.now()
            turn = member.turn
            _refuse(member.machine.heard(heard))
            if not heard.joins:
                await self._members.follow(member, heard)
                await self._members.renew(member)
            await self._members.let_go(member)
            return turn

    # --- holding the answer --------------------------------------------------------------------------------------

    async def _hold(self, member: Member, turn: int, request: Request, heard: Heartbeat) -> bool:
        """Wait until there is news for the member, or it is time to answer. Returns whether another request of the
        client cut that short."""
        began = self._parts.clock.now()
        request.on_interruption(lambda _: member.news.notify())
        while member.turn == turn and member.ended is None:
            mark = member.news.mark()
            until = began + self._hold_until(member, heard)
            left = until - self._parts.clock.now()
            if left <= 0:
                return False
            if request.interruptions:
                return Interruption.FOLLOWED in request.interruptions
            with anyio.move_on_after(min(left, self._parts.ttl / 4)):
                await member.news.since(mark)
                if member.machine.has_news and not request.interruptions:
                    await anyio.sleep(GATHERED)
            if member.turn == turn and member.ended is None:
                await self._members.let_go(member)
                await self._members.renew(member)
        return False

    def _hold_until(self, member: Member, heard: Heartbeat) -> float:
        state = self._state(member.group)
        return hold_until(
            heard,
            has_news=member.machine.has_news,
            expects_more=heard.joins and self._expects_more(member),
            told=min(member.told, self._parts.interval),
            interval=self._parts.interval,
            debounce=state.options.debounce if state else 0.0,
        )

    def _expects_more(self, member: Member) -> bool:
        """Whether a plan will give the member more than it has: it has nothing, or nobody has some partition of its
        topics, or only its own last session has."""
        if not member.machine.usable:
            return member.may_get_topics
        state = self._state(member.group)
        if state is None:
            return False
        before = (state.assignments[tp].record.session != member.session for tp in state.owned[member.name])
        if not state.unowned() and not any(before):
            return False
        return any(_is_free(state, tp, member) for tp in _partitions(state, member.resolved.topics))

    def _told(self, member: Member, turn: int, request: Request, heard: Heartbeat, cut_short: bool) -> Answered:
        machine = member.machine
        if member.turn != turn or Interruption.CLOSED in request.interruptions:
            answer = machine.no_news()
        elif member.ended is not None:
            raise member.ended
        else:
            answer = machine.answer(heard)
        now = self._parts.clock.now()
        if cut_short:
            member.cut_short_at = now
        is_newcomer = now - member.joined_at < NEWCOMER
        member.told = interval = next_interval(
            interval=self._parts.interval,
            is_talkative=now - member.cut_short_at < TALKATIVE,
            is_newcomer=is_newcomer,
            expects_more=is_newcomer and self._expects_more(member),
        )
        if answer.assignment is None and request.version:
            return consumer_heartbeat_answer(heard.member_id, answer.member_epoch, round(interval * 1000))
        state = self._state(member.group)
        return encoding.heartbeat_answer(request.version, heard, answer, interval, self._parts.topics, state)

    def _state(self, group: str) -> GroupState | None:
        mirror = self._parts.mirrors.get(group)
        return mirror.state if mirror else None


def _partitions(state: GroupState, topics: Iterable[str]) -> Iterator[TopicPartition]:
    for topic in topics:
        if topic in state.topics:
            yield from (TopicPartition(topic, number) for number in range(state.topics[topic].record.partition_count))


def _is_free(state: GroupState, tp: TopicPartition, member: Member) -> bool:
    held = state.assignments.get(tp)
    if held is None or held.record.owner not in state.consumers:
        return True
    return held.record.owner == member.name and held.record.session != member.session


def _refuse(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise Refused(refusal)
