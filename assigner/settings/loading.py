"""Merges flags, environment, file and defaults, in this order of precedence, into one checked `Settings`.

All problems are reported together, because fixing them one at a time takes long. The origin of each value is kept for
`assigner config print`.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin

import msgspec

from assigner.errors import InvalidInput
from assigner.gateway.settings import GatewaySettings
from assigner.model.defaults import SAFE_SHARE
from assigner.model.keys import group_at
from assigner.secret_files import readable_by_everybody
from assigner.settings import upstream
from assigner.settings.catalog import Leaf, leaves
from assigner.settings.model import Settings
from assigner.settings.sources import (
    Layer,
    Value,
    from_assignments,
    from_environment,
    from_file,
    from_flags,
    open_secret,
)

DEFAULT = "default"
_YES, _NO = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})
_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class Loaded(msgspec.Struct, frozen=True):
    settings: Settings
    origins: dict[str, str]
    """Key -> origin of its value; keys at their default are absent."""
    notes: tuple[str, ...] = ()
    """Warnings that do not make the settings invalid."""

    def origin(self, key: str) -> str:
        return self.origins.get(key, DEFAULT)


def load(
    *,
    flags: Mapping[str, Any] | None = None,
    assignments: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    config: str | None = None,
) -> Loaded:
    """Load the settings. Raises `InvalidInput` that lists every problem. `config` overrides `ASSIGNER_CONFIG`."""
    environment = environment or {}
    path = config or environment.get("ASSIGNER_CONFIG")
    layers = [
        upstream.implied(environment),
        from_file(path) if path else Layer(),
        upstream.from_upstream(environment),
        from_environment(environment, also_known=upstream.NAMES),
        from_flags(flags or {}),
        from_assignments(assignments),
    ]
    return _merge(layers)


def _merge(layers: list[Layer]) -> Loaded:
    problems = [problem for layer in layers for problem in layer.problems]
    values = {value.key: value for layer in layers for value in layer.values}
    tree: dict[str, Any] = {}
    for value in values.values():
        leaf = leaves()[value.key]
        try:
            _set(tree, value.key, read(leaf, value))
        except InvalidInput as error:
            problems.append(str(error))
    if problems:
        raise InvalidInput(_listed(problems))
    settings = _build(tree)
    notes = [note for layer in layers for note in layer.notes] + _warnings(settings)
    return Loaded(settings, {key: value.origin for key, value in values.items()}, tuple(notes))


def _build(tree: dict[str, Any]) -> Settings:
    try:
        settings = msgspec.convert(tree, Settings)
    except InvalidInput as error:
        # The sections `grpc` and `gateway` are also checked as a whole.
        raise InvalidInput(f"{_section_refused(tree)}: {error}") from error
    problems = _conflicts(settings)
    if problems:
        raise InvalidInput(_listed(problems))
    return settings


def _section_refused(tree: dict[str, Any]) -> str:
    try:
        msgspec.convert(tree.get("gateway", {}), GatewaySettings)
    except InvalidInput:
        return "gateway"
    return "grpc"


def _listed(problems: list[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems in the settings:\n" + "\n".join(f"  - {problem}" for problem in problems)


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
    tree[last] = value


# --- one value ---------------------------------------------------------------------------------------------------


def read(leaf: Leaf, value: Value) -> Any:
    """Convert the value to its key's type and check its key's rule. Raises `InvalidInput` naming key, rule and
    remedy."""
    raw = value.raw
    try:
        if value.text and isinstance(raw, str):
            raw = _from_text(leaf.type, raw)
        typed = msgspec.convert(raw, leaf.type)
    except (ValueError, msgspec.ValidationError) as error:
        shown = "the value" if leaf.key.secret else repr(value.raw)
        raise InvalidInput(f"{value.origin}: {leaf.key.name}: {shown} is not {wanted(leaf.type)}") from error
    breach = leaf.key.rule.broken_by(typed) if leaf.key.rule else None
    if breach:
        raise InvalidInput(f"{value.origin}: {leaf.key.name} {breach}; it is {typed!r}")
    return msgspec.to_builtins(typed)


def _from_text(kind: Any, text: str) -> Any:
    """Convert the text of a flag or an environment variable for the type. Raises `ValueError`."""
    optional = _without_none(kind)
    if optional is not kind and text == "":
        return None
    kind = optional
    if kind is str or (isinstance(kind, type) and issubclass(kind, Enum)):
        return text
    if kind is bool:
        return _to_bool(text)
    if kind in (int, float):
        return kind(text)
    if _element(kind) is not None and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def _element(kind: Any) -> Any:
    """The type of the elements of a list that is written with commas; None: it is no such list."""
    if get_origin(kind) is not tuple:
        return None
    element, *rest = get_args(kind)
    is_plain = element is str or (isinstance(element, type) and issubclass(element, Enum))
    return element if is_plain and rest == [...] else None


def _to_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _YES | _NO:
        raise ValueError(text)
    return word in _YES


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        rest = [part for part in get_args(kind) if part is not type(None)]
        if len(rest) == 1:
            return rest[0]
    return kind


def wanted(kind: Any) -> str:
    """The name of a type in error messages."""
    kind = _without_none(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    if get_origin(kind) is tuple:
        element = _element(kind)
        if element is None:
            return "a list of lists (as JSON where it is text)"
        return "a list of text" if element is str else f"a list, each {wanted(element)}"
    if get_origin(kind) is dict:
        return "a table (a JSON object where it is text)"
    return _TYPE_NAMES.get(kind, str(kind))


# --- values together ---------------------------------------------------------------------------------------------


def _conflicts(settings: Settings) -> list[str]:
    found = []
    store = settings.store
    if bool(store.tls_cert) != bool(store.tls_key):
        found.append("store.tls_cert and store.tls_key go together; set both or neither")
    if store.password and store.password_file:
        found.append("store.password and store.password_file are both set; keep the file")
    if (store.password or store.password_file) and not store.user:
        found.append("store.password is set without store.user; set the user too")
    resident = group_at(settings.default_prefix, store.root)
    if resident and resident != settings.default_group:
        found.append(
            f"default_prefix {settings.default_prefix!r} is where group {resident!r} lives, which would be reached "
            f"under two names; set default_group to {resident!r}"
        )
    if settings.loads.stale_after < 2 * settings.loads.interval:
        found.append(
            f"loads.stale_after ({settings.loads.stale_after:g} s) is less than twice loads.interval "
            f"({settings.loads.interval:g} s): loads would be stale before they are written again; set it higher"
        )
    ports: dict[int, str] = {}
    for key, port in _ports(settings):
        if port and port in ports:
            found.append(f"{ports[port]} and {key} are both {port}; give each its own")
        ports.setdefault(port, key)
    return found


def _ports(settings: Settings) -> Iterator[tuple[str, int]]:
    yield "grpc.port", settings.grpc.port
    yield "http.port", settings.http.port
    if settings.gateway.enabled:
        yield "gateway.port", settings.gateway.port


def _warnings(settings: Settings) -> list[str]:
    found = []
    if settings.store.backend != "memory" and settings.store.request_timeout >= settings.leader_ttl * SAFE_SHARE:
        found.append(
            f"store.request_timeout ({settings.store.request_timeout:g} s) leaves no second try within two thirds of "
            f"leader_ttl ({settings.leader_ttl:g} s): one slow request costs the leadership"
        )
    for key, path in _secret_files(settings):
        if path and readable_by_everybody(path):
            found.append(open_secret(key, path))
    return found


def _secret_files(settings: Settings) -> tuple[tuple[str, str | None], ...]:
    return (
        ("store.password_file", settings.store.password_file),
        ("store.tls_key", settings.store.tls_key),
        ("grpc.tls_key", settings.grpc.tls_key),
        ("kafka.properties_file", settings.kafka.properties_file),
        ("gateway.upstream_properties_file", settings.gateway.upstream_properties_file),
        ("gateway.tls_key", settings.gateway.tls_key),
        ("gateway.sasl_credentials", settings.gateway.sasl_credentials),
        ("gateway.leader_tls_key", settings.gateway.leader_tls_key),
        ("gateway.leader_token_file", settings.gateway.leader_token_file),
    )
