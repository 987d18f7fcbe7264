"""The loops of the etcd store: one that fails is restarted and told of, and the store serves on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from assigner.aio import supervision
from assigner.backends.etcd.store import EtcdStore
from assigner.store import Found, Renewed
from assigner.testing.waiting import eventually
from tests.support.servers.etcd import RunningEtcd
from tests.support.servers.etcd_access import events_of, opened

LOOPS: dict[str, Callable[[EtcdStore], tuple[Any, str]]] = {
    "etcd connection": lambda store: (store._member, "_use"),
    "etcd keep-alives": lambda store: (store._keep_alives, "_serve"),
    "etcd watches": lambda store: (store._watches, "_serve"),
}
"""By name: a step that each turn of the loop takes."""


def break_step(monkeypatch: pytest.MonkeyPatch, part: Any, step: str, times: float) -> None:
    """The step raises that many times, after it has done its work: when its stream or connection is over."""
    whole: Callable[..., Awaitable[object]] = getattr(part, step)
    left = times

    async def broken(*arguments: Any) -> object:
        nonlocal left
        outcome = await whole(*arguments)
        if left:
            left -= 1
            raise KeyError("a bug")
        return outcome

    monkeypatch.setattr(part, step, broken)


async def in_every_way(store: EtcdStore, prefix: str) -> None:
    """Use the store in each of the ways that a loop is behind."""
    lease = (await store.grant(30)).lease
    written = await store.put(f"{prefix}k", b"", lease=lease)
    async with store.watch(prefix, start_revision=written.revision) as items:
        await events_of(items, 1)
        assert isinstance(await store.keep_alive(lease), Renewed)
    assert isinstance(await store.get(f"{prefix}k"), Found)


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_loop_of_the_store_that_fails_is_restarted_and_all_callers_are_served(
    loop: str,
    etcd_server: RunningEtcd,
    etcd_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(etcd_server.endpoints) as store:
        break_step(monkeypatch, *LOOPS[loop](store), times=2)
        lease = (await store.grant(30)).lease
        async with store.watch(etcd_prefix, start_revision=1) as items:
            for number in range(3):
                await store.put(f"{etcd_prefix}{number}", b"")
                await events_of(items, 1)
                assert isinstance(await store.keep_alive(lease), Renewed)
                # Whatever the loop is at, this ends it.
                current = store._member._current
                assert current is not None
                store._member.report(current, "cut by the test")
                await eventually(lambda: store.statistics().endpoint is not None)
            await store.put(f"{etcd_prefix}last", b"")
            await events_of(items, 1)
        await in_every_way(store, f"{etcd_prefix}again/")
        assert store._supervisor.restarts[loop] == 2
        assert not store.problems()
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(told) == 2
    assert all(loop in line and "a bug" in line for line in told)


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_loop_of_the_store_that_keeps_failing_is_a_problem_of_the_process(
    loop: str, etcd_server: RunningEtcd, etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "HOPELESS", 2)
    async with opened(etcd_server.endpoints, request_timeout=0.5) as store:
        part, step = LOOPS[loop](store)

        async def broken(*_arguments: Any) -> None:
            raise KeyError("a bug")

        monkeypatch.setattr(part, step, broken)
        async with store.watch(etcd_prefix, start_revision=1):
            current = store._member._current
            assert current is not None
            store._member.report(current, "cut by the test")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_renew_for_ever, store)
                await eventually(lambda: bool(store.problems()), within=30)
                tasks.cancel_scope.cancel()
        assert [problem.startswith(loop) for problem in store.problems()] == [True]


async def _renew_for_ever(store: EtcdStore) -> None:
    while True:
        with anyio.move_on_after(0.2):
            await store._keep_alives._renew(1, store._clock.now())
