"""A call whose connection is lost: grpclib cancels its caller to wake it, and somebody else may cancel it as well."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpclib.client import Stream
from grpclib.exceptions import StreamTerminatedError

from assigner.client.channel import Disconnected, _typed_errors


async def lose_the_connection(*cancelled_by: str) -> None:
    stream = cast(Stream[Any, Any], SimpleNamespace(trailing_metadata=None))
    task = asyncio.current_task()
    assert task is not None
    with _typed_errors(stream):
        for reason in cancelled_by:
            task.cancel(reason)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise StreamTerminatedError("Connection lost") from None


async def test_what_grpclib_cancels_is_a_lost_connection_and_nothing_is_left_of_the_cancelling() -> None:
    with pytest.raises(Disconnected, match="Connection lost"):
        await lose_the_connection("grpclib")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_what_others_cancel_in_the_same_moment_is_cancelled() -> None:
    task = asyncio.create_task(lose_the_connection("grpclib", "the program"))
    with pytest.raises(asyncio.CancelledError):
        await task
