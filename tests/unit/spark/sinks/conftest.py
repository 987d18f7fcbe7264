"""Databases for fenced SQL tables, one for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.postgres import PostgresServer


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of this test's own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sink.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.new_schema()


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> str:
    return postgres_server.new_schema()
