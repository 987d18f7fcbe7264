"""Decides whether a request that its owner did not serve is sent again, and waits until that makes sense.

A request is sent again if it was certainly not done: its owner refused it, or no connection was made. If the connection
was lost after the request was sent, nobody knows whether it was done; then it is sent again only if its caller said
that it is idempotent.

Not promised: that an idempotent request is done at most once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

import anyio
import msgspec

from assigner.client.channel import Address, parse_address
from assigner.errors import AssignerError, InvalidInput
from assigner.routing.admission import Remedy
from assigner.routing.handler import Target


class RequestRouter(Protocol):
    """What the senders of requests use of a `Router`."""

    @property
    def group(self) -> str: ...

    def route(self, topic: str, key: bytes | str, *, size: int = 0) -> AbstractAsyncContextManager[Target]: ...

    def pick(self, topic: str, *, size: int = 0) -> AbstractAsyncContextManager[Target]: ...

    async def newer_than(self, target: Target, *, within: float = ...) -> bool: ...


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and for how long, a request is sent again that no owner has accepted."""

    tries: int = 50
    within: float = 30.0
    """Seconds after its first try in which a request may be tried again. How long the stash may hold it back before a
    try is another limit, `StashLimits.age`."""
    first_pause: float = 0.05
    """Seconds before the second try, and twice as many before each further one. A newer route ends a pause."""
    longest_pause: float = 1.0

    def check(self) -> Retries:
        """Raise `InvalidInput` if a number allows no request or no pause."""
        if self.tries < 1 or self.within < 0 or not 0 < self.first_pause <= self.longest_pause:
            raise InvalidInput(f"{self} allows no try; tries must be 1 or more, pauses above 0 and the longest no less")
        return self


class Setback(msgspec.Struct, frozen=True):
    """Why a try did not end with an answer to the request."""

    reason: str
    """As in the header `assigner-refused`, or one of this library's own."""
    message: str
    remedy: Remedy = Remedy.LOOK_AGAIN
    maybe_done: bool = False
    """The request was sent, and what became of it is not known."""
    pause: float = 0.0
    """Seconds that the owner asks for."""


def address_of(target: Target) -> Address | Setback:
    """Where the owner is reached; a setback if what it advertised is no address."""
    try:
        return parse_address(target.address, default_port=None)
    except InvalidInput:
        return no_address(target, f"{target.address!r} is not host:port")


def no_address(target: Target, why: str) -> Setback:
    text = f"{target.owner} has no address ({why}); give its AssignerConsumer an advertised_address, host:port"
    return Setback("no_address", text, Remedy.NONE)


class NotServed(AssignerError):
    """No owner took the request, and nothing of it was done. It may be sent again."""

    def __init__(self, target: Target, setback: Setback, tries: int) -> None:
        where = f"{target.topic}/{target.partition}@{target.epoch} at {target.owner}"
        super().__init__(f"no owner served the request after {tries} tries, the last for {where}: {setback.message}")
        self.target = target
        self.reason = setback.reason
        self.tries = tries


class MaybeServed(AssignerError):
    """The request was sent, and no answer came: it may have been done or not. Send it again only if doing it twice is
    harmless."""

    def __init__(self, target: Target, setback: Setback, tries: int) -> None:
        where = f"{target.topic}/{target.partition}@{target.epoch} to {target.owner}"
        super().__init__(f"the request sent for {where} may have been done, try {tries}: {setback.message}")
        self.target = target
        self.reason = setback.reason
        self.tries = tries


class Tries:
    """The tries of one request."""

    def __init__(
        self,
        router: RequestRouter,
        retries: Retries,
        topic: str,
        key: bytes | str | None,
        *,
        size: int,
        idempotent: bool,
    ) -> None:
        """`key`: None for a request without one, which any partition may serve."""
        self._router = router
        self._topic = topic
        self._key = key
        self._size = size
        self._retries = retries
        self._idempotent = idempotent
        self._until = anyio.current_time() + retries.within
        self._pause = retries.first_pause
        self._maybe_done: Target | None = None
        """The target of a try that may have been done."""
        self.count = 0

    @asynccontextmanager
    async def next(self) -> AsyncIterator[Target]:
        """Begin the next try: a block with its target, in which the request counts as in flight. Raises what
        `Router.route` raises, or `MaybeServed` if an earlier try may have been done."""
        async with AsyncExitStack() as routed:
            try:
                target = await routed.enter_async_context(self._routed())
            except AssignerError as error:
                if self._maybe_done is None:
                    raise
                raise MaybeServed(self._maybe_done, Setback("not_routed", str(error)), self.count) from error
            yield target

    def _routed(self) -> AbstractAsyncContextManager[Target]:
        if self._key is None:
            return self._router.pick(self._topic, size=self._size)
        return self._router.route(self._topic, self._key, size=self._size)

    async def after(self, target: Target, setback: Setback, *, repeatable: bool = True) -> None:
        """Wait until another try makes sense. Raises `NotServed` or `MaybeServed` if there is not to be one.
        `repeatable`: False if the request can't be sent again, because its body is used up. Call this when the request
        is no longer in flight, so that its partition can move meanwhile."""
        self.count += 1
        if setback.maybe_done:
            self._maybe_done = target
        left = self._until - anyio.current_time()
        goes_on = repeatable and setback.remedy is not Remedy.NONE and self.count < self._retries.tries and left > 0
        if not goes_on or (setback.maybe_done and not self._idempotent):
            raise (NotServed if self._maybe_done is None else MaybeServed)(target, setback, self.count)
        # A newer route ends each pause.
        pause = min(max(self._pause, setback.pause), self._retries.longest_pause, left)
        self._pause = min(2 * self._pause, self._retries.longest_pause)
        await self._router.newer_than(target, within=pause)
