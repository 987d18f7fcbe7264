"""The pytest plugin: the fixture `embedded_assigner`, and virtual time for pytest-asyncio.

Load it by `pytest_plugins = ["assigner.testing.plugin"]` in the top conftest or by `-p assigner.testing.plugin`.
`@pytest.mark.virtual_time` runs a test on a `VirtualTimeLoop`; the mark's keywords go to the loop
(`@pytest.mark.virtual_time(sockets="local")`). Tests without the mark run on the usual loop. The plugin also enables
assertion rewriting in the conformance kit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import pytest

from assigner.testing.embedding import EMBEDDED_MARK, embedded_assigner
from assigner.testing.virtual_time import VirtualTimeLoop

__all__ = ["MARK", "embedded_assigner"]

MARK = "virtual_time"

pytest.register_assert_rewrite("assigner.testing.conformance")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(**options): run the test in virtual time, on a VirtualTimeLoop")
    config.addinivalue_line("markers", f"{EMBEDDED_MARK}(**settings): settings of the fixture embedded_assigner")


# Optional: tests of Spark jobs may run without pytest-asyncio.
@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return {"real": asyncio.new_event_loop}
    return {"virtual": partial(VirtualTimeLoop, **mark.kwargs)}
