"""Fixtures of all scenarios: a cluster, an election, and a check that no task ended in an exception nobody read.

`cluster` is on the memory store, and a test that takes `any_cluster` or `wired_cluster` runs once on each store. The
mark `@pytest.mark.cluster(...)` on a test or a module gives them other arguments of `cluster_on`, and `votes` those of
`election_cluster`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import anyio
import msgspec
import pytest

from assigner.model.records import HandoffMode
from tests.support.cluster import BOTH_STORES, QUICK, Cluster, cluster_on
from tests.support.election_cluster import ON_BOTH_STORES, Campaign, Candidate, ElectionCluster, Voter, election_cluster
from tests.support.unread_tasks import no_unread_tasks

CALLED_ON_BOTH_STORES = [
    # Both ends of each connection are in this process and nothing else is: time may be virtual.
    pytest.param("memory", marks=pytest.mark.virtual_time(sockets="local")),
    pytest.param("etcd", marks=pytest.mark.etcd),
]


@pytest.fixture(autouse=True)
async def no_task_unseen() -> AsyncIterator[None]:
    """First of all fixtures, so that it looks when all others have cleared up."""
    async with no_unread_tasks():
        yield


def marked_arguments(marks: Iterable[pytest.Mark]) -> dict[str, Any]:
    """What the marks `cluster(...)` among these say; the first one, which is the closest to the test, counts most."""
    arguments: dict[str, Any] = {}
    for mark in marks:
        if mark.name == "cluster":
            arguments = {**mark.kwargs, **arguments}
    return arguments


@pytest.fixture
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with cluster_on("memory", request, **marked_arguments(request.node.iter_markers())) as cluster:
        yield cluster


@pytest.fixture(params=BOTH_STORES)
async def any_cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with cluster_on(request.param, request, **marked_arguments(request.node.iter_markers())) as cluster:
        yield cluster


@pytest.fixture(params=CALLED_ON_BOTH_STORES)
async def wired_cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A cluster on each store whose services are called by libraries, over sockets."""
    async with cluster_on(request.param, request, **marked_arguments(request.node.iter_markers())) as cluster:
        yield cluster


@pytest.fixture(params=list(HandoffMode), ids=lambda mode: mode.value)
async def cluster_in_either_mode(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A cluster on the memory store, in each of the two modes of handing over."""
    options = msgspec.structs.replace(QUICK, handoff_mode=request.param)
    async with cluster_on("memory", request, options=options) as cluster:
        yield cluster


@pytest.fixture(params=ON_BOTH_STORES)
async def votes(request: pytest.FixtureRequest) -> AsyncIterator[ElectionCluster]:
    async with election_cluster(request.param, request, **marked_arguments(request.node.iter_markers())) as cluster:
        yield cluster


@pytest.fixture
async def memory(request: pytest.FixtureRequest) -> AsyncIterator[ElectionCluster]:
    async with election_cluster("memory", request) as cluster:
        yield cluster


@pytest.fixture
async def campaign() -> AsyncIterator[Campaign]:
    tasks: list[asyncio.Task[None]] = []

    async def start(voter: Voter, group: str) -> Candidate:
        candidate = Candidate(voter, group)
        tasks.append(asyncio.create_task(candidate.run()))
        await anyio.sleep(0.05)
        return candidate

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
