"""Reads values from a TOML file, the environment and flags, each into a layer of keys, values and origins.

A layer holds raw values; `assigner.settings.loading` merges the layers and converts the values. An unknown name is a
problem, reported with the nearest known name: a misspelt setting that is silently ignored causes outages.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from assigner.errors import InvalidInput
from assigner.secret_files import readable_by_everybody
from assigner.settings.catalog import CATALOG, PREFIX, SECRET_PROPERTY

MAX_FILE_BYTES = 1_000_000

CLI_ONLY = frozenset(
    {
        "ASSIGNER_CONFIG",
        "ASSIGNER_ADDRESS",
        "ASSIGNER_OUTPUT",
        "ASSIGNER_TIMEOUT",
        "ASSIGNER_TLS",
        "ASSIGNER_TLS_CA",
        "ASSIGNER_TLS_CERT",
        "ASSIGNER_TOKEN_FILE",
        "ASSIGNER_TLS_KEY",
    }
)
"""Names that the command line reads and the service does not."""

# Kubernetes sets these in every pod next to a Service whose name begins with `assigner`.
_SERVICE_LINK = re.compile(
    r"ASSIGNER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


class Value(msgspec.Struct, frozen=True):
    key: str
    raw: Any
    origin: str
    """For people: `file a.toml`, `environment ASSIGNER_X`, `flag --x`."""
    text: bool = False
    """The value is text (environment, flag), to be converted to the type of its key."""


class Layer(msgspec.Struct, frozen=True):
    values: tuple[Value, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def nearest(word: str, among: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing when nothing is near."""
    found = difflib.get_close_matches(word, list(among), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


# --- TOML --------------------------------------------------------------------------------------------------------


def from_file(path: str) -> Layer:
    origin = f"file {path}"
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"can't read the settings {path}: {error.strerror}; check --config") from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidInput(f"the settings {path} are larger than {MAX_FILE_BYTES} bytes; is it the right file?")
    try:
        tree = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the settings {path} are not TOML: {error}") from error
    values, problems = [], []
    for key, raw in _flatten(tree, ""):
        if key in CATALOG:
            values.append(Value(key, raw, origin))
        else:
            problems.append(f"{origin}: unknown key {key}{nearest(key, CATALOG)}")
    secrets = [value.key for value in values if CATALOG[value.key].secret and value.raw]
    notes = [f"{origin}: {open_secret(', '.join(secrets), path)}"] if secrets and readable_by_everybody(path) else []
    return Layer(tuple(values), tuple(problems), tuple(notes))


def open_secret(what: str, path: str) -> str:
    return f"{what} can be read by everybody on this machine; `chmod o-r {path}`"


def _flatten(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{path}{name}"
        if isinstance(value, dict) and key not in CATALOG and _is_table(key):
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


def _is_table(key: str) -> bool:
    return any(known.startswith(f"{key}.") for known in CATALOG)


# --- environment -------------------------------------------------------------------------------------------------


def from_environment(environment: Mapping[str, str], also_known: Iterable[str] = ()) -> Layer:
    """Read the `ASSIGNER_*` names. `also_known`: names of that form which another source reads."""
    by_name = {key.environment: key.name for key in CATALOG.values()}
    others = CLI_ONLY.union(also_known)
    values, problems = [], []
    for name, raw in sorted(environment.items()):
        if not name.startswith(PREFIX) or name in others or name.startswith("ASSIGNER_TEST_"):
            continue
        if _is_service_link(name, raw, known=name in by_name):
            continue
        if name in by_name:
            values.append(Value(by_name[name], raw, f"environment {name}", text=True))
        else:
            problems.append(f"environment: unknown name {name}{nearest(name, by_name)}")
    return Layer(tuple(values), tuple(problems))


def _is_service_link(name: str, raw: str, *, known: bool) -> bool:
    if not _SERVICE_LINK.fullmatch(name):
        return False
    return not known or _LINK_VALUE.match(raw) is not None


# --- flags -------------------------------------------------------------------------------------------------------


def from_flags(flags: Mapping[str, Any]) -> Layer:
    """Read the values of flags by key. None: the flag was not given."""
    values = [
        Value(key, raw, f"flag {CATALOG[key].flag or '--set ' + key}", text=isinstance(raw, str))
        for key, raw in flags.items()
        if raw is not None
    ]
    return Layer(tuple(values))


def from_assignments(assignments: Iterable[str]) -> Layer:
    """Read the `KEY=VALUE` arguments of `--set`."""
    values, problems = [], []
    for text in assignments:
        key, equals, raw = text.partition("=")
        if not equals:
            problems.append(f"flag --set {text}: write it as KEY=VALUE")
        elif key not in CATALOG:
            problems.append(f"flag --set: unknown key {key}{nearest(key, CATALOG)}")
        elif _holds_a_secret(key, raw):
            problems.append(
                f"flag --set {key}: a secret on the command line is in the process list for everybody to see; "
                f"use {key}_file, or {CATALOG[key].environment}"
            )
        else:
            values.append(Value(key, raw, f"flag --set {key}", text=True))
    return Layer(tuple(values), tuple(problems))


def _holds_a_secret(key: str, raw: str) -> bool:
    """Whether the value is secret; in a table of properties, by the names of the properties."""
    if not CATALOG[key].secret:
        return False
    return SECRET_PROPERTY.search(raw) is not None if raw.lstrip().startswith("{") else bool(raw)
