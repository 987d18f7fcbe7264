"""Connections to owners that are cut at any moment: what a sender says of a request is true.

A request that was answered was done, once unless its caller calls it idempotent; of one that was not served nothing was
done; and one that may have been done was so at most once, with the same exception.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AbstractAsyncContextManager, nullcontext

import anyio
import pytest

from assigner.routing import MaybeServed, NotServed, Retries, Target
from assigner.testing.waiting import eventually
from tests.integration.routing.test_routed_senders import Targets, at, both, owning
from tests.support.network.tcp_proxy import TcpProxy, proxied
from tests.support.routed_owners import Owner, Sender

HASTY = Retries(tries=4, first_pause=0.001, longest_pause=0.01)
BATCHES, AT_ONCE = 8, 10


class Drawn(Targets):
    """A router that often gives a target that is stale."""

    def __init__(self, dice: random.Random, *targets: Target) -> None:
        super().__init__(*targets)
        self._dice = dice
        self._drawn = targets

    def route(self, topic: str, key: bytes | str, *, size: int = 0) -> AbstractAsyncContextManager[Target]:
        return nullcontext(self._dice.choice(self._drawn))

    async def newer_than(self, target: Target, *, within: float = 5.0) -> bool:
        return True


async def keep_cutting(proxy: TcpProxy, dice: random.Random) -> None:
    while True:
        for _ in range(dice.randrange(1, 40)):
            await asyncio.sleep(0)
        await asyncio.sleep(dice.choice((0.0, 0.005, 0.01)))
        proxy.cut()


class Requests:
    """What became of the requests, and how often each was begun at the owner."""

    def __init__(self, owner: Owner, sender: Sender) -> None:
        self._owner = owner
        self._sender = sender
        self.outcomes: dict[int, str] = {}

    async def send(self, number: int) -> None:
        try:
            assert await self._sender.say("key", str(number), idempotent=number % 3 == 0) == f"{number} done"
            self.outcomes[number] = "served"
        except NotServed:
            self.outcomes[number] = "not served"
        except MaybeServed:
            self.outcomes[number] = "maybe served"

    def check(self) -> None:
        begun = Counter(map(int, self._owner.work.begun))
        for number, outcome in self.outcomes.items():
            done, idempotent = begun[number], number % 3 == 0
            match outcome:
                case "served":
                    assert done >= 1 if idempotent else done == 1, (number, done)
                case "not served":
                    assert done == 0, (number, done)
                case _:
                    assert idempotent or done <= 1, (number, done)


@both
@pytest.mark.parametrize("seed", range(2))
async def test_what_a_sender_says_of_a_request_is_true_wherever_its_connection_is_cut(protocol: str, seed: int) -> None:
    dice = random.Random(seed)
    async with owning(protocol) as owner, proxied(owner.address) as proxy:
        good = at(owner, address=proxy.endpoint)
        router = Drawn(dice, good, good, at(owner, later=-1, address=proxy.endpoint))
        async with Sender(protocol, router, HASTY) as sender, anyio.create_task_group() as cutter:
            requests = Requests(owner, sender)
            cutter.start_soon(keep_cutting, proxy, dice)
            for batch in range(BATCHES):
                async with anyio.create_task_group() as together:
                    for number in range(batch * AT_ONCE, (batch + 1) * AT_ONCE):
                        together.start_soon(requests.send, number)
            cutter.cancel_scope.cancel()
        # What was sent may still be on its way through the owner's server.
        await eventually(lambda: len(owner.work.begun) == len(owner.work.ended))
        requests.check()
        assert {"served", "maybe served"} <= set(requests.outcomes.values())
