"""The net under the scenarios catches what it is for."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from assigner.aio.supervision import Supervisor, unending
from tests.support import unread_tasks as module
from tests.support.unread_tasks import no_unread_tasks

pytestmark = pytest.mark.virtual_time


async def fails() -> None:
    raise KeyError("a bug")


async def test_what_ends_in_order_passes() -> None:
    async with no_unread_tasks() as net, anyio.create_task_group() as tasks:
        tasks.start_soon(Supervisor().keep, "a loop", anyio.sleep_forever, name="leading")
        tasks.start_soon(unending, "a loop", anyio.sleep_forever)
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()
    assert not net.unnamed


async def test_a_task_that_is_left_is_reported() -> None:
    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(AssertionError, match="tasks that are left:\n'forgotten'"):
        async with no_unread_tasks():
            tasks.append(asyncio.create_task(anyio.sleep_forever(), name="forgotten"))
    tasks[0].cancel()


async def test_a_failure_that_nobody_reads_is_reported() -> None:
    with pytest.raises(AssertionError, match=r"never retrieved: KeyError\('a bug'\)"):  # noqa: PT012
        async with no_unread_tasks():
            asyncio.create_task(fails(), name="unread")  # noqa: RUF006 - that is what is caught
            await anyio.sleep(1)


async def test_a_failure_that_is_read_passes() -> None:
    async with no_unread_tasks():
        task = asyncio.create_task(fails(), name="read")
        await asyncio.wait([task])
        assert isinstance(task.exception(), KeyError)


async def test_a_task_that_our_code_makes_without_a_name_is_reported() -> None:
    async def made_by_us() -> None:
        await asyncio.create_task(anyio.sleep(1))

    with pytest.raises(AssertionError, match="tasks without a name"):  # noqa: PT012
        async with no_unread_tasks():
            # As if this file were one of the service's.
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module, "OURS", (__file__,))
                await made_by_us()
