"""Strategies by name, found among the entry points `assigner.strategies`.

The service never imports a strategy by name, so a third party's package is as good as ours. What an entry point
names is one `Strategy`, used by every group that asks for it: strategies keep no state.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import entry_points

from assigner.errors import InvalidInput
from assigner.strategy import Strategy

ENTRY_POINTS = "assigner.strategies"


def installed() -> tuple[str, ...]:
    """The names a group may choose from."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINTS)}))


@lru_cache(maxsize=64)
def load(name: str) -> Strategy:
    """The strategy of that name. Raises `InvalidInput` for one that is not there or can't be imported."""
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
