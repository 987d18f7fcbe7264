"""The process in which clients of the upstream protocol run: grpcio, with stubs from `resources/upstream.proto`.

Driven by lines of JSON on standard input, reporting in lines of JSON on standard output. Knows nothing of our code.
Like the real client it answers a warm and a release by itself, takes every error of these answers for fatal, and does
not reconnect.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

import grpc
import grpc.aio


class Consumer:
    def __init__(self, stubs: Any, messages: Any, order: dict[str, Any]) -> None:
        self.messages = messages
        self.name = order["name"]
        self.topic = order["topic"]
        self.answers = order["answers"]
        self.warm_delay = order["warm_delay"]
        # Consumers are separate processes in the real world, so they do not share a connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(order["address"], options)
        self.stub = stubs.KafkaAssignerStub(self.channel)
        self.chores: set[asyncio.Task[None]] = set()
        self.call: Any = None

    def report(self, event: str, **details: Any) -> None:
        say(name=self.name, event=event, **details)

    async def run(self) -> None:
        self.call = self.stub.Register(self.messages.RegisterRequest(consumer_name=self.name, topic=self.topic))
        try:
            async for command in self.call:
                self.take(command)
            self.report("end", status="OK", text="")
        except grpc.aio.AioRpcError as error:
            self.report("end", status=error.code().name, text=error.details())
        except asyncio.CancelledError:
            self.report("end", status="CANCELLED", text="")
        finally:
            for chore in self.chores:
                chore.cancel()

    def take(self, command: Any) -> None:
        match command.WhichOneof("command"):
            case "assignment":
                update = command.assignment
                self.report("assignment", assigned=places(update.assigned), unassigned=places(update.unassigned))
            case "warm":
                tp = command.warm.partition
                self.report("warm", partition=[tp.topic, tp.partition], owner=command.warm.current_owner)
                self.chore(self.warm(tp))
            case "release":
                tp = command.release.partition
                self.report("release", partition=[tp.topic, tp.partition], owner=command.release.new_owner)
                self.chore(self.release(tp))
            case unknown:
                self.report("unknown", command=unknown)

    def chore(self, work: Any) -> None:
        if self.answers:
            task = asyncio.get_running_loop().create_task(work)
            self.chores.add(task)
            task.add_done_callback(self.chores.discard)

    async def warm(self, tp: Any) -> None:
        await asyncio.sleep(self.warm_delay)
        await self.answer("PartitionReady", tp)

    async def release(self, tp: Any) -> None:
        await self.answer("PartitionReleased", tp)

    async def answer(self, method: str, tp: Any) -> None:
        try:
            await self.send(method, tp)
        except grpc.aio.AioRpcError as error:
            self.report("fatal", method=method, status=error.code().name, text=error.details())
            self.call.cancel()

    async def send(self, method: str, tp: Any) -> None:
        request = getattr(self.messages, f"{method}Request")(consumer_name=self.name)
        if tp is not None:
            request.partition.CopyFrom(self.messages.TopicPartition(topic=tp.topic, partition=tp.partition))
        await getattr(self.stub, method)(request, timeout=30)

    async def deregister(self) -> str:
        reply = await self.stub.Deregister(self.messages.DeregisterRequest(consumer_name=self.name), timeout=30)
        return str(self.messages.DeregisterAction.Name(reply.action))


def places(listed: Any) -> list[list[Any]]:
    return [[tp.topic, tp.partition] for tp in listed]


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


class Process:
    def __init__(self, stubs: Any, messages: Any) -> None:
        self.stubs = stubs
        self.messages = messages
        self.consumers: dict[str, Consumer] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def obey(self, order: dict[str, Any]) -> None:
        try:
            say(reply=order["id"], result=await self.do(order))
        except grpc.aio.AioRpcError as error:
            say(reply=order["id"], status=error.code().name, text=error.details())

    async def do(self, order: dict[str, Any]) -> Any:
        name = order["name"]
        match order["do"]:
            case "register":
                self.consumers[name] = Consumer(self.stubs, self.messages, order)
                self.tasks[name] = asyncio.get_running_loop().create_task(self.consumers[name].run())
            case "drop":
                self.tasks[name].cancel()
                await asyncio.wait([self.tasks[name]])
                await self.consumers[name].channel.close()
            case "deregister":
                return await self.consumers[name].deregister()
            case "PartitionReady" | "PartitionReleased" as method:
                place = order["partition"]
                tp = self.messages.TopicPartition(topic=place[0], partition=place[1]) if place else None
                await self.consumers[name].send(method, tp)
        return None


async def main(folder: str) -> None:
    sys.path.insert(0, folder)
    process = Process(import_module("upstream_pb2_grpc"), import_module("upstream_pb2"))
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    say(ready=True)
    orders = set()
    while line := await reader.readline():
        task = loop.create_task(process.obey(json.loads(line)))
        orders.add(task)
        task.add_done_callback(orders.discard)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
