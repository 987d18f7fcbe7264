"""Renders settings: as TOML with origins, as JSON, as JSON Schema, and as the table of the reference page.

Secrets are never shown: not in a value, and not inside a URL or a table of properties.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from assigner.settings.catalog import CATALOG, NOT_SETTINGS, SECRET_PROPERTY, Leaf, leaves
from assigner.settings.loading import DEFAULT, Loaded, wanted
from assigner.settings.model import Settings
from assigner.settings.upstream import NAMES, UNUSED

REDACTED = "********"
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def shown(settings: Settings) -> dict[str, Any]:
    """Key -> value as plain data, with secrets redacted."""
    return {name: _redact(leaf, value_of(settings, name)) for name, leaf in leaves().items()}


def value_of(settings: Settings, key: str) -> Any:
    value: Any = settings
    for part in key.split("."):
        value = getattr(value, part)
    return msgspec.to_builtins(value)


def _redact(leaf: Leaf, value: Any) -> Any:
    if isinstance(value, str):
        return REDACTED if leaf.key.secret and value else _USER_INFO.sub(REDACTED, value)
    if isinstance(value, (list, tuple)):
        return [_redact(leaf, item) for item in value]
    if isinstance(value, dict) and leaf.key.secret:
        return {
            name: REDACTED if SECRET_PROPERTY.search(name) else _USER_INFO.sub(REDACTED, item)
            for name, item in value.items()
        }
    return value


# --- JSON --------------------------------------------------------------------------------------------------------


def as_json(loaded: Loaded) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in shown(loaded.settings).items():
        *path, last = key.split(".")
        table = tree
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return {"settings": tree, "origins": dict(sorted(loaded.origins.items())), "notes": list(loaded.notes)}


def schema() -> dict[str, Any]:
    """JSON Schema of the TOML file, with the meanings and the ranges of the catalog."""
    (root,), definitions = msgspec.json.schema_components([Settings], ref_template="#/$defs/{name}")
    for key in CATALOG.values():
        field = _definition_of(key.name, definitions)
        field["description"] = key.meaning
        if key.rule:
            field.update(key.rule.schema())
    for name in NOT_SETTINGS:
        table, field_name = _table_of(name, definitions)
        table["properties"].pop(field_name)
    for definition in definitions.values():
        if definition.get("type") == "object" and "properties" in definition:
            definition["additionalProperties"] = False
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}


def _table_of(key: str, definitions: dict[str, Any]) -> tuple[dict[str, Any], str]:
    *path, last = key.split(".")
    table = definitions["Settings"]
    for part in path:
        table = definitions[_reference(table["properties"][part])]
    return table, last


def _definition_of(key: str, definitions: dict[str, Any]) -> dict[str, Any]:
    table, last = _table_of(key, definitions)
    field: dict[str, Any] = table["properties"][last]
    return field


def _reference(field: dict[str, Any]) -> str:
    reference = field.get("$ref") or field["allOf"][0]["$ref"]
    return str(reference).rsplit("/", 1)[-1]


# --- TOML --------------------------------------------------------------------------------------------------------


def as_toml(loaded: Loaded) -> str:
    """Render a TOML file that loads to the same settings, with the origin of each value."""
    lines = [f"# {note}" for note in loaded.notes]
    values = shown(loaded.settings)
    current = ""
    # Top-level keys come first: after a table's header they would belong to that table.
    for key in sorted(values, key=lambda key: "." in key):
        table, _, name = key.rpartition(".")
        if table != current:
            lines += ["", f"[{table}]"]
            current = table
        lines.append(_line(name, values[key], loaded.origin(key)))
    return "\n".join(lines).strip() + "\n"


def _line(name: str, value: Any, origin: str) -> str:
    if value is None:
        return f"# {name} is not set"
    text = f"{name} = {_toml(value)}"
    return text if origin == DEFAULT else f"{text}  # {origin}"


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # TOML has JSON's escapes, except that DEL has to be escaped.
            return json.dumps(value).replace("\x7f", "\\u007f")
        case dict():
            return "{" + ", ".join(f"{_toml_key(name)} = {_toml(item)}" for name, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case _:
            return repr(value)


def _toml_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _toml(name)


# --- the reference page ------------------------------------------------------------------------------------------


def reference_tables() -> str:
    """The generated part of docs/reference/settings.md."""
    return "\n".join(_reference_lines()) + "\n"


def _reference_lines() -> Iterator[str]:
    yield "| key | type | default | rule | flag of `serve` | environment | meaning |"
    yield "|---|---|---|---|---|---|---|"
    for name, leaf in leaves().items():
        cells = (
            f"`{name}`",
            wanted(leaf.type),
            _shown_default(leaf),
            str(leaf.key.rule or ""),
            f"`{leaf.key.flag}`" if leaf.key.flag else "",
            f"`{leaf.key.environment}`",
            leaf.key.meaning,
        )
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield "| upstream's name | key |"
    yield "|---|---|"
    for variable, known in NAMES.items():
        yield f"| `{variable}` | `{known.key}` |"
    for variable, reason in UNUSED.items():
        yield f"| `{variable}` | accepted without effect: {reason} |"


def _shown_default(leaf: Leaf) -> str:
    if leaf.default is ...:
        return "made afresh"
    if leaf.default is None:
        return "not set"
    return f"`{_toml(msgspec.to_builtins(leaf.default))}`"


# Regenerate the reference page: `python -m assigner.settings.rendering docs/reference/settings.md`.


_BEGIN, _END = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"


def renewed(page: str) -> str:
    """Return the page with the generated part between its marks replaced."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{reference_tables()}{_END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text()))
