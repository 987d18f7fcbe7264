"""A net under all scenarios, and elections for those that have one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest

from tests.support.election_cluster import ON_BOTH_STORES, Campaign, Candidate, ElectionCluster, Voter, election_cluster
from tests.support.unread_tasks import no_unread_tasks


@pytest.fixture(autouse=True)
async def no_task_unseen() -> AsyncIterator[None]:
    """First of all fixtures, so that it looks when all others have cleared up."""
    async with no_unread_tasks():
        yield


@pytest.fixture(params=ON_BOTH_STORES)
async def votes(request: pytest.FixtureRequest) -> AsyncIterator[ElectionCluster]:
    async with election_cluster(request.param, request) as cluster:
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
