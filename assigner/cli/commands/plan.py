"""`assigner plan`: shows which partitions a change of members, topics, weights or strategy would move.

It computes the plan in this process and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from assigner.cli.commands.spec_from_description import spec_of, with_weights
from assigner.cli.connection import AdminClient, ServiceTarget, call_service, check_group, connects_to_service
from assigner.cli.exit_codes import USAGE, Failure
from assigner.cli.output import console, print_json, table
from assigner.core.whatif import changes as what_if
from assigner.core.whatif.group_spec import GroupSpec, MemberSpec, read
from assigner.core.whatif.report import PlannedMove, WhatIfReport, build_report, solve, spec_after
from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.strategy.registry import load

T = TypeVar("T")
_SHOWN = 40
"""Moves that the table lists without `--explain`; the rest is counted."""

_MAX_LOADS = 1_000
"""Partitions whose load the service lists in one reply."""

_UNPROVED = (
    "unproved: the group is too large to search for the best plan; a more even one, or one with fewer moves, may exist"
)

_FILE_FORMAT = """
The file describes a group in JSON, in the form that --save writes:

\b
  {"topics":  [{"name": "orders", "partitions": 10}],
   "members": [{"name": "A", "owned": {"orders": [0, 1, 2, 3]}},
               {"name": "B", "owned": {"orders": [4, 5, 6]}, "capacity": 2, "rack": "r1"}]}

Members may also have topics, hold, cap, load, generation, standbys, deployment, registered_at; topics have weights and
replica_racks; the group has strategy, strategy_options, standby_count, copartitioned, pinned, rollout, rollout_cap.
"""


@click.command(epilog=_FILE_FORMAT)
@click.argument("group", required=False, callback=check_group)
@click.option("--file", "file", type=click.Path(exists=True, dir_okay=False), help="Read the group from a JSON file.")
@click.option(
    "--join",
    multiple=True,
    metavar="NAME[,KEY=VALUE...]",
    help="Add a member; keys: capacity, rack, cap, deployment, topics (separated by +).",
)
@click.option("--leave", multiple=True, metavar="NAME", help="Remove a member.")
@click.option("--capacity", multiple=True, metavar="NAME=X", help="Change a member's capacity.")
@click.option(
    "--hold", multiple=True, metavar="NAME", help="Put a member on hold: it keeps its partitions and gets no new ones."
)
@click.option("--topic", multiple=True, metavar="NAME=N", help="Add a topic, or resize it to N partitions.")
@click.option("--weight", multiple=True, metavar="TOPIC/N=X", help="Change a partition's weight; the default is 1.")
@click.option("--strategy", help="Use another strategy.")
@click.option("--option", multiple=True, metavar="KEY=VALUE", help="An option of the strategy; VALUE is JSON or text.")
@click.option("--rollout", metavar="NAME", help="Roll out this deployment, or auto; '' for no rollout.")
@click.option("--standbys", type=click.IntRange(min=0), help="Number of standby copies of each partition.")
@click.option("--explain", is_flag=True, help="List every move with its reason.")
@click.option("--save", type=click.Path(dir_okay=False), help="Write the group as it is after the plan to a JSON file.")
@connects_to_service
def plan(
    target: ServiceTarget, group: str | None, file: str | None, explain: bool, save: str | None, **edits: Any
) -> None:
    """Show which partitions a change would move. Reads the live GROUP or a --file, and changes neither."""
    before = _read(target, group, file)
    try:
        after = _edited(before, edits)
        solved = solve(after, load(after.strategy))
    except InvalidInput as error:
        raise Failure(USAGE, str(error), kind="invalid_input", as_json=target.as_json) from error
    found = build_report(before, solved)
    if save:
        Path(save).write_bytes(msgspec.json.format(msgspec.json.encode(spec_after(after, solved))))
    if target.as_json:
        print_json(msgspec.to_builtins(found))
    else:
        console().print(_view(found, explain=explain))


def _read(target: ServiceTarget, group: str | None, file: str | None) -> GroupSpec:
    if (group is None) == (file is None):
        raise click.UsageError("name a GROUP of the running service, or a --file; not both")
    if file is not None:
        try:
            return read(Path(file).read_bytes())
        except InvalidInput as error:
            raise Failure(USAGE, f"{file}: {error}", kind="invalid_input", as_json=target.as_json) from error
    return call_service(target, lambda admin: _live(admin, group or ""), group=group or "")


async def _live(admin: AdminClient, group: str) -> GroupSpec:
    described = await admin.describe_group(group)
    spec = spec_of(described)
    options = described.options
    if options is None or not options.use_loads:
        return spec
    loads = await admin.describe_loads(group, limit=_MAX_LOADS)
    if loads.fallback:
        click.secho(f"note: partitions count alike, because {loads.fallback}", fg="yellow", err=True)
        return spec
    return with_weights(spec, loads)


# --- edits from the command line ---------------------------------------------------------------------------------


def _edited(spec: GroupSpec, edits: dict[str, Any]) -> GroupSpec:
    for name in edits["leave"]:
        spec = what_if.leave(spec, name)
    for text in edits["join"]:
        spec = what_if.join(spec, _new_member(text))
    for text in edits["capacity"]:
        name, capacity = _pair("--capacity", text, float, "a number")
        spec = what_if.change_member(spec, name, capacity=capacity)
    for name in edits["hold"]:
        spec = what_if.change_member(spec, name, hold=True)
    for text in edits["topic"]:
        name, count = _pair("--topic", text, int, "a number of partitions")
        spec = what_if.resize(spec, name, count)
    for text in edits["weight"]:
        name, weight = _pair("--weight", text, float, "a number")
        spec = what_if.weigh(spec, {_partition(name): weight})
    changes: dict[str, Any] = {}
    if edits["strategy"] is not None:
        # The group's strategy options belong to the group's strategy; another one starts with its defaults.
        changes = {"strategy": edits["strategy"], "strategy_options": {}}
    if edits["option"]:
        base = changes.get("strategy_options", spec.strategy_options)
        changes["strategy_options"] = {**base, **dict(_pair("--option", text, _value, "") for text in edits["option"])}
    if edits["rollout"] is not None:
        changes["rollout"] = edits["rollout"]
    if edits["standbys"] is not None:
        changes["standby_count"] = edits["standbys"]
    return msgspec.structs.replace(spec, **changes)


def _new_member(text: str) -> MemberSpec:
    name, *settings = text.split(",")
    fields: dict[str, Any] = {}
    kinds: dict[str, Callable[[str], Any]] = {
        "capacity": float,
        "rack": str,
        "cap": int,
        "deployment": str,
        "topics": lambda topics: tuple(topics.split("+")),
    }
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in kinds:
            raise click.UsageError(f"--join {text!r}: {setting!r} is not one of {', '.join(kinds)} with a value")
        try:
            fields[key] = kinds[key](value)
        except ValueError as error:
            raise click.UsageError(f"--join {text!r}: {value!r} is not a number") from error
    return MemberSpec(name=name, **fields)


def _pair(option: str, text: str, kind: Callable[[str], T], wants: str) -> tuple[str, T]:
    name, equals, value = text.rpartition("=")
    if not equals or not name:
        raise click.UsageError(f"{option} {text!r} is not NAME=VALUE")
    try:
        return name, kind(value)
    except ValueError as error:
        raise click.UsageError(f"{option} {text!r}: {value!r} is not {wants}") from error


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _partition(text: str) -> TopicPartition:
    topic, slash, number = text.rpartition("/")
    if not slash or not (number.isascii() and number.isdecimal()):
        raise click.UsageError(f"--weight: {text!r} is not TOPIC/PARTITION")
    return TopicPartition(topic, int(number))


# --- what is shown -----------------------------------------------------------------------------------------------


def _view(found: WhatIfReport, *, explain: bool) -> RenderableType:
    parts: list[RenderableType] = [_headline(found), Text(), _shares(found)]
    if found.rollout is not None:
        parts.insert(1, _rollout(found.rollout))
    if found.planned:
        parts += [Text(), _moves(found.planned, explain=explain)]
        if not explain and len(found.planned) > _SHOWN:
            parts.append(Text(f"... and {len(found.planned) - _SHOWN} more; --explain lists all", "dim"))
    parts += [Text(f"ignored: {words}", "yellow") for words in found.dropped]
    return Group(*parts)


def _headline(found: WhatIfReport) -> Text:
    if not found.planned:
        return Text(f"{found.strategy}: nothing moves", "bold green")
    worst = max(found.imbalance_by_topic.values(), default=0)
    text = Text(f"{found.strategy}: {found.moves} of {found.partitions} partitions move", "bold")
    text.append(f" (no plan as balanced moves fewer than {found.lower_bound})", "dim")
    if found.placed:
        text.append(f", {found.placed} without an owner get one")
    if found.unowned:
        text.append(f", {found.unowned} stay without an owner", "red")
    text.append(f"\nmost minus fewest partitions: {found.imbalance} over all, {worst} of one topic", "dim")
    if found.rack_mismatches:
        text.append(f"; {found.rack_mismatches} far from their replicas", "dim")
    if found.cold_starts:
        text.append(f"; {found.cold_starts} start cold, though somebody else has a copy", "dim")
    if found.unproved:
        text.append(f"\n{_UNPROVED}", "yellow")
    return text


def _rollout(name: str) -> Text:
    who = f"deployment {name!r} takes" if name else "those without a deployment take"
    return Text(f"a rollout is on: {who} over what others leave, and nothing moves for balance", "yellow")


def _shares(found: WhatIfReport) -> RenderableType:
    is_weighted = any(share.weight is not None for share in found.shares)
    copied = any(share.standbys for share in found.shares)
    columns = ["member", "before", "after", "gains", "loses"] + ["standbys"] * copied + ["weight"] * is_weighted
    rows = [
        [share.member, share.before, share.after, share.gains, share.loses]
        + [share.standbys] * copied
        + [round(share.weight or 0.0, 3)] * is_weighted
        for share in found.shares
    ]
    return table("", columns, rows)


def _moves(planned: tuple[PlannedMove, ...], *, explain: bool) -> RenderableType:
    shown = planned if explain else planned[:_SHOWN]
    columns = ["partition", "from", "to", "start"] + ["why"] * explain
    rows = [
        [move.partition, move.old or "nobody", move.new or "nobody", "warm" if move.warm else ""] + [move.why] * explain
        for move in shown
    ]
    return table("", columns, rows)
