"""Every private attribute of grpclib and h2 that the project uses, by name: an upgrade shows here what is gone."""

from __future__ import annotations

import inspect
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import grpclib._typing
import grpclib.events
import pytest
from grpclib.client import Channel
from grpclib.config import Configuration
from grpclib.protocol import Connection
from grpclib.protocol import Stream as Http2Stream
from grpclib.server import Stream
from h2.connection import H2Connection
from h2.frame_buffer import FrameBuffer

ROOT = Path(__file__).parents[3]
SOURCES = [path for name in ("assigner", "backends") for path in (ROOT / name).rglob("*.py")]
# Class -> its attributes in use.
IN_USE: dict[type, set[str]] = {
    Stream: {"_cardinality", "_send_trailing_metadata_done", "_stream"},
    Http2Stream: {"_transport", "_h2_connection"},
    Connection: {"_transport"},
    Channel: {"_protocol"},
    H2Connection: {"_open_streams", "open_inbound_streams", "incoming_buffer"},
    FrameBuffer: {"_data"},
}
KEEPALIVE = {
    "_keepalive_time",
    "_keepalive_timeout",
    "_keepalive_permit_without_calls",
    "_http2_max_pings_without_data",
    "_http2_min_sent_ping_interval_without_data",
}
OTHERS = {"_typing", "_DispatchServerEvents"}
"""Private names that are imported."""
_OURS = {"_replace", "_exit"}
"""Of the standard library, public in spite of their names."""


@pytest.mark.parametrize(("owner", "names"), IN_USE.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_the_library_still_has_what_is_used(owner: type, names: set[str]) -> None:
    source = inspect.getsource(owner)
    for name in names:
        assert hasattr(owner, name) or re.search(rf"self\.{name}\b", source), f"{owner.__name__} has no {name}"


def test_connections_can_be_kept_alive() -> None:
    assert {field.name for field in fields(Configuration)} >= KEEPALIVE


def test_what_is_imported_is_there() -> None:
    assert {"ICheckable", "IServable"} <= set(vars(grpclib._typing))
    assert "_DispatchServerEvents" in vars(grpclib.events)


def test_no_other_private_attribute_is_in_use() -> None:
    """Of what files say that import one of the two libraries: attributes of others than `self`, `cls` and `super()`."""
    known = set().union(*IN_USE.values(), KEEPALIVE, OTHERS, _OURS)
    for path in SOURCES:
        text = path.read_text()
        if re.search(r"^(from|import) (grpclib|h2)\b", text, re.MULTILINE) and "proto" not in path.parts:
            used = set(re.findall(r"(?<!self)(?<!cls)(?<!super\(\))\.(_[a-z]\w*)", text))
            assert used <= known, f"{path.relative_to(ROOT)}: add {used - known} to IN_USE"


def test_the_next_versions_are_not_taken_unseen() -> None:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounded = {re.split(r"[<>=]", text)[0] for text in requirements if ",<" in text}
    assert bounded == {"betterproto2", "grpclib", "h2"}
