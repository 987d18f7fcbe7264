"""A plugin for pytest that ends each test after two minutes, with the stack of where it was."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

_SECONDS = 120


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"the test took longer than {_SECONDS} s")
