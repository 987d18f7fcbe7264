"""Constraints of values, defined once: checked on input, named in error messages, and written into the JSON Schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from assigner.core.group import MAX_PARTITIONS
from assigner.errors import AssignerError
from assigner.model.keys import Keys
from assigner.model.names import check_name, check_topic
from assigner.secret_files import read_properties, read_secret


class AllowedRange(msgspec.Struct, frozen=True):
    """Bounds of a number. `above` is exclusive."""

    above: float | None = None
    least: float | None = None
    most: float | None = None

    def broken_by(self, value: Any) -> str | None:
        """The violation of the rule by the value, or None."""
        if value != value:
            return "must be a number"
        if self.above is not None and not value > self.above:
            return f"must be greater than {self.above:g}"
        if self.least is not None and value < self.least:
            return f"must be at least {self.least:g}"
        if self.most is not None and value > self.most:
            return f"must be at most {self.most:g}"
        return None

    def schema(self) -> dict[str, float]:
        named = {"exclusiveMinimum": self.above, "minimum": self.least, "maximum": self.most}
        return {name: bound for name, bound in named.items() if bound is not None}

    def __str__(self) -> str:
        parts = (
            f"> {self.above:g}" if self.above is not None else "",
            f">= {self.least:g}" if self.least is not None else "",
            f"<= {self.most:g}" if self.most is not None else "",
        )
        return ", ".join(part for part in parts if part)


class Rule(msgspec.Struct, frozen=True):
    """A rule that is not a range. `test` returns the violation or None."""

    says: str
    test: Callable[[Any], str | None]

    def broken_by(self, value: Any) -> str | None:
        return self.test(value)

    def schema(self) -> dict[str, float]:
        return {}

    def __str__(self) -> str:
        return self.says


def _by_raising(check: Callable[[Any], object]) -> Callable[[Any], str | None]:
    def test(value: Any) -> str | None:
        try:
            check(value)
        except AssignerError as error:
            return f"is not allowed: {error}"
        return None

    return test


def _check_topics(topics: dict[str, dict[str, int]]) -> None:
    keys = Keys()
    for group, counts in topics.items():
        keys.check_group(group)
        for topic, count in counts.items():
            check_topic(topic)
            if not 1 <= count <= MAX_PARTITIONS:
                raise AssignerError(
                    f"topic {topic!r} of group {group!r} has {count} partitions; give it 1 to {MAX_PARTITIONS}"
                )


def _slashed(value: str) -> str | None:
    if not value.startswith("/") or not value.endswith("/"):
        return "must begin and end with '/'"
    return None


def _group_prefix(value: str) -> str | None:
    return None if not value or value.endswith("/") else "must end with '/'"


def _named_endpoints(value: tuple[str, ...]) -> str | None:
    """The backend checks the form of an endpoint: a path, a URL, a host and a port."""
    if not value:
        return "must name at least one"
    return None if all(endpoint.strip() for endpoint in value) else "holds an empty one"


def _address(value: str) -> str | None:
    host, colon, port = value.rpartition(":")
    is_address = host and colon and port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    return None if not value or is_address else f"holds {value!r}, which is not host:port"


def _not_none(check: Callable[[str], object]) -> Callable[[Any], str | None]:
    return _by_raising(lambda value: value is not None and check(value))


def _not_blank(value: str) -> str | None:
    return None if value.strip() else "must not be empty"


SECONDS = AllowedRange(above=0, most=86_400)
TTL = AllowedRange(least=1, most=3600)
PORT = AllowedRange(least=0, most=65_535)
GROUP_NAME = Rule("a group name", _by_raising(Keys().check_group))
INSTANCE_NAME = Rule("a printable name", _by_raising(lambda name: check_name("instance", name)))
GENERATION = Rule("printable or empty", _by_raising(lambda name: name and check_name("generation", name)))
TOPICS = Rule("topic names with 1 or more partitions", _by_raising(_check_topics))
PREFIX = Rule("begins and ends with /", _slashed)
GROUP_PREFIX = Rule("empty, or ends with /", _group_prefix)
ENDPOINTS = Rule("one or more, comma-separated", _named_endpoints)
ADDRESS = Rule("host:port or empty", _address)
SECRET_FILE = Rule("a file that can be read", _not_none(read_secret))
PROPERTIES_FILE = Rule("a file that can be read", _not_none(read_properties))
NOT_BLANK = Rule("not empty", _not_blank)
