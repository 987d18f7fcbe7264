"""Parses the `key=value` arguments of `assigner options` into a group's options."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from typing import Any

import click

from assigner.proto.kafka_assigner.v1 import GroupOptions


def _json_object(text: str) -> str:
    if not isinstance(json.loads(text), dict):
        raise ValueError("not an object")
    return text


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**32:
        raise ValueError("out of range")
    return number


def _flag(text: str) -> bool:
    return {"true": True, "yes": True, "false": False, "no": False}[text.lower()]


def _topic_sets(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


_KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "strategy": (str, "text"),
    "strategy_options": (_json_object, "a JSON object"),
    "handoff_mode": (str, "overlap or exclusive"),
    "standby_count": (_count, "a number"),
    "debounce": (float, "seconds"),
    "warming_timeout": (float, "seconds"),
    "freeze_timeout": (float, "seconds"),
    "freeze_overdue": (str, "abandon or proceed"),
    "release_timeout": (float, "seconds"),
    "balance_backoff": (float, "seconds"),
    "max_concurrent_handoffs": (_count, "a number"),
    "warm_concurrency": (_count, "a number"),
    "quarantine_after": (_count, "a number"),
    "paused": (_flag, "true or false"),
    "rollout": (str, "a generation, auto, or nothing"),
    "rollout_cap": (_count, "a number"),
    "use_loads": (_flag, "true or false"),
    "assignor": (str, "member or server, of a classic Kafka group"),
    "copartitioned": (_topic_sets, "sets of topics such as a,b;c,d; empty: none"),
}

NAMES = tuple(_KINDS)


def parse(assignments: Iterable[str]) -> GroupOptions:
    """Parse `key=value` arguments. Raises `click.UsageError` naming the option and the value that it takes."""
    changes: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"{text!r} is not KEY=VALUE")
        if name not in _KINDS:
            near = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"options: {', '.join(NAMES)}"
            raise click.UsageError(f"no option {name!r}; {hint}")
        read, wants = _KINDS[name]
        try:
            changes[name] = read(value)
        except (ValueError, KeyError) as error:
            raise click.UsageError(f"{name}={value!r} is not {wants}") from error
    if changes.get("copartitioned") == []:
        changes["clear_copartitioned"] = True
    return GroupOptions(**changes)


def plain(options: GroupOptions) -> dict[str, Any]:
    """The options that are set, as plain data for `--json`."""
    found = {name: getattr(options, name) for name in NAMES}
    if isinstance(found["strategy_options"], str):
        found["strategy_options"] = json.loads(found["strategy_options"] or "{}")
    found["copartitioned"] = [entry.split(",") for entry in options.copartitioned]
    return {name: value for name, value in found.items() if value is not None}
