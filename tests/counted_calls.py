"""How much work a piece of code does, in calls of functions: the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class CountedCalls:
    """Calls in this thread, of Python's functions and of built-in ones."""

    def __init__(self) -> None:
        self._calls = 0

    def count(self, _frame: FrameType, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def lap(self) -> int:
        """Calls since the last lap, or since the beginning."""
        calls, self._calls = self._calls, 0
        return calls


@contextmanager
def counted_calls() -> Iterator[CountedCalls]:
    calls, before = CountedCalls(), sys.getprofile()
    sys.setprofile(calls.count)
    try:
        yield calls
    finally:
        sys.setprofile(before)
