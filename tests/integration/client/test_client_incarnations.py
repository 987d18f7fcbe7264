"""A store that begins anew: consumers tell its grants from stale ones, and go to work again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from assigner.client import AssignerConsumer, Handler
from assigner.model.keys import TopicPartition
from assigner.testing.waiting import eventually
from tests.support.clients.recording_handler import QUICK, Recorder, consuming, owns
from tests.support.fakes.scripted_assigner import ScriptedAssigner
from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerProcess

COUNT = 12
WITHIN = 60.0


@contextmanager
def serving(port: int, log: Path) -> Iterator[ServerProcess]:
    """`assigner serve` on the memory store, as a process."""
    place = ["--grpc-port", str(port), "--http-port", "0"]
    what = ["--store", "memory", "--topic", f"billing/orders={COUNT}", "--debounce", "0.1"]
    process = ServerProcess([sys.executable, "-m", "assigner.cli", "serve", *place, *what], log)
    try:
        yield process
    finally:
        if process.is_running:
            process.kill()


def member(port: int, name: str, handler: Handler) -> AssignerConsumer:
    return AssignerConsumer(f"127.0.0.1:{port}", "billing", name, ["orders"], handler, timing=QUICK)


def share_everything(one: AssignerConsumer, other: AssignerConsumer) -> bool:
    """Both work, and every partition is worked on by exactly one of them."""
    mine, theirs = one.partitions.keys(), other.partitions.keys()
    return len(mine) == len(theirs) == COUNT // 2 and not mine & theirs


@pytest.mark.processes
async def test_every_partition_is_worked_on_again_after_the_memory_store_was_restarted(tmp_path: Path) -> None:
    port = free_port()
    with anyio.fail_after(3 * WITHIN):
        with serving(port, tmp_path / "first.log") as first:
            async with member(port, "a", Handler()) as a:
                await eventually(lambda: len(a.partitions) == COUNT, within=WITHIN, what="a works on all")
                async with member(port, "b", Handler()) as b:
                    await eventually(lambda: share_everything(a, b), within=WITHIN, what="a and b share")
                    assert max(b.partitions.values()) > 1, "no epoch has risen: a restart could not be seen"
                    await anyio.to_thread.run_sync(first.kill)
                    with serving(port, tmp_path / "second.log"):
                        await eventually(
                            lambda: a.statistics().links > 1 and b.statistics().links > 1 and share_everything(a, b),
                            within=WITHIN,
                            what="a and b share again",
                        )


async def test_a_client_that_is_sent_another_incarnation_logs_it_and_accepts_its_grants(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = Recorder()
    async with ScriptedAssigner(owned={"p0": 5}) as service:
        service.incarnation = "first"
        async with consuming(service, handler) as consumer:
            await owns(consumer, p0=5)
            service.incarnation, service.owned = "second", {"p0": 1}
            service.cut()
            await owns(consumer, p0=1)
    assert handler.calls[:3] == ["assigned orders/0@5", "revoked orders/0@5", "assigned orders/0@1"]
    assert told(caplog, "incarnation_changed") == [("second", "first")]


async def test_a_stale_grant_is_logged_with_both_epochs_and_not_once_per_grant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedAssigner(owned={"p0": 5}) as service, consuming(service, Handler()) as consumer:
        await owns(consumer, p0=5)
        for _ in range(50):
            service.stream.update(p0=4)
        await service.receives(lambda: consumer.statistics().stale_grants == 50)
        assert consumer.partitions == {TopicPartition("orders", 0): 5}
    told = [record.getMessage() for record in caplog.records if "stale_grant_ignored" in record.getMessage()]
    assert len(told) == 1
    assert "orders/0" in told[0]
    assert "epoch" in told[0]
    assert "4" in told[0]
    assert "5" in told[0]


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[tuple[str, str]]:
    """The lines about a change of the store's life: the id now and before."""
    lines = [record.msg for record in caplog.records if event in str(record.msg)]
    return [(line["incarnation"], line["previous"]) for line in lines if isinstance(line, dict)]
