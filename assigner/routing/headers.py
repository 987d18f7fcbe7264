"""Writes a request's target into its headers at the router, and reads it from them at the owner.

The names are the same in HTTP headers and in gRPC metadata. Group and owner are percent-encoded, because neither
protocol carries all characters; topics need no encoding. An owner that refuses a request answers with the header
`REFUSED`, which says what a status alone can't: nothing of the request was done.

Not promised: that headers are true. They say where a router meant to send a request, and do not prove who sent it.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, unquote

import msgspec

from assigner.errors import InvalidInput, InvalidName
from assigner.model.names import check_name, check_topic
from assigner.routing.handler import Target

GROUP = "assigner-group"
"""The group that the owner is a consumer of. May be left out."""
OWNER = "assigner-owner"
"""The name of the consumer that the request is for."""
TOPIC = "assigner-topic"
PARTITION = "assigner-partition"
EPOCH = "assigner-epoch"
"""The epoch that the router knows the owner under."""
REFUSED = "assigner-refused"
"""In an answer: why the request was refused before anything of it was done."""

_REQUIRED = (OWNER, TOPIC, PARTITION, EPOCH)
_NAMES = frozenset({GROUP, *_REQUIRED})
_MAX_PARTITION = 2**31 - 1
_MAX_EPOCH = 2**63 - 1


class MalformedTarget(InvalidInput):
    """A request whose headers have an incomplete or invalid target."""


class RequestTarget(msgspec.Struct, frozen=True, gc=False):
    """What the headers of a request say: where its router meant to send it."""

    group: str
    """Empty: not said."""
    owner: str
    topic: str
    partition: int
    epoch: int


def headers_of(target: Target, group: str = "") -> dict[str, str]:
    """The headers that carry a target."""
    headers = {
        OWNER: quote(target.owner, safe=""),
        TOPIC: target.topic,
        PARTITION: str(target.partition),
        EPOCH: str(target.epoch),
    }
    if group:
        headers[GROUP] = quote(group, safe="")
    return headers


def target_of(headers: Iterable[tuple[str, str | bytes]]) -> RequestTarget | None:
    """Read the target from all headers of a request. None: it has none of these headers.

    Raises `MalformedTarget` if a header is missing, comes twice or breaks its rule."""
    found: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        if name not in _NAMES:
            continue
        if name in found:
            raise MalformedTarget(f"the header {name} comes twice; send it once")
        # Only metadata whose name ends in `-bin` is bytes, and none of ours does.
        found[name] = value if isinstance(value, str) else ""
    if not found:
        return None
    for name in _REQUIRED:
        if name not in found:
            raise MalformedTarget(f"the header {name} is missing; a request that is routed has {', '.join(_REQUIRED)}")
    return RequestTarget(
        group=_name(GROUP, found[GROUP]) if GROUP in found else "",
        owner=_name(OWNER, found[OWNER]),
        topic=_topic(found[TOPIC]),
        partition=_number(PARTITION, found[PARTITION], _MAX_PARTITION),
        epoch=_number(EPOCH, found[EPOCH], _MAX_EPOCH),
    )


def _name(header: str, value: str) -> str:
    try:
        return check_name(f"the header {header}", unquote(value, errors="strict"))
    except UnicodeDecodeError:
        raise MalformedTarget(f"the header {header} is {value[:40]!r}; percent-encode the name's UTF-8") from None
    except InvalidName as error:
        raise MalformedTarget(str(error)) from None


def _topic(value: str) -> str:
    try:
        return check_topic(value)
    except InvalidName as error:
        raise MalformedTarget(f"the header {TOPIC}: {error}") from None


def _number(header: str, value: str, most: int) -> int:
    # The only form that `headers_of` writes: digits, and no sign, blank or leading zero.
    number = int(value) if value.isascii() and value.isdecimal() and len(value) <= len(str(most)) else -1
    if number < 0 or number > most or str(number) != value:
        raise MalformedTarget(f"the header {header} is {value[:40]!r}; it must be a whole number from 0 to {most}")
    return number
