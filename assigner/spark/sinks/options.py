"""Options of the fenced data sources, checked: an unknown one is an error, not a wish that nobody hears."""

from __future__ import annotations

from collections.abc import Mapping

from assigner.errors import InvalidInput

# What Spark itself adds to the options of a data source.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})


def checked(source: str, options: Mapping[str, str], required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    known = {name.lower(): name for name in (*required, *optional)}
    given = {name.lower(): name for name in options}
    for name in required:
        if not options.get(name):
            raise InvalidInput(f"{source} needs option {name}; required are {', '.join(required)}")
    unknown = [given[name] for name in given if name not in known and name not in _SPARKS_OWN]
    if unknown:
        raise InvalidInput(f"{source} has no option {', '.join(unknown)}; it knows {', '.join(known.values())}")
