"""The machine of one member: what it owns, what it was told, what it says it has, and under which epochs.

Two sides feed it. The consumer stream says what the member owns and what it has to let go (`commands`); heartbeats say
what the client has (`heard`), and each is answered with what it may use at once (`answer`). An answer holds the
complete assignment or none, never a difference, so a lost one is made good by the next.

    given        the assignment grows, and the member epoch rises with it
    taken away   the assignment shrinks under the same epoch; the client lets go and says what it still has
    let go       a partition that the client was told to let go and does not name any more: its Released is due

A client that names less than it was given has not let go of the rest: it may not have resolved the ids yet. So only a
partition that it was told to let go counts, in a request that came after that answer.

A member epoch is this gateway's own and in no record. A member that another gateway served is resumed: it keeps the
epoch that its client has, and is told its complete assignment under it, upon which a client calls nobody back.

Acks are due only while the client calls here. A machine whose client has moved on to another gateway is silent, since
it does not know what the client was told there.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from assigner.core.kafka_groups.modern.requests import Heartbeat, HeartbeatError, Refusal
from assigner.model.commands import Ack, Commands
from assigner.model.keys import TopicPartition

LARGEST_EPOCH = 2**31 - 1


class Answer(msgspec.Struct, frozen=True):
    """What a heartbeat is answered with, if with no error."""

    member_epoch: int
    assignment: frozenset[TopicPartition] | None = None
    """Everything that the member may use; None: as it was told before."""


class ModernMember:
    def __init__(self, member_id: str, *, resumed: bool = False) -> None:
        """`resumed`: the member was served elsewhere, and the first request tells its epoch."""
        self.member_id = member_id
        self.epoch = 0
        self.generation = 0
        """Of the plan that the stream has shown last."""
        self.topics: frozenset[str] = frozenset()
        """Those that the member subscribes to and that have an id to tell it: partitions of others are not told."""
        self.owned: dict[TopicPartition, int] = {}
        """Partition -> the epoch of the ownership, which offsets are committed under."""
        self.told_at: dict[TopicPartition, int] = {}
        """Partition -> the member epoch with which the client was first given it; 0: elsewhere, it is not known."""
        self._previous = 0
        self._told: frozenset[TopicPartition] | None = None
        """The assignment that the client was told last; None: it was told none here."""
        self._revoking: dict[TopicPartition, str] = {}
        """Partition to let go -> its handoff."""
        self._let_go: set[TopicPartition] = set()
        """Partitions that the client was told not to use any more, and that it has not named since."""
        self._resumed = resumed

    # --- what the client says ------------------------------------------------------------------------------------

    def heard(self, request: Heartbeat) -> Refusal | None:
        """Take what a request says; a refusal if its epoch is not the member's."""
        if request.joins:
            # It starts anew, and has nothing.
            self._told = None
            self._resumed = False
            self.told_at.clear()
        elif refusal := self._check_epoch(request):
            return refusal
        if request.owned is not None:
            given = {*self.told_at, *self._revoking}
            self._let_go.update(tp for tp in given if tp not in request.owned and not self._is_told(tp))
        return None

    def _check_epoch(self, request: Heartbeat) -> Refusal | None:
        epoch = request.member_epoch
        if self._resumed:
            self.learn(epoch)
            return None
        # Not the previous epoch alone: a client whose answer was lost says what it has, another one is behind.
        lost_answer = epoch == self._previous and request.owned is not None and request.owned <= (self._told or set())
        if epoch == self.epoch or lost_answer:
            return None
        return Refusal(
            HeartbeatError.FENCED_MEMBER_EPOCH,
            f"member {self.member_id!r} is at epoch {self.epoch}, and the request says {epoch}: join again",
        )

    def learn(self, epoch: int) -> None:
        """Take the client's epoch, if it was given it elsewhere."""
        if self._resumed and epoch <= LARGEST_EPOCH:
            self.epoch = max(self.epoch, epoch)

    def _is_told(self, tp: TopicPartition) -> bool:
        return self._told is not None and tp in self._told

    # --- what the stream says ------------------------------------------------------------------------------------

    def commands(self, commands: Commands) -> list[Ack]:
        """Take commands of the consumer stream. Returns the partitions that are ready at once, since a Kafka client
        warms nothing."""
        self.generation = commands.generation
        if commands.full:
            self.owned.clear()
            self._revoking.clear()
        for tp, epoch in commands.assigned:
            if self._told is not None and tp in self._told and tp not in self.told_at and not self._resumed:
                # Lost and given back before the client heard of it: it is given anew.
                self._told -= {tp}
            self.owned[tp] = epoch
            self._revoking.pop(tp, None)
        for tp, _ in commands.unassigned:
            self._drop(tp)
        for release in commands.releases:
            self._revoking[release.tp] = release.handoff_id
        if commands.full:
            self._begin_with_all()
        return [Ack(warm.tp, warm.handoff_id) for warm in commands.warms]

    def _begin_with_all(self) -> None:
        """Forget what is not the member's any more, as the first commands of a stream tell it."""
        for tp in [tp for tp in self.told_at if tp not in self.owned and tp not in self._revoking]:
            del self.told_at[tp]
        self._let_go &= {*self.told_at, *self._revoking}
        if self._resumed:
            self.told_at.update(dict.fromkeys([*self.owned, *self._revoking], 0))

    def _drop(self, tp: TopicPartition) -> None:
        self.owned.pop(tp, None)
        self.told_at.pop(tp, None)
        self._revoking.pop(tp, None)
        self._let_go.discard(tp)

    # --- letting go ----------------------------------------------------------------------------------------------

    @property
    def due(self) -> list[Ack]:
        """The Released that are due now, while the client calls here: of what it has let go, and of what it never
        had."""
        return [
            Ack(tp, handoff)
            for tp, handoff in self._revoking.items()
            if tp in self._let_go or (tp not in self.told_at and not self._is_told(tp))
        ]

    def released(self, acks: Collection[Ack]) -> None:
        """The acks are on record."""
        for ack in acks:
            if self._revoking.get(ack.tp) == ack.handoff_id:
                self._drop(ack.tp)

    # --- what the client is told ---------------------------------------------------------------------------------

    @property
    def usable(self) -> frozenset[TopicPartition]:
        """What the client may use now."""
        return frozenset(tp for tp in self.owned if tp not in self._revoking and tp.topic in self.topics)

    @property
    def has_news(self) -> bool:
        """Whether there is something that the client was not told yet."""
        return self._told != self.usable

    def answer(self, request: Heartbeat) -> Answer:
        """Make the answer to a request, and remember what the client knows by it."""
        usable = self.usable
        if self._told == usable:
            return Answer(self.epoch, usable if request.joins or request.is_full else None)
        if not self._resumed:
            before = self._told or frozenset()
            if self._told is None or usable - before:
                self._raise_epoch()
        for tp in usable:
            self.told_at.setdefault(tp, self.epoch)
        self._told = usable
        self._let_go -= usable
        self._resumed = False
        return Answer(self.epoch, usable)

    def _raise_epoch(self) -> None:
        self._previous = self.epoch
        self.epoch = min(max(self.epoch + 1, self.generation), LARGEST_EPOCH)

    def no_news(self) -> Answer:
        """The answer to a request whose client does not wait for it any more: it changes nothing."""
        return Answer(self.epoch)

    # --- offsets -------------------------------------------------------------------------------------------------

    def commit_epoch(self, tp: TopicPartition, member_epoch: int) -> int | None:
        """The ownership's epoch for a commit under a member epoch; None: the commit is stale, or of a partition that
        is another's."""
        given_at = self.told_at.get(tp)
        if given_at is None or tp not in self.owned or not given_at <= member_epoch <= self.epoch:
            return None
        return self.owned[tp]
