"""Options of strategies: a misspelt one must not be ignored in silence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from assigner.errors import InvalidInput


def refuse_unknown(strategy: str, options: Mapping[str, Any], known: Collection[str] = ()) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        offer = f"its options are {', '.join(sorted(known))}" if known else "it has no options"
        raise InvalidInput(f"{strategy} does not know the option {unknown[0]!r}; {offer}")


def one_of(strategy: str, options: Mapping[str, Any], name: str, values: tuple[str, ...]) -> str:
    """The option's value; the first of `values` where it is not given."""
    value = options.get(name, values[0])
    if value not in values:
        raise InvalidInput(f"{strategy}: {name} is {value!r}; it must be one of {', '.join(values)}")
    return str(value)
