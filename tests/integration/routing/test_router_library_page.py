"""The router of docs/how-to/route-requests.md runs as it stands there, and loses nothing when a pod joins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from assigner.client import AssignerConsumer, GateClosed, Handler, StaleEpoch
from assigner.embedded import EmbeddedAssigner
from tests.support.clients.recording_handler import QUICK
from tests.support.servers.ports import free_port
from tests.unit.project.test_docs import blocks

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/how-to/route-requests.md"
TOPIC, COUNT = "orders", 8
pytestmark = pytest.mark.processes


@contextmanager
def router_process(text: str, directory: Path) -> Iterator[None]:
    (directory / "router.py").write_text(text)
    with (directory / "output").open("w") as output:
        process = subprocess.Popen([sys.executable, str(directory / "router.py")], stdout=output, stderr=output)
    try:
        yield
        assert process.poll() is None, (directory / "output").read_text()
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def pod(address: str, name: str) -> AsyncIterator[AssignerConsumer]:
    """A consumer that answers the routed lines of its partitions with its name and their text."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    consumer = AssignerConsumer(
        address, "billing", name, [TOPIC], Handler(), advertised_address=f"127.0.0.1:{port}", timing=QUICK
    )

    async def serve(stream: SocketStream) -> None:
        async with stream:
            line = await BufferedByteReceiveStream(stream).receive_until(b"\n", 1000)
            partition, epoch, text = line.split(b" ", 2)
            try:
                async with consumer.gate(TOPIC, int(partition)).entering(int(epoch)):
                    await stream.send(name.encode() + b" " + text + b"\n")
            except (GateClosed, StaleEpoch) as error:
                await stream.send(f"refused: {error}\n".encode())

    async with anyio.create_task_group() as tasks, consumer:
        tasks.start_soon(listener.serve, serve)
        yield consumer
        tasks.cancel_scope.cancel()
    await listener.aclose()


async def connected(port: int) -> SocketStream:
    with anyio.fail_after(60):
        while True:
            try:
                return await anyio.connect_tcp("127.0.0.1", port)
            except OSError:
                await anyio.sleep(0.05)


@pytest.mark.embedded_assigner(topics={"billing": {TOPIC: COUNT}})
async def test_the_router_of_the_page_carries_requests_through_a_move(
    embedded_assigner: EmbeddedAssigner, tmp_path: Path
) -> None:
    port = free_port()
    text = next(blocks(PAGE, "python")).replace("127.0.0.1:50051", embedded_assigner.address).replace("9000", str(port))
    with anyio.fail_after(200), router_process(text, tmp_path):
        async with pod(embedded_assigner.address, "a") as a:
            await a.wait_for(lambda one: len(one.partitions) == COUNT)
            async with await connected(port) as stream:
                answers = BufferedByteReceiveStream(stream)

                async def ask(number: int) -> str:
                    await stream.send(f"key-{number} {number}\n".encode())
                    owner, _, rest = (await answers.receive_until(b"\n", 1000)).decode().partition(" ")
                    assert rest == f"key-{number} {number}"
                    return owner

                assert {await ask(number) for number in range(50)} == {"a"}
                async with pod(embedded_assigner.address, "b") as b:
                    owners: list[str] = []
                    while len(b.partitions) < COUNT // 2 or "b" not in owners[-50:]:
                        owners.append(await ask(len(owners)))
                    assert set(owners[-50:]) == {"a", "b"}
                    await b.drain(60)
                    assert {await ask(number) for number in range(50)} == {"a"}
