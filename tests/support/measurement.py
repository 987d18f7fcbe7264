"""Figures that a test found and a person may want to read: they are printed at the end of the run, passed or not."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Generic, TypeVar, cast

import pytest

_NAME = "figures"
_HEADING = "figures"


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Call it with a line for the end of the run."""
    return lambda line: record_property(_NAME, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.getreports(kind)]
    told = [(one.nodeid, line) for one in reports for name, line in one.user_properties if name == _NAME]
    if told:
        terminalreporter.section(_HEADING)
    for nodeid, line in told:
        terminalreporter.line(f"{nodeid}: {line}")


# How much work a piece of code does, in calls of functions: the same on every machine, however busy.


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


@contextmanager
def counted_turns() -> Iterator[Counter[str]]:
    """How often each task gets a turn of the running event loop, by the task's name."""
    loop, turns = asyncio.get_running_loop(), Counter[str]()
    call_soon = loop.call_soon

    def counted(callback: Callable[..., object], *arguments: Any, **named: Any) -> asyncio.Handle:
        task = getattr(callback, "__self__", None)
        if isinstance(task, asyncio.Task):
            turns[task.get_name()] += 1
        return call_soon(callback, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_soon", counted)
        yield turns


# Counts how often a coroutine is woken, whatever it waits for: what many waiters cost, without looking at a clock.


T = TypeVar("T")


class Wakes:
    """Of all coroutines counted by it."""

    def __init__(self) -> None:
        self.count = 0

    async def counted(self, work: Coroutine[Any, Any, T]) -> T:
        return await _Counted(work, self)


class _Counted(Generic[T]):
    def __init__(self, work: Coroutine[Any, Any, T], wakes: Wakes) -> None:
        self._work = work
        self._wakes = wakes

    def __await__(self) -> Generator[Any, Any, T]:
        sent: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = self._work.send(sent) if error is None else self._work.throw(error)
            except StopIteration as end:
                return cast(T, end.value)
            self._wakes.count += 1
            sent, error = None, None
            try:
                sent = yield waits_for
            except BaseException as thrown:  # noqa: BLE001 - passed on to who is counted
                error = thrown
