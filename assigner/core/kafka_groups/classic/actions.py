"""Defines what the machine of a classic group asks of its driver: answers, a write, an assignment to compute.

The driver carries out the actions of one call in any order, for the machine keeps back every answer that a write has
to come before. `Limits` is what a group may use, and how long it waits.
"""

from __future__ import annotations

import msgspec

from assigner.model.kafka_groups import ClassicGroupRecord, JoinAnswer, SyncAnswer


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in milliseconds, as in the requests."""

    initial_delay: int = 3_000
    """How long an empty group waits for more members after its first one; each new one begins it again."""
    min_session_timeout: int = 6_000
    max_session_timeout: int = 1_800_000
    max_rebalance_timeout: int = 3_600_000
    """A longer one that a member asks for is cut to this, so that nobody waits longer than this for another."""
    new_member_timeout: int = 300_000
    """How long a new member's JoinGroup is held before it has to come again: it has no session yet."""
    max_members: int = 5_000
    max_member_bytes: int = 262_144
    """Of the metadata that a member joins with, and of the assignment that it is given."""
    max_group_bytes: int = 16_777_216
    """Of the metadata of all members, and of all assignments."""
    max_metadata: int = 4_096
    """Characters of the metadata of a committed offset."""
    server_assigns: bool = False
    """Whether consumers are assigned by the service instead of by one of them."""
    follow_up_delay: int = 3_000
    """How long after an assignment that withheld partitions the next rebalance begins, unless a member begins it."""
    retry_delay: int = 1_000
    """How long after a failed write that nobody's answer depends on it is tried again."""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The answer to a JoinGroup or a SyncGroup that was given to the machine under this number."""

    waiter: int
    answer: JoinAnswer | SyncAnswer


class Write(msgspec.Struct, frozen=True, gc=False):
    """A record to write in place of the one that is stored. The driver then calls `written` or `failed` with the
    number; until it has, there is no other write."""

    number: int
    record: ClassicGroupRecord


class Subscriber(msgspec.Struct, frozen=True, gc=False):
    """A member to assign to."""

    member_id: str
    instance_id: str | None
    metadata: bytes
    """Its `ConsumerProtocolSubscription`."""
    previous: bytes
    """Its assignment of the generation before; empty if it had none."""
    has_joined: bool = True
    """False: a static member that did not come in time, and has what it had."""


class Assign(msgspec.Struct, frozen=True):
    """An assignment to compute for a generation. The driver then calls `assigned` or `not_assigned` with it."""

    generation: int
    protocol: str
    members: tuple[Subscriber, ...]


class RebalanceBegan(msgspec.Struct, frozen=True, gc=False):
    generation: int
    """The one that ends."""
    reason: str


class GenerationBegan(msgspec.Struct, frozen=True, gc=False):
    """All members have joined, or had the time to."""

    generation: int
    members: int
    protocol: str
    leader: str


class GenerationStable(msgspec.Struct, frozen=True, gc=False):
    """The assignment is written, and told to those who asked for it."""

    generation: int
    members: int


class MemberRemoved(msgspec.Struct, frozen=True, gc=False):
    member_id: str
    instance_id: str | None
    reason: str


class MemberReplaced(msgspec.Struct, frozen=True, gc=False):
    """Another process has taken over a static member's instance id."""

    instance_id: str
    old: str
    new: str


Event = RebalanceBegan | GenerationBegan | GenerationStable | MemberRemoved | MemberReplaced
"""What happened in a group, for logs and metrics."""


class Actions(msgspec.Struct, frozen=True):
    replies: tuple[Reply, ...] = ()
    write: Write | None = None
    assign: Assign | None = None
    events: tuple[Event, ...] = ()


class Outbox:
    """Collects the actions of one call."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.write: Write | None = None
        self.assign: Assign | None = None
        self.events: list[Event] = []

    def reply(self, waiter: int, answer: JoinAnswer | SyncAnswer) -> None:
        self.replies.append(Reply(waiter, answer))

    def take(self) -> Actions:
        actions = Actions(tuple(self.replies), self.write, self.assign, tuple(self.events))
        self.replies, self.write, self.assign, self.events = [], None, None, []
        return actions
