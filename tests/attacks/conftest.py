"""Leaves the heavy attacks out unless they are asked for by their marker."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "attack" in config.option.markexpr:
        return
    heavy = [item for item in items if item.get_closest_marker("attack") is not None]
    config.hook.pytest_deselected(items=heavy)
    items[:] = [item for item in items if item.get_closest_marker("attack") is None]
