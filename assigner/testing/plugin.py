"""How pytest-asyncio learns of virtual time: `@pytest.mark.virtual_time` runs a test on a `VirtualTimeLoop`.

A conftest takes it in by `from assigner.testing.plugin import *`, or pytest by `-p assigner.testing.plugin`. The
mark's keywords go to the loop (`@pytest.mark.virtual_time(sockets="local")`). Tests without it run on the usual loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from assigner.testing.virtual_time import VirtualTimeLoop

__all__ = ["pytest_asyncio_loop_factories", "pytest_configure"]

MARK = "virtual_time"


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", f"{MARK}(**options): run the test in virtual time, on a VirtualTimeLoop")


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return {"real": asyncio.new_event_loop}
    return {"virtual": partial(VirtualTimeLoop, **mark.kwargs)}
