"""A sender brings each request to the owner of its partition, and repeats only what certainly was not done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import anyio
import pytest
from aiohttp import web
from google.protobuf.wrappers_pb2 import StringValue
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.server import Server

from assigner.client import TopicPartition
from assigner.routing import MaybeServed, NotServed, Retries, Router, Target
from assigner.routing.aiohttp import RoutedSession
from assigner.routing.grpclib import RoutedChannels
from assigner.routing.headers import REFUSED
from assigner.testing.waiting import eventually
from tests.support.clients.recording_handler import Recorder
from tests.support.network.tcp_proxy import TcpProxy
from tests.support.routed_owners import (
    GROUP,
    METHOD,
    OWNERS,
    TOPIC,
    Owner,
    RoutedGroup,
    Sender,
    listening_socket,
    owns,
    routed_group,
)

QUICKLY = Retries(first_pause=0.01, longest_pause=0.05)
both = pytest.mark.parametrize("protocol", OWNERS)


class Targets:
    """A router that gives these targets, one after the other, and the last one from then on."""

    group = GROUP

    def __init__(self, *targets: Target) -> None:
        self._targets = list(targets)
        self.given = 0
        self.waits = 0

    def route(self, topic: str, key: bytes | str, *, size: int = 0) -> AbstractAsyncContextManager[Target]:
        self.given += 1
        return nullcontext(self._targets.pop(0) if len(self._targets) > 1 else self._targets[0])

    def pick(self, topic: str, *, size: int = 0) -> AbstractAsyncContextManager[Target]:
        return self.route(topic, "", size=size)

    async def newer_than(self, target: Target, *, within: float = 5.0) -> bool:
        self.waits += 1
        await anyio.sleep(within if len(self._targets) == 1 else 0)
        return True


def at(owner: Owner, /, *, later: int = 0, **changes: object) -> Target:
    """The owner's target, or one of so many epochs later."""
    epoch = owner.consumer.partitions[TopicPartition(TOPIC, 0)] + later
    fields: dict[str, object] = {"owner": owner.consumer.name, "address": owner.address, "epoch": epoch}
    return Target(topic=TOPIC, partition=0, **(fields | changes))  # type: ignore[arg-type]


@asynccontextmanager
async def owning(protocol: str) -> AsyncIterator[Owner]:
    async with routed_group(protocol) as group, group.owner("a") as owner:
        await owns(owner, 0)
        yield owner


def nobody() -> str:
    """An address that nobody listens at."""
    with listening_socket() as closed:
        return "{}:{}".format(*closed.getsockname())


# --- with a real router ---------------------------------------------------------------------------------------------


@both
async def test_requests_go_to_the_owners_of_their_keys_under_their_epochs(protocol: str) -> None:
    async with routed_group(protocol, partitions=8) as group, group.owner("a") as a, group.owner("b") as b:
        await eventually(lambda: len(a.consumer.partitions) == len(b.consumer.partitions) == 4, within=30)
        async with group.sender() as (router, sender):
            for number in range(40):
                assert await sender.say(f"key-{number}", str(number)) == f"{number} done"
            assert router.statistics().in_flight == 0
        assert len(a.work.begun) + len(b.work.begun) == 40
        for owner in (a, b):
            owned = {(tp.partition, epoch) for tp, epoch in owner.consumer.partitions.items()}
            assert {(one.partition, one.epoch) for one in owner.work.targets} <= owned


@both
async def test_a_request_is_in_flight_until_its_answer_was_read(protocol: str) -> None:
    async with routed_group(protocol) as group, group.owner("a") as owner:
        await owns(owner, 0)
        owner.work.may_end = anyio.Event()
        async with group.sender() as (router, sender), anyio.create_task_group() as tasks:
            tasks.start_soon(sender.say, "key")
            await eventually(lambda: owner.work.begun == ["x"])
            assert router.statistics().in_flight == 1
            owner.work.may_end.set()
            await eventually(lambda: router.statistics().in_flight == 0)


async def test_a_response_that_is_read_slowly_is_in_flight_to_the_end_of_its_block() -> None:
    async with routed_group("http") as group, group.owner("a") as owner:
        await owns(owner, 0)
        async with (
            Router(group.assigner.address, GROUP, "router-1") as router,
            RoutedSession(router) as session,
            session.request("PUT", TOPIC, "key", "/say", data="x") as response,
        ):
            assert await response.text() == "x done"
            assert router.statistics().in_flight == 1


@both
async def test_requests_follow_their_partition_to_the_next_owner_and_keep_their_order(protocol: str) -> None:
    async with (
        routed_group(protocol) as group,
        group.owner("a") as a,
        group.sender("router-1") as one,
        group.sender("router-2") as other,
    ):
        await owns(a, 0)
        sent = [0] * 4
        stop = anyio.Event()

        async def keep_sending(me: int) -> None:
            while not stop.is_set():
                _, sender = (one, other)[sent[me] % 2]
                text = f"{me}.{sent[me]}"
                assert await sender.say("key", text) == f"{text} done"
                sent[me] += 1

        async with anyio.create_task_group() as tasks:
            for me in range(len(sent)):
                tasks.start_soon(keep_sending, me)
            await eventually(lambda: len(a.work.ended) > 20)
            async with group.owner("b") as b:
                await a.consumer.drain(timeout=30)
                await eventually(lambda: len(b.work.ended) > 20, within=30)
                stop.set()
                await eventually(lambda: all(router.statistics().in_flight == 0 for router, _ in (one, other)))
        # Each once, and in its sender's order, over both owners.
        served = a.work.begun + b.work.begun
        for me, count in enumerate(sent):
            assert [text for text in served if text.startswith(f"{me}.")] == [
                f"{me}.{number}" for number in range(count)
            ]
        assert {one.epoch for one in a.work.targets} < {one.epoch for one in a.work.targets + b.work.targets}


# --- what is sent again ------------------------------------------------------------------------------------------


@both
async def test_a_stale_request_is_sent_to_the_next_owner_once_it_is_known(protocol: str) -> None:
    async with owning(protocol) as owner:
        router = Targets(at(owner, later=-1), at(owner, owner="gone"), at(owner))
        async with Sender(protocol, router, QUICKLY) as sender:
            assert await sender.say("key") == "x done"
        assert (router.given, router.waits) == (3, 2)
        assert owner.work.begun == ["x"]


@both
async def test_a_request_that_came_before_its_owner_was_ready_is_sent_again(protocol: str) -> None:
    handler, may_return = Recorder(), anyio.Event()
    handler.during["assigned"] = may_return.wait
    async with routed_group(protocol) as group, group.owner("a", handler, within=0.05) as owner:
        await eventually(lambda: len(handler.calls) == 1, within=30)
        epoch = int(handler.calls[0].rpartition("@")[2])
        router = Targets(Target(TOPIC, 0, "a", owner.address, epoch))
        async with Sender(protocol, router, QUICKLY) as sender, anyio.create_task_group() as tasks:
            tasks.start_soon(sender.say, "key")
            await eventually(lambda: router.given > 2)
            may_return.set()
        assert owner.work.begun == ["x"]


@both
async def test_a_request_that_could_not_be_connected_is_sent_again(protocol: str) -> None:
    async with owning(protocol) as owner:
        router = Targets(at(owner, address=nobody()), at(owner))
        async with Sender(protocol, router, QUICKLY) as sender:
            assert await sender.say("key") == "x done"
        assert router.given == 2


@both
async def test_a_request_that_no_owner_takes_ends_with_the_last_reason(protocol: str) -> None:
    async with owning(protocol) as owner:
        router = Targets(at(owner, later=-1))
        async with Sender(protocol, router, Retries(tries=3, first_pause=0.01)) as sender:
            with pytest.raises(NotServed, match="after 3 tries") as ended:
                await sender.say("key", idempotent=True)
        assert (ended.value.reason, ended.value.tries, router.given) == ("stale_epoch", 3, 3)
        assert not owner.work.begun


NO_ADDRESSES = [
    *("", "a", "a:b:c", "a:0", "a:99999", "a:" + 5_000 * "9", "[::1", "[zz]:80", "[::1]:80x"),
    *("a..b:80", "x" * 64 + ":80", "a b:80", "a\0b:80", "\udce9:80", "127.0.0.1:\u0663"),
    *("http://127.0.0.1:1", "u:p@127.0.0.1:1", "127.0.0.1:1/x", "127.0.0.1:1#x", "127.0.0.1:1?x=", "worker-1/4711"),
]


@both
@pytest.mark.parametrize("address", NO_ADDRESSES)
async def test_an_owner_without_an_address_is_named(protocol: str, address: str) -> None:
    async with Sender(protocol, Targets(Target(TOPIC, 0, "a", address, 1)), QUICKLY) as sender:
        with pytest.raises(NotServed, match=r"a has no address .*; give its AssignerConsumer an advertised_address"):
            await sender.say("key")


async def test_a_body_that_can_be_read_once_is_not_sent_twice() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"x"

    async with owning("http") as owner:
        router = Targets(at(owner, later=-1), at(owner))
        async with RoutedSession(router, retries=QUICKLY) as session:
            with pytest.raises(NotServed):
                async with session.request("POST", TOPIC, "key", "/say", data=body()):
                    pytest.fail("it was sent again")


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("body", [b"", b"half"])
async def test_a_refusal_counts_though_its_body_breaks_off_or_never_comes(body: bytes, hangs: bool) -> None:
    """The header says it all; the owner may have died right after it."""
    over, left = anyio.Event(), anyio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 421 Misdirected Request\r\nassigner-refused: stale_epoch\r\nContent-Length: 100\r\n\r\n"
        writer.write(head + body)
        await writer.drain()
        if hangs:
            await over.wait()
        writer.close()
        left.set()

    async with owning("http") as owner, await asyncio.start_server(refuse, sock=listening_socket()) as broken:
        address = "{}:{}".format(*broken.sockets[0].getsockname())
        router = Targets(at(owner, address=address), at(owner))
        async with Sender("http", router, QUICKLY) as sender:
            with anyio.fail_after(60):
                try:
                    assert await sender.say("key") == "x done"
                finally:
                    over.set()
        assert (router.given, owner.work.begun) == (2, ["x"])
        await left.wait()


# --- what is not sent again ----------------------------------------------------------------------------------------


class Deaf:
    """A server that reads requests and hangs up without an answer; the first of a connection may be answered."""

    def __init__(self, answers: int = 0) -> None:
        self.requests = 0
        self.address = ""
        self._answers = answers

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Deaf]:
        at = listening_socket()
        self.address = "{}:{}".format(*at.getsockname())
        server = await asyncio.start_server(self._connected, sock=at)
        try:
            yield self
        finally:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                await reader.readexactly(1)
                if self.requests > self._answers:
                    return
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


async def test_a_put_that_was_not_answered_is_not_repeated_not_even_by_aiohttp() -> None:
    async with Deaf(answers=1).serving() as deaf:
        router = Targets(Target(TOPIC, 0, "a", deaf.address, 1))
        async with Sender("http", router, QUICKLY) as sender:
            with pytest.raises(AssertionError):
                # Answered with something else than the owners of these tests say, which is all the same here.
                assert await sender.say("key") == "x done"
            # Over a connection that was used before, aiohttp sends a PUT again by itself.
            with pytest.raises(MaybeServed, match="may have been done"):
                await sender.say("key")
        assert (deaf.requests, router.given) == (2, 2)


async def test_an_idempotent_put_that_was_not_answered_is_repeated_in_a_try_of_its_own() -> None:
    async with Deaf().serving() as deaf:
        router = Targets(Target(TOPIC, 0, "a", deaf.address, 1))
        async with Sender("http", router, Retries(tries=3, first_pause=0.01)) as sender:
            with pytest.raises(MaybeServed, match="try 3"):
                await sender.say("key", idempotent=True)
        assert (deaf.requests, router.given) == (3, 3)


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_call_that_was_not_answered_is_repeated_only_if_it_is_idempotent(idempotent: bool) -> None:
    async with owning("grpc") as owner:
        owner.work.may_end = anyio.Event()
        proxy = TcpProxy(owner.address)
        await proxy.start()
        router = Targets(at(owner, address=proxy.endpoint))
        async with Sender("grpc", router, Retries(tries=2, first_pause=0.01)) as sender:
            outcomes: list[BaseException] = []

            async def call() -> None:
                with pytest.raises(MaybeServed) as ended:
                    await sender.say("key", idempotent=idempotent)
                outcomes.append(ended.value)
                task = asyncio.current_task()
                assert task is not None
                assert task.cancelling() == 0

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                for tries in range(1, 3 if idempotent else 2):
                    await eventually(lambda tries=tries: len(owner.work.begun) == tries)  # type: ignore[misc]
                    proxy.cut()
        await proxy.stop()
        assert len(outcomes) == 1
        assert router.given == (2 if idempotent else 1)


@both
async def test_what_a_handler_says_by_itself_is_its_answer_and_no_refusal(protocol: str) -> None:
    """421 and FAILED_PRECONDITION without the header that says that nothing was done."""
    at_ = listening_socket()
    router = Targets(Target(TOPIC, 0, "a", "{}:{}".format(*at_.getsockname()), 1))
    if protocol == "http":

        async def misdirected(_: web.Request) -> web.Response:
            return web.Response(status=421, text="mine")

        app = web.Application()
        app.router.add_put("/say", misdirected)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.SockSite(runner, at_).start()
        async with RoutedSession(router) as session, session.request("PUT", TOPIC, "k", "/say", data="x") as response:
            assert (response.status, await response.text()) == (421, "mine")
        await runner.cleanup()
    else:

        class Refusing:
            def __mapping__(self) -> dict[str, Handler]:
                async def refuse(_: object) -> None:
                    raise GRPCError(Status.FAILED_PRECONDITION, "mine")

                return {METHOD: Handler(refuse, Cardinality.UNARY_UNARY, StringValue, StringValue)}

        server = Server([Refusing()])
        await server.start(sock=at_)
        async with Sender("grpc", router, QUICKLY) as sender:
            with pytest.raises(GRPCError, match="mine"):
                await sender.say("key")
        server.close()
        await server.wait_closed()
    assert router.given == 1


async def test_a_try_of_several_calls_of_which_one_was_served_is_not_repeated() -> None:
    async with owning("grpc") as owner:
        router = Targets(at(owner))
        async with RoutedChannels(router, retries=QUICKLY) as channels:

            async def say_twice(channel: Channel) -> None:
                method = UnaryUnaryMethod(channel, METHOD, StringValue, StringValue)
                await method(StringValue(value="first"))
                await owner.consumer.close()
                await method(StringValue(value="second"))

            with pytest.raises(GRPCError, match="the gate of orders/0 is shut"):
                await channels.call(TOPIC, "key", say_twice, idempotent=True)
        assert router.given == 1
        assert owner.work.begun == ["first"]


async def test_a_caller_that_is_cancelled_as_its_connection_is_lost_is_cancelled() -> None:
    """grpclib wakes its caller by cancelling it, which is taken back; what others ask for is not."""
    async with owning("grpc") as owner, RoutedChannels(Targets(at(owner)), retries=QUICKLY) as channels:
        calls = 0

        async def lose(channel: Channel) -> None:
            nonlocal calls
            calls += 1
            await UnaryUnaryMethod(channel, METHOD, StringValue, StringValue)(StringValue(value="x"))
            task = asyncio.current_task()
            assert task is not None
            task.cancel("the connection is lost")
            task.cancel("the program's own")
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                raise StreamTerminatedError("Connection lost") from None

        task = asyncio.create_task(channels.call(TOPIC, "key", lose, idempotent=True))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert calls == 1


async def test_an_answer_that_copies_the_header_of_a_refusal_is_no_refusal() -> None:
    """As that of a handler that passes on what another owner said."""
    async with owning("http") as owner:
        owner.work.headers = {REFUSED: "stale_epoch"}
        router = Targets(at(owner))
        async with Sender("http", router, QUICKLY) as sender:
            assert await sender.say("key") == "x done"
        assert router.given == 1


# --- channels --------------------------------------------------------------------------------------------------------


async def test_no_more_channels_are_kept_than_are_in_use_or_allowed() -> None:
    async with routed_group("grpc") as group, group.owner("a") as owner, served_by_others(group, 3) as others:
        await owns(owner, 0)
        addresses = [owner.address, *others]
        dialed: list[Channel] = []

        def dial(address: object) -> Channel:
            host, _, port = str(address).partition(":")
            dialed.append(Channel(host, int(port)))
            return dialed[-1]

        router = Targets(*(at(owner, address=address) for address in addresses), at(owner))
        async with RoutedChannels(router, dial=dial, channels=2) as channels:

            async def say(channel: Channel) -> object:
                return await UnaryUnaryMethod(channel, METHOD, StringValue, StringValue)(StringValue(value="x"))

            for _ in range(4):
                await channels.call(TOPIC, "key", say)
            assert len(dialed) == 4
            assert [channel._protocol is None for channel in dialed] == [True, True, False, False]


async def test_a_channel_that_is_in_use_is_not_closed_for_another() -> None:
    async with routed_group("grpc") as group, group.owner("a") as owner, served_by_others(group, 1) as others:
        await owns(owner, 0)
        owner.work.may_end = anyio.Event()
        router = Targets(at(owner), *(at(owner, address=address) for address in others))
        async with RoutedChannels(router, channels=1) as channels, anyio.create_task_group() as tasks:
            replies: list[str] = []

            async def say() -> None:
                async def call(channel: Channel) -> StringValue:
                    method = UnaryUnaryMethod(channel, METHOD, StringValue, StringValue)
                    reply = await method(StringValue(value="x"))
                    assert reply is not None
                    return reply

                replies.append((await channels.call(TOPIC, "key", call)).value)

            tasks.start_soon(say)
            await eventually(lambda: owner.work.begun == ["x"])
            await say()
            owner.work.may_end.set()
        assert replies == ["x", "x done"]


@asynccontextmanager
async def served_by_others(group: RoutedGroup, count: int) -> AsyncIterator[list[str]]:
    """Servers that answer every call, whoever it is for."""

    class Echo:
        def __mapping__(self) -> dict[str, Handler]:
            async def say(stream: object) -> None:
                await stream.send_message(await stream.recv_message())  # type: ignore[attr-defined]

            return {METHOD: Handler(say, Cardinality.UNARY_UNARY, StringValue, StringValue)}

    servers, addresses = [], []
    for _ in range(count):
        at_ = listening_socket()
        addresses.append("{}:{}".format(*at_.getsockname()))
        servers.append(Server([Echo()]))
        await servers[-1].start(sock=at_)
    try:
        yield addresses
    finally:
        for server in servers:
            server.close()
            await server.wait_closed()
