"""Refusals as users of Spark read them. Spark shows the whole trace of an error in Python, with the errors that led to
it, before the one sentence that says what to do. Of a refusal only the sentence is of use.

Errors that nobody raised on purpose keep their traces.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from assigner.errors import AssignerError
from assigner.logs import get_logger

P = ParamSpec("P")
T = TypeVar("T")

_log = get_logger(__name__)


def without_traceback(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose refusals come without what led to them. The log has that, at level debug."""

    @wraps(function)
    def call(*args: P.args, **more: P.kwargs) -> T:
        try:
            return function(*args, **more)
        except AssignerError as error:
            _log.debug("call_failed", exc_info=True)
            raise error.with_traceback(None) from None

    return call
