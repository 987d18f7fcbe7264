"""Whatever order events come in: one epoch at a time, upwards, and none that was released comes back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from assigner.core.client.messages import (
    AckKind,
    CallAssigned,
    CallRelease,
    CallRevoked,
    Done,
    Failed,
    Outcome,
    Ownership,
    Stopped,
)
from assigner.model.commands import CancelWarm
from assigner.model.keys import TopicPartition
from tests.support.clients.state_driver import NO_PARTITIONS, NOW, A, B, StateDriver, release, warm

PARTITIONS = st.sampled_from([A, B])
EPOCHS = st.integers(min_value=1, max_value=8)
HANDOFFS = st.sampled_from(["h1", "h2"])
OUTCOMES = st.sampled_from([Done(), Failed("broken"), Stopped()])
PLACES = st.lists(PARTITIONS, max_size=2, unique=True).map(tuple)
PAIRS = st.lists(st.tuples(PARTITIONS, EPOCHS), max_size=2, unique_by=lambda pair: pair[0]).map(tuple)


class AnyOrder(RuleBasedStateMachine):
    """Whatever the service says and however the handler behaves: one epoch at a time, upwards, and never twice."""

    @initialize()
    def begin(self) -> None:
        self.driver = StateDriver(live=False)
        self.released: set[Ownership] = set()
        self.handed: dict[TopicPartition, int] = {}
        self.highest_open: dict[TopicPartition, int] = {}
        self.seen = 0

    @rule(full=st.booleans(), assigned=PAIRS, unassigned=PAIRS)
    def receives_ownership(
        self,
        full: bool,
        assigned: tuple[tuple[TopicPartition, int], ...],
        unassigned: tuple[tuple[TopicPartition, int], ...],
    ) -> None:
        self.driver.receive(full=full, assigned=assigned, unassigned=unassigned)

    @rule(full=st.booleans(), added=PLACES, removed=PLACES)
    def receives_standbys(
        self, full: bool, added: tuple[TopicPartition, ...], removed: tuple[TopicPartition, ...]
    ) -> None:
        self.driver.receive(full=full, standbys_added=added, standbys_removed=removed)

    @rule(tp=PARTITIONS, handoff_id=HANDOFFS)
    def receives_warm(self, tp: TopicPartition, handoff_id: str) -> None:
        self.driver.receive(warms=(warm(tp, handoff_id),))

    @rule(tp=PARTITIONS, handoff_id=HANDOFFS)
    def receives_cancel(self, tp: TopicPartition, handoff_id: str) -> None:
        self.driver.receive(cancels=(CancelWarm(tp, handoff_id),))

    @rule(tp=PARTITIONS, epoch=EPOCHS, handoff_id=HANDOFFS)
    def receives_release(self, tp: TopicPartition, epoch: int, handoff_id: str) -> None:
        self.driver.receive(releases=(release(tp, epoch, handoff_id),))

    @rule()
    def renews(self) -> None:
        self.driver.take(self.driver.state.renewed(NOW, 30.0))

    @rule()
    def loses_the_lease(self) -> None:
        self.driver.take(self.driver.state.lease_lost())

    @rule()
    def loses_the_session(self) -> None:
        self.driver.take(self.driver.state.session_lost("over"))

    @precondition(lambda self: self.driver.running)
    @rule(data=st.data(), outcome=OUTCOMES)
    def a_call_ends(self, data: st.DataObject, outcome: Outcome) -> None:
        tp = data.draw(st.sampled_from(sorted(self.driver.running)))
        self.driver.end(tp, outcome)

    @rule(kind=st.sampled_from(list(AckKind)), refused=st.booleans())
    def acks_are_accepted(self, kind: AckKind, refused: bool) -> None:
        sent = self.driver.answers(kind)
        refusals = frozenset(answer.tp for answer in sent) if refused else NO_PARTITIONS
        self.driver.take(self.driver.state.acknowledged(kind, sent, refusals))

    @invariant()
    def the_handler_hears_a_sensible_story(self) -> None:
        for call in self.driver.history[self.seen :]:
            match call:
                case CallAssigned(owned=grant):
                    assert grant not in self.released, "a released epoch came back"
                    assert grant.epoch >= self.handed.get(grant.tp, 0), "epochs went down"
                    self.handed[grant.tp] = grant.epoch
                case CallRelease(owned=grant) | CallRevoked(owned=grant):
                    assert self.handed.get(grant.tp) == grant.epoch, "let go of what was not held"
                    if isinstance(call, CallRelease):
                        self.released.add(grant)
        self.seen = len(self.driver.history)

    @invariant()
    def an_open_gate_is_of_the_epoch_the_handler_holds(self) -> None:
        for tp in (A, B):
            gate = self.driver.state.gate(tp)
            if gate.is_open(NOW):
                assert gate.epoch == self.handed[tp]
                assert gate.epoch >= self.highest_open.get(tp, 0)
                assert not isinstance(self.driver.running.get(tp), CallAssigned | CallRelease | CallRevoked)
                self.highest_open[tp] = gate.epoch

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.it_always_comes_to_rest()

    def it_always_comes_to_rest(self) -> None:
        top = max([8, *self.handed.values()]) + 1
        self.driver.take(self.driver.state.renewed(NOW, 30.0))
        self.driver.receive(full=True, assigned=((A, top), (B, top)))
        self.driver.end_all()
        assert self.driver.state.owned(NOW) == {A: top, B: top}
        self.driver.take(self.driver.state.leave("closed"))
        self.driver.end_all()
        assert self.driver.state.is_idle()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
