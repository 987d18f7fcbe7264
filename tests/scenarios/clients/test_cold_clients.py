"""A program on the client library that has nothing to warm."""

from __future__ import annotations

import pytest

from assigner.model.records import HandoffMode
from tests.support.clients.library_consumers import consuming, owns, serving
from tests.support.clients.recording_handler import Recorder
from tests.support.cluster import GROUP, Cluster

either_mode = pytest.mark.parametrize("mode", list(HandoffMode), ids=lambda mode: mode.value)


@either_mode
async def test_partitions_come_to_a_cold_client_without_a_warm(wired_cluster: Cluster, mode: HandoffMode) -> None:
    await wired_cluster.set_options(handoff_mode=mode)
    service = await serving(wired_cluster, partitions=4)
    await wired_cluster.join("b", service.instance)
    await wired_cluster.until_counts(b=4)
    handler = Recorder()
    async with consuming(wired_cluster, handler, cold=True, kind="batch") as a:
        await owns(a, 2)
        assert {call.partition(" ")[0] for call in handler.calls} == {"assigned"}
        described = await service.instance.operations.describe(GROUP)
        kinds = {member.consumer.consumer_name: member.consumer.kind for member in described.members}
        assert kinds == {"a": "batch", "b": ""}
