"""Pauses grow, end at a limit, and differ by name but not by chance."""

from __future__ import annotations

from assigner.aio.backoff import Backoff


def test_pauses_double_up_to_the_limit_and_start_over_after_a_success() -> None:
    backoff = Backoff("a", first=0.1, most=2.0)
    for whole in (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0):
        assert whole / 2 <= backoff.next() <= whole
    assert backoff.tries == 7
    backoff.reset()
    assert backoff.next() <= 0.1


def test_names_part_the_waiters_and_repeat_the_course() -> None:
    assert [Backoff("a").next() for _ in range(3)] == [Backoff("a").next()] * 3
    assert len({Backoff(f"instance-{number}").next() for number in range(100)}) == 100


def test_many_tries_do_not_overflow() -> None:
    backoff = Backoff("a")
    assert all(backoff.next() <= 5.0 for _ in range(5000))
