"""Drives the client's state machine in tests, without running the handler's calls."""

from __future__ import annotations

from collections.abc import Iterable

from assigner.core.client.messages import AckKind, Action, Call, Cancel, Done, Outcome, Ownership, Start
from assigner.core.client.state import ClientState
from assigner.model.commands import Ack, Commands, Release, Warm
from assigner.model.keys import TopicPartition

NOW = 10.0
A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
READY, RELEASED = AckKind.READY, AckKind.RELEASED
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class StateDriver:
    """Drives the client's state and runs no calls: the test ends each call, with the outcome it chooses."""

    def __init__(self, *, live: bool = True, max_partitions: int = 1000) -> None:
        self.state = ClientState(max_partitions=max_partitions)
        self.running: dict[TopicPartition, Call] = {}
        self.cancelled: set[TopicPartition] = set()
        self.history: list[Call] = []
        if live:
            self.take(self.state.renewed(NOW, 30.0))

    def take(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start(tp=tp, call=call):
                    assert tp not in self.running, "two calls for one partition at a time"
                    self.running[tp] = call
                    self.history.append(call)
                case Cancel(tp=tp):
                    assert tp in self.running
                    assert tp not in self.cancelled, "cancelled twice"
                    self.cancelled.add(tp)

    def receive(self, **fields: object) -> None:
        self.take(self.state.apply(Commands(**fields)))  # type: ignore[arg-type]

    def end(self, tp: TopicPartition, outcome: Outcome | None = None) -> Call:
        call = self.running.pop(tp)
        self.cancelled.discard(tp)
        self.take(self.state.finished(tp, outcome or Done()))
        return call

    def end_all(self) -> None:
        while self.running:
            for tp in list(self.running):
                self.end(tp)

    def own(self, tp: TopicPartition, epoch: int) -> None:
        self.receive(assigned=((tp, epoch),))
        self.end_all()
        assert self.is_open(tp)

    def is_open(self, tp: TopicPartition) -> bool:
        return self.state.gate(tp).is_open(NOW)

    def answers(self, kind: AckKind) -> list[Ack]:
        return self.state.pending_acks(kind, 100)


def owned(tp: TopicPartition, epoch: int) -> Ownership:
    return Ownership(tp.topic, tp.partition, epoch)


def warm(tp: TopicPartition, handoff_id: str = "h1") -> Warm:
    return Warm(tp, handoff_id)


def release(tp: TopicPartition, epoch: int, handoff_id: str = "h1") -> Release:
    return Release(tp, epoch, handoff_id)
