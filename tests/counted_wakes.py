"""Counts how often a coroutine is woken, whatever it waits for: what many waiters cost, without looking at a clock."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

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
