"""Shortens our own errors to their message, for users of Spark.

Spark prints the whole Python trace of an error, with its causes, before the one sentence that says what to do.
Unexpected errors keep their traces.
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
    """Wrap a function so that our own errors are raised without trace and cause, which are logged at level debug."""

    @wraps(function)
    def call(*args: P.args, **more: P.kwargs) -> T:
        try:
            return function(*args, **more)
        except AssignerError as error:
            _log.debug("call_failed", exc_info=True)
            raise error.with_traceback(None) from None

    return call
