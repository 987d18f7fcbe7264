"""Loads strategies by name from the entry points `assigner.strategies`.

The service never imports a strategy by name, so those of third parties are found like our own. An entry point names one
`Strategy` object, which all groups share: strategies keep no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from assigner.errors import InvalidInput
from assigner.strategy.interface import NONE, Members, Problem, Strategy, Topics

ENTRY_POINTS = "assigner.strategies"


def installed() -> tuple[str, ...]:
    """List the names that a group may choose from."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINTS)}))


@lru_cache(maxsize=64)
def load(name: str) -> Strategy:
    """Load the strategy of that name. Raises `InvalidInput` if there is none or if it can't be imported."""
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise InvalidInput(f"no strategy named {name!r}; installed: {known}. Choose one of them or install its package")
    try:
        strategy: Strategy = found[name].load()
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"strategy {name!r} ({found[name].value}) can't be loaded: {error}; repair its package"
        ) from error
    return strategy


def is_prepared(name: str) -> bool:
    return name in _prepared


def prepare(name: str) -> Strategy:
    """Load the strategy and have it solve a small problem once, on a worker thread: its imports and numpy's setup at
    the first call take tenths of a second."""
    strategy = load(name)
    if name not in _prepared:
        strategy.assign(_small_problem())
        _prepared.add(name)
    return strategy


def try_options(name: str, options: Mapping[str, Any]) -> None:
    """Have the strategy solve a small problem with these options. Raises `InvalidInput` if it can't, so that the
    operator gets an error, and not the group a failing plan."""
    strategy = load(name)
    try:
        strategy.assign(replace(_small_problem(), options=options))
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"strategy {name!r} can't work with the options {dict(options)}: {error!r}") from error


_prepared: set[str] = set()


def _small_problem() -> Problem:
    members = Members(
        capacity=np.ones(2),
        rack=np.full(2, NONE, np.int32),
        subscription=np.ones((2, 2), np.bool_),
        hold=np.zeros(2, np.bool_),
        cap=np.full(2, NONE, np.int32),
    )
    topics = Topics(partitions=np.full(2, 4, np.int32))
    return Problem(members, topics, owner=np.full(8, NONE, np.int32), pinned=np.zeros(8, np.bool_))
