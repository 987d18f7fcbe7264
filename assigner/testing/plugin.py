"""Implements the pytest plugin: virtual time for pytest-asyncio, and a fixture that runs the service beside a test.

Load it by `pytest_plugins = ["assigner.testing.plugin"]` in the top conftest or by `-p assigner.testing.plugin`.
`@pytest.mark.virtual_time` runs a test on a `VirtualTimeLoop`; the mark's keywords go to the loop
(`@pytest.mark.virtual_time(sockets="local")`). A case of a parametrized test or fixture may have the mark by itself:
`pytest.param("memory", marks=pytest.mark.virtual_time)`. Tests without the mark run on the usual loop. The plugin also
enables assertion rewriting in the conformance kit.

The fixture `embedded_assigner` is for programs that use the service by gRPC as in production: memory store, loopback,
free ports, a service of its own for each test. The keywords of its mark are those of `Settings`; the defaults have
short times, so that a test does not wait for leases.

    @pytest.mark.embedded_assigner(topics={"billing": {"orders": 4}})
    def test_my_job(embedded_assigner): ... embedded_assigner.address
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from assigner.testing.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from assigner.embedded import EmbeddedAssigner

MARK = "virtual_time"
EMBEDDED_MARK = "embedded_assigner"
CONSUMER_TTL = 10.0
DEBOUNCE = 0.1

_running: list[pytest.Item] = []
"""The test that runs now; the last one, where a test runs tests of its own in this process."""

pytest.register_assert_rewrite("assigner.testing.conformance")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(**options): run the test in virtual time, on a VirtualTimeLoop")
    config.addinivalue_line("markers", f"{EMBEDDED_MARK}(**settings): settings of the fixture embedded_assigner")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.pop()


# Optional: tests of Spark jobs may run without pytest-asyncio.
@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    mark = item.get_closest_marker(MARK)
    return {"real": _new_loop} if mark is None else {"virtual": partial(_new_loop, mark)}


def _new_loop(mark: pytest.Mark | None = None) -> asyncio.AbstractEventLoop:
    # `item` above is a function with all its cases, so marks of a single case are seen only now.
    if _running:
        mark = _running[-1].get_closest_marker(MARK)
    return asyncio.new_event_loop() if mark is None else VirtualTimeLoop(**mark.kwargs)


@pytest.fixture
def embedded_assigner(request: pytest.FixtureRequest) -> Iterator[EmbeddedAssigner]:
    """Run an assigner: `address`, `set_topic(group, topic, partitions)`, `call(work)`."""
    # Imported here, so that tests without the fixture do not load the service.
    from assigner.embedded import EmbeddedAssigner

    mark = request.node.get_closest_marker(EMBEDDED_MARK)
    if mark is not None and mark.args:
        raise pytest.UsageError(f"mark {EMBEDDED_MARK} takes keywords only: the names of settings, such as topics=...")
    with EmbeddedAssigner(_settings(**(mark.kwargs if mark is not None else {}))) as running:
        yield running


def _settings(**given: Any) -> Any:
    from assigner.model.records import GroupOptions
    from assigner.server import ServerSettings
    from assigner.settings import HttpSettings, Settings

    unknown = sorted(given.keys() - set(Settings.__struct_fields__))
    if unknown:
        known = ", ".join(Settings.__struct_fields__)
        raise pytest.UsageError(f"mark {EMBEDDED_MARK}: there is no setting {unknown[0]}; known are {known}")
    defaults: dict[str, Any] = {
        "grpc": ServerSettings(port=0),
        "http": HttpSettings(port=0),
        "consumer_ttl": CONSUMER_TTL,
        "group": GroupOptions(debounce=DEBOUNCE),
    }
    return Settings(**(defaults | given))
