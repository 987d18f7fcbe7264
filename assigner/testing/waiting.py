"""Waits for a condition, never for a fixed time."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import anyio


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]],
    *,
    within: float = 10.0,
    every: float = 0.01,
    what: str = "",
) -> None:
    """Wait until the condition holds; fail if it does not within `within` seconds of the loop's time."""
    with anyio.move_on_after(within):
        while True:
            holds = condition()
            if inspect.isawaitable(holds):
                holds = await holds
            if holds:
                return
            await anyio.sleep(every)
    described = what or inspect.getdoc(condition) or getattr(condition, "__qualname__", repr(condition))
    raise AssertionError(f"not within {within:g} s: {described}")
