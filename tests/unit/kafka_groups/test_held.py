"""How many requests of classic members an instance holds, and how much of them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from assigner.errors import LimitReached
from assigner.kafka_groups.held import HeldRequests


def test_what_is_held_is_bounded_by_number() -> None:
    refusals: list[str] = []
    held = HeldRequests(most=3, most_bytes=1_000, refused=refusals.append)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(held.one_more(10))
        with pytest.raises(LimitReached, match="3 requests of Kafka members with 30 bytes"), held.one_more(0):
            pass
    assert refusals == ["held_kafka_requests"]
    with held.one_more(10):
        assert len(held) == 1
    assert len(held) == 0


def test_what_is_held_is_bounded_by_size() -> None:
    held = HeldRequests(most=100, most_bytes=1_000)
    with held.one_more(900):
        with pytest.raises(LimitReached), held.one_more(101):
            pass
        with held.one_more(100):
            pass


def test_a_request_that_fails_is_held_no_longer() -> None:
    held = HeldRequests(most=1)
    with pytest.raises(ZeroDivisionError), held.one_more(1):
        _ = 1 / 0
    with held.one_more(1):
        pass
