"""Patterns of topics, in RE2's syntax and matched against the whole name, as Kafka 4 defines them.

RE2 takes time in proportion to the text, whatever the pattern, so nobody's pattern can hold up the gateway. Its memory
is bounded, and so is the pattern's length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from assigner.errors import InvalidInput, how_to_install

MOST_CHARACTERS = 4_096
_MEMORY = 1 << 20


class InvalidPattern(InvalidInput):
    """A pattern that RE2 does not take."""


def check_pattern(pattern: str) -> None:
    """Raise `InvalidPattern`."""
    _compiled(pattern)


@lru_cache(maxsize=200)
def matching(pattern: str, names: frozenset[str]) -> frozenset[str]:
    """The names that the pattern matches as a whole; none for an empty one.

    Remembered, since all members of a group usually ask for the same pattern and the same list."""
    if not pattern:
        return frozenset()
    compiled = _compiled(pattern)
    return frozenset(name for name in names if compiled.fullmatch(name))


@lru_cache(maxsize=1_000)
def _compiled(pattern: str) -> Any:
    if len(pattern) > MOST_CHARACTERS:
        raise InvalidPattern(f"SubscribedTopicRegex has {len(pattern)} characters; {MOST_CHARACTERS} are taken")
    re2 = _library()
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        return re2.compile(pattern, options=options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if error.args else error
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
        raise InvalidPattern(f"SubscribedTopicRegex {pattern!r} is not a valid regular expression: {text}") from error


def _library() -> Any:
    try:
        import re2
    except ImportError as error:
        raise InvalidInput(f"patterns of topics need google-re2 ({error}); {how_to_install('gateway')}") from error
    return re2
