"""The conformance kit on both stores: in memory in virtual time, and on a real etcd."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import anyio.to_thread
import pytest

from assigner.backend import StoreSettings, load
from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import LoopClock
from assigner.testing.conformance import StoreConformance, Subject
from tests.support.servers.etcd import EtcdServer, EtcdUnavailableError, RunningEtcd, find_binary


def compaction_of(etcd: RunningEtcd) -> Callable[[int], Awaitable[None]]:
    """What an operator does to etcd's history, by its JSON gateway, because no Store needs to offer it."""

    def ask(revision: int) -> None:
        body = json.dumps({"revision": str(revision), "physical": True}).encode()
        request = urllib.request.Request(f"http://{etcd.endpoint}/v3/kv/compaction", data=body, method="POST")
        with urllib.request.urlopen(request, timeout=5) as response:
            response.read()

    async def compact(revision: int) -> None:
        await anyio.to_thread.run_sync(ask, revision)

    return compact


@pytest.fixture(scope="session")
def prompt_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEtcd]:
    """An etcd that tells quiet watches of its progress every moment, not every ten minutes."""
    try:
        binary = find_binary()
    except EtcdUnavailableError as failure:
        pytest.skip(str(failure))
    flag = "watch-progress-notify-interval=200ms"
    flag = f"--{flag}" if binary.version >= (3, 6) else f"--experimental-{flag}"
    with EtcdServer(tmp_path_factory.mktemp("etcd"), binary=binary, extra_flags=[flag]) as server:
        yield server


# On this loop a test with sockets to a server runs in real time, so one mark fits both stores.
@pytest.mark.virtual_time
class TestStore(StoreConformance):
    @pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.etcd)])
    async def subject(self, request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
        prefix = f"/test-{uuid.uuid4().hex[:12]}/"
        if request.param == "memory":
            state = MemoryState(LoopClock())
            memory, another_memory = MemoryStore(state), MemoryStore(state)
            subject = Subject(memory, another_memory, compact=memory.compact, prefix=prefix)
        else:
            etcd: RunningEtcd = request.getfixturevalue("prompt_etcd")
            settings = StoreSettings(endpoints=tuple(etcd.endpoints))
            store, another = [await load("etcd").open(settings, LoopClock()) for _ in range(2)]
            subject = Subject(store, another, compact=compaction_of(etcd), prefix=prefix)
        yield subject
        await subject.store.close()
        await subject.another.close()
