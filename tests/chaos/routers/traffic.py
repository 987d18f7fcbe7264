"""Programs that send keyed requests all the while, each key through one router as long as that router is there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from assigner.clock import Clock
from assigner.core.routing.partitioner import Partitioner
from assigner.model.keys import TopicPartition
from tests.chaos.routers.requests import Request

if TYPE_CHECKING:
    from tests.chaos.routers.router import ChaosRouter

KEYS = 12
ENDED_WELL = "served"


class Traffic:
    def __init__(
        self, dice: random.Random, clock: Clock, routers: Callable[[], list[ChaosRouter]], partitions: int
    ) -> None:
        """`routers`: those that take requests now."""
        self.requests: list[Request] = []
        self.pause = (0.02, 0.3)
        """Seconds between two requests, at least and at most."""
        self.is_on = True
        self.calm = False
        """Requests are quick."""
        self._dice = dice
        self._clock = clock
        self._routers = routers
        self._keys: dict[str, TopicPartition] = {}
        for number in range(KEYS):
            key = f"key-{number}"
            self._keys[key] = TopicPartition("t", Partitioner.MURMUR2.partition_of(key.encode(), partitions))
        self._delayed: list[Request] = []
        """They have no router to go by."""
        self._through: dict[str, ChaosRouter] = {}
        self._seqs: Counter[str] = Counter()

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._dice.uniform(*self.pause))
            self._send_delayed()
            for _ in range(self._dice.choice((1, 1, 1, 4)) if self.is_on else 0):
                self._send(self._dice.choice(list(self._keys)))

    def _send(self, key: str) -> None:
        router = self._router_of(key)
        if router is None:
            return
        takes = 0.05 if self.calm else self._dice.choice((0.0, 0.05, 0.05, 0.6))
        self._seqs[key] += 1
        request = Request(len(self.requests), key, self._seqs[key], self._keys[key], takes, self._clock.now())
        self.requests.append(request)
        router.accept(request)

    def _router_of(self, key: str) -> ChaosRouter | None:
        routers = self._routers()
        if self._through.get(key) not in routers:
            self._through.pop(key, None)
            if routers:
                self._through[key] = self._dice.choice(routers)
        return self._through.get(key)

    def send_again(self, request: Request) -> None:
        """Its router did not send it: another one may."""
        request.retried += 1
        self._delayed.append(request)
        self._send_delayed()

    def _send_delayed(self) -> None:
        routers = self._routers()
        while routers and self._delayed:
            self._dice.choice(routers).accept(self._delayed.pop(0))

    # --- what became of them -----------------------------------------------------------------------------------------

    def on_their_way(self, began_before: float = float("inf")) -> list[Request]:
        return [request for request in self.requests if not request.outcome and request.began < began_before]

    def outcomes(self, since: int = 0) -> Counter[str]:
        """How requests ended, from that one on."""
        return Counter(request.outcome.split(":")[0] for request in self.requests[since:] if request.outcome)
