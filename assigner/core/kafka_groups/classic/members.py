"""Keeps the members of a classic group: in the order of joining, by instance id, and the protocols that all support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from assigner.model.kafka_groups import ClassicMemberRecord, JoinedMember, JoinRequest

Protocols = tuple[tuple[str, bytes], ...]


class Member:
    """A member that has joined, now or for an earlier generation."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline",
        "instance_id",
        "is_new",
        "join_waiter",
        "member_id",
        "protocols",
        "rebalance_timeout",
        "session_timeout",
        "skips_assignment",
        "sync_waiter",
    )

    def __init__(self, record: ClassicMemberRecord) -> None:
        self.member_id = record.member_id
        self.instance_id = record.instance_id
        self.client_id = record.client_id
        self.client_host = record.client_host
        self.session_timeout = record.session_timeout
        self.rebalance_timeout = record.rebalance_timeout
        self.protocols: Protocols = record.protocols
        self.assignment = record.assignment
        """Of the last generation that was told to anybody."""
        self.join_waiter: int | None = None
        self.sync_waiter: int | None = None
        self.is_new = False
        """It waits for its first generation, and so has no session that keeps it."""
        self.skips_assignment = False
        """Whether the JoinGroup that waits is of a version that can be told not to assign."""
        self.deadline = 0.0
        """The end of its session, unless it waits for an answer."""

    @property
    def awaits_join(self) -> bool:
        return self.join_waiter is not None

    @property
    def is_held(self) -> bool:
        """Whether it has done what it had to and waits for others, and so is not expected to send heartbeats."""
        return not self.is_new and (self.join_waiter is not None or self.sync_waiter is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Collection[str]) -> str | None:
        return next((name for name, _ in self.protocols if name in candidates), None)

    def record(self, assignment: bytes) -> ClassicMemberRecord:
        return ClassicMemberRecord(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout=self.session_timeout,
            rebalance_timeout=self.rebalance_timeout,
            protocols=self.protocols,
            assignment=assignment,
        )


class MemberList:
    """The members of a group. Nobody else changes which protocols they have, or the counts would be wrong."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        """Member ids by instance id."""
        self._support: Counter[str] = Counter()
        self._awaiting_join = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def static(self, instance_id: str) -> Member | None:
        member_id = self._static.get(instance_id)
        return self._members[member_id] if member_id is not None else None

    def add(self, member: Member) -> None:
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._bytes += bytes_of(member.protocols)
        self._support.update(name for name, _ in member.protocols)

    def remove(self, member_id: str) -> Member | None:
        member = self._members.pop(member_id, None)
        if member is not None:
            self._unsupport(member)
            self._awaiting_join -= member.awaits_join
            if member.instance_id is not None:
                del self._static[member.instance_id]
        return member

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id, in its place in the order."""
        self._members = {member_id if one is member else one.member_id: one for one in self}
        member.member_id = member_id
        assert member.instance_id is not None
        self._static[member.instance_id] = member_id

    def hold_join(self, member: Member, waiter: int) -> int | None:
        """Let the member wait for an answer to its JoinGroup. Returns the waiter that this one replaces."""
        before = self.end_join(member)
        member.join_waiter = waiter
        self._awaiting_join += 1
        return before

    def end_join(self, member: Member) -> int | None:
        waiter, member.join_waiter = member.join_waiter, None
        self._awaiting_join -= waiter is not None
        return waiter

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._unsupport(member)
        member.protocols = protocols
        self._bytes += bytes_of(protocols)
        self._support.update(name for name, _ in protocols)

    def _unsupport(self, member: Member) -> None:
        self._bytes -= bytes_of(member.protocols)
        for name, _ in member.protocols:
            self._support[name] -= 1
            if not self._support[name]:
                del self._support[name]

    def support_any(self, names: Collection[str]) -> bool:
        """Whether all members support one of these protocols."""
        return any(self._support[name] == len(self) for name in names)

    def elected_protocol(self) -> str | None:
        """The protocol with the most votes; each member votes for the one it likes best of those that all support."""
        candidates = {name for name, count in self._support.items() if count == len(self)}
        votes = Counter(vote for member in self if (vote := member.vote(candidates)) is not None)
        return votes.most_common(1)[0][0] if votes else None

    def joined(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        return tuple(JoinedMember(one.member_id, one.instance_id, one.metadata(protocol)) for one in self)

    @property
    def rebalance_timeout(self) -> int:
        return max((member.rebalance_timeout for member in self), default=0)

    @property
    def bytes(self) -> int:
        """Of the metadata of all."""
        return self._bytes

    @property
    def awaiting_join(self) -> int:
        """How many wait for an answer to their JoinGroup."""
        return self._awaiting_join


def bytes_of(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def member_of(request: JoinRequest, member_id: str) -> ClassicMemberRecord:
    return ClassicMemberRecord(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout=request.session_timeout,
        rebalance_timeout=request.rebalance_timeout,
        protocols=request.protocols,
    )
