"""A request on its way: what the programs send, what a router delivers to a pod, and how it can end."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assigner.model.keys import TopicPartition


class NothingDone(msgspec.Struct, frozen=True):
    """The request had no effect and may be sent again."""

    why: str


class Unknown(msgspec.Struct, frozen=True):
    """The connection broke after the request was sent: nobody knows whether it had an effect."""

    why: str


class Request:
    """One keyed request of a program."""

    __slots__ = ("abandoned", "began", "ended", "key", "number", "outcome", "retried", "seq", "served", "takes", "tp")

    def __init__(self, number: int, key: str, seq: int, tp: TopicPartition, takes: float, began: float) -> None:
        self.number = number
        self.key = key
        self.seq = seq
        """Its place among the requests of its key."""
        self.tp = tp
        self.takes = takes
        """Seconds, at most, that the pod needs for it."""
        self.began = began
        self.ended: float | None = None
        self.outcome = ""
        """`served`, or why it was not; empty: it is on its way."""
        self.served = 0
        """How often it had its effect."""
        self.retried = 0
        self.abandoned = False
        """Its program has given up on it, because the router died; it may still arrive."""

    def end(self, outcome: str, now: float) -> None:
        if not self.outcome:
            self.outcome, self.ended = outcome, now

    def __repr__(self) -> str:
        return f"<request {self.number} of {self.key}/{self.seq} for {self.tp}: {self.outcome or 'on its way'}>"


class Delivery:
    """A request that a router has sent to a pod under an epoch."""

    __slots__ = ("_answered", "begun", "epoch", "request", "router")

    def __init__(
        self, request: Request, router: str, epoch: int, answered: Callable[[NothingDone | Unknown | None], None]
    ) -> None:
        """`answered` is called once, with None if the request was served."""
        self.request = request
        self.router = router
        self.epoch = epoch
        self.begun = False
        """The pod's gate has admitted it."""
        self._answered = answered

    def answer(self, failure: NothingDone | Unknown | None) -> None:
        self._answered(failure)
