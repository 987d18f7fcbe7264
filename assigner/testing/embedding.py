"""A pytest fixture that runs the whole service beside a test, for programs that use it by gRPC as in production.

    @pytest.mark.embedded_assigner(topics={"billing": {"orders": 4}})
    def test_my_job(embedded_assigner): ... embedded_assigner.address

Memory store, loopback, free ports, a service of its own for each test. The mark's keywords are those of `Settings`; the
defaults have short times, so that a test does not wait for leases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from assigner.embedded import EmbeddedAssigner

EMBEDDED_MARK = "embedded_assigner"
CONSUMER_TTL = 10.0
DEBOUNCE = 0.1


@pytest.fixture
def embedded_assigner(request: pytest.FixtureRequest) -> Iterator[EmbeddedAssigner]:
    """A running assigner: `address`, `set_topic(group, topic, partitions)`, `call(work)`."""
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
