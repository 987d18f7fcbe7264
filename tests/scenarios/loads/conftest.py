"""Every group of these scenarios plans by a strategy that keeps the problems it was given."""

from __future__ import annotations

import pytest

from tests.support.loads import Weighing


@pytest.fixture(autouse=True)
def strategy(monkeypatch: pytest.MonkeyPatch) -> Weighing:
    """What every group plans by here."""
    weighing = Weighing()
    monkeypatch.setattr("assigner.leader.coordinator.prepare", lambda name: weighing)
    return weighing
