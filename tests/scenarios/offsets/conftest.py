"""When a scenario of offsets is over, each commit on record was made under the epoch of its partition's owner."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.cluster import Cluster
from tests.support.committing import every_commit_was_the_owners


@pytest.fixture
def only_owners_write() -> bool:
    """A module in which operators set offsets by force overrides this."""
    return True


@pytest.fixture
async def cluster(cluster: Cluster, only_owners_write: bool) -> AsyncIterator[Cluster]:
    yield cluster
    if only_owners_write:
        await every_commit_was_the_owners(cluster)


@pytest.fixture
async def any_cluster(any_cluster: Cluster, only_owners_write: bool) -> AsyncIterator[Cluster]:
    yield any_cluster
    if only_owners_write:
        await every_commit_was_the_owners(any_cluster)
