"""A gRPC server with fakes behind it, for each test of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.fakes.grpc_serving import Serving, serving


@pytest.fixture
async def service() -> AsyncIterator[Serving]:
    async with serving() as running:
        yield running
