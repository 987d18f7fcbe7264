"""One member as a gateway knows it: its machine, its stream, and what the client said of itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import anyio

from assigner.aio.wakeup import Wakeup
from assigner.api import CommandStream, Registration
from assigner.core.group import Change
from assigner.core.kafka_groups.modern.holds import SHORT_INTERVAL
from assigner.core.kafka_groups.modern.member import ModernMember
from assigner.core.kafka_groups.modern.subscription import Subscription
from assigner.errors import AssignerError, Evicted, NotRegistered, Superseded
from assigner.gateway.modern.subscriptions import Resolved
from assigner.gateway.requests import Request
from assigner.model.records import KAFKA_MEMBER

OVER = (Evicted, NotRegistered, Superseded)
"""Errors after which a session does not go on."""

Client = tuple[str, str, str]
"""(principal, client id, host)"""


class Member:
    """One member at this gateway."""

    def __init__(self, group: str, name: str, machine: ModernMember, request: Request, now: float) -> None:
        self.group = group
        """Qualified with the organization."""
        self.name = name
        self.machine = machine
        self.principal = request.client.identity
        self.client_id = request.client_id
        self.host = request.client.host
        self.subscription = Subscription()
        self.registered: Subscription | None = None
        """The subscription of its last registration."""
        self.resolved = Resolved()
        self.scope: anyio.CancelScope | None = None
        """Of the task that reads its stream."""
        self.stream: CommandStream | None = None
        self.ended: AssignerError | None = None
        """Why its stream ended."""
        self.joined_at = now
        """When it joined, or changed its subscription."""
        self.heard_at = now
        self.renewed_at = now
        self.told = SHORT_INTERVAL
        """The interval that it was last told. Of one that another gateway served nobody knows: the short one."""
        self.cut_short_at = -math.inf
        """When another request of its last ended a hold."""
        self.turn = 0
        """The number of its last request."""
        self.news = Wakeup()
        self.lock = anyio.Lock()

    @property
    def session(self) -> str:
        return self.machine.member_id

    @property
    def client(self) -> Client:
        """What its connections tell of it."""
        return self.principal, self.client_id, self.host

    @property
    def is_over(self) -> bool:
        return isinstance(self.ended, OVER)

    @property
    def may_get_topics(self) -> bool:
        """Whether it subscribes to anything."""
        return not self.subscription.is_empty


def registration(member: Member, subscription: Subscription, resolved: Resolved) -> Registration:
    return Registration(
        group=member.group,
        name=member.name,
        session=member.session,
        topics=resolved.topics,
        explicit_topics=True,
        pattern=resolved.pattern,
        rack=subscription.rack,
        release_timeout=subscription.rebalance_timeout,
        renews=True,
        cold=True,
        kind=KAFKA_MEMBER,
        client_id=member.client_id,
        host=member.host,
        principal=member.principal,
        takeover=False,
    )


class AnyChange:
    """Listens to a mirror for any change."""

    def __init__(self) -> None:
        self.wakeup = Wakeup()

    def changed(self, changes: Sequence[Change]) -> None:
        self.wakeup.notify()
