"""Strategies are found by the name a package gave them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from assigner.errors import InvalidInput
from assigner.strategy import registry
from assigner.strategy.registry import installed, load


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    load.cache_clear()
    yield
    load.cache_clear()


@pytest.mark.parametrize(
    "name", ["sticky_balanced", "copartitioned", "jump_hash", "rendezvous", "range", "spread_first"]
)
def test_our_strategies_are_installed(name: str) -> None:
    assert name in installed()
    assert load(name).name == name
    assert load(name) is load(name)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="no strategy named 'round_robin'; installed: copartitioned, jump_hash"):
        load("round_robin")


def test_a_broken_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no_such_module:strategy", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([broken]))
    with pytest.raises(InvalidInput, match=r"strategy 'broken' \(no_such_module:strategy\) can't be loaded"):
        load("broken")
