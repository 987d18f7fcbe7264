"""Validates a change of a group's options, field by field, before it is stored."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec

from assigner.core.planning.copartitions import largest_set
from assigner.errors import InvalidInput
from assigner.model.names import check_name, check_topic
from assigner.model.records import GroupOptions
from assigner.store import Limits
from assigner.strategy.registry import try_options

_OURS = frozenset({"rebalance_requests"})
"""Options that only the service itself changes."""
_POSITIVE = ("warming_timeout", "freeze_timeout", "release_timeout")
_NOT_NEGATIVE = ("debounce", "balance_backoff")
_COUNTS = ("rollout_cap",)
_AT_LEAST_ONE = ("max_concurrent_handoffs", "warm_concurrency", "quarantine_after")
_LONGEST = 7 * 86_400
MAX_STANDBYS = 10
_MOST = 1_000_000
_USUAL_LIMITS = Limits()


def check_options(options: GroupOptions, changes: dict[str, Any], limits: Limits = _USUAL_LIMITS) -> GroupOptions:
    """Apply the changes to the options. Raises `InvalidInput`. `limits`: of the store that the group is in."""
    known = set(GroupOptions.__struct_fields__) - _OURS
    for name in changes:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"
            raise InvalidInput(f"group option {name!r} is not known{hint}")
    try:
        wanted = msgspec.convert({**msgspec.to_builtins(options), **changes}, GroupOptions)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"group option refused: {error}") from error
    _check_numbers(wanted)
    if not 0 <= wanted.standby_count <= MAX_STANDBYS:
        raise InvalidInput(f"group option standby_count must be 0 to {MAX_STANDBYS}, not {wanted.standby_count}")
    _check_copartitioned(wanted.copartitioned)
    if "copartitioned" in changes:
        # Stored sets that are too large are split when they are used; they must not prevent changes of other options.
        _check_sizes(wanted.copartitioned, limits)
    if wanted.rollout:
        check_name("generation in rollout", wanted.rollout)
    if changes.keys() & {"strategy", "strategy_options"}:
        try_options(wanted.strategy, wanted.strategy_options)
    return wanted


def _check_numbers(options: GroupOptions) -> None:
    for name in (*_POSITIVE, *_NOT_NEGATIVE, *_COUNTS, *_AT_LEAST_ONE):
        value = getattr(options, name)
        least, most = int(name in _AT_LEAST_ONE), _MOST if name in (*_COUNTS, *_AT_LEAST_ONE) else _LONGEST
        if not least <= value <= most or (name in _POSITIVE and value == 0):
            rule = "at least 1" if least else "positive" if name in _POSITIVE else "0 or more"
            raise InvalidInput(f"group option {name} must be {rule} and at most {most}, not {value}")


def _check_copartitioned(sets: tuple[tuple[str, ...], ...]) -> None:
    seen: set[str] = set()
    for topics in sets:
        for topic in topics:
            check_topic(topic)
            if topic in seen:
                raise InvalidInput(f"topic {topic!r} is in two co-partition sets; a topic moves with one set only")
            seen.add(topic)


def _check_sizes(sets: tuple[tuple[str, ...], ...], limits: Limits) -> None:
    most = largest_set(limits)
    for topics in sets:
        if len(topics) > most:
            raise InvalidInput(
                f"the co-partition set of {min(topics)!r} has {len(topics)} topics; at most {most} can be moved as one "
                f"in a transaction of {limits.operations} operations; name sets of fewer topics"
            )
