"""Provides a Store that injects faults into any other store.

Faults are injected for chosen calls and a chosen number of times, in the order they were injected; the first one that
matches a call applies to it. All faults are within the contract: a late effect or answer, a refusal, an unknown outcome
with or without an effect, a hang until the call's deadline, a watch that ends or is compacted. The store never returns
wrong data.

| fault | effect | answer |
|---|---|---|
| `Delay(s)` | after s seconds | with the effect |
| `AnswerAfter(s)` | at once | s seconds after the effect |
| `Refuse()` | none | `StoreUnavailable` at once |
| `LoseAnswer(applied)` | at once or never | `OutcomeUnknown` at once |
| `EffectAfter(e, s)` | s seconds after the call | `OutcomeUnknown`, e seconds after the call |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, assert_never

import anyio
import msgspec

from assigner.errors import AssignerError, Compacted, OutcomeUnknown, StoreUnavailable, WatchEnded
from assigner.store import (
    NO_LEASE,
    Compare,
    Deleted,
    GetResult,
    Granted,
    KeepAliveResult,
    Operation,
    Page,
    RemainingResult,
    Store,
    TransactionResult,
    WatchItem,
    Written,
)

T = TypeVar("T")
Kind = Literal["get", "list", "put", "delete", "transact", "grant", "keep_alive", "revoke", "remaining", "watch"]
READS: frozenset[Kind] = frozenset(("get", "list", "remaining", "watch"))
WRITES: frozenset[Kind] = frozenset(("put", "delete", "transact", "grant", "keep_alive", "revoke"))
ALL = READS | WRITES


class Delay(msgspec.Struct, frozen=True):
    """The call takes this many seconds longer, and takes effect at the end of the delay."""

    seconds: float


class Refuse(msgspec.Struct, frozen=True):
    """The call has no effect and raises `StoreUnavailable`."""

    reason: str = "refused on request"


class LoseAnswer(msgspec.Struct, frozen=True):
    """The call raises `OutcomeUnknown`, after it took effect or without."""

    applied: bool = True


class EffectAfter(msgspec.Struct, frozen=True):
    """The call raises `OutcomeUnknown` and takes effect after that. Both times are seconds since the call began.

    This happens to a request that is still in flight when its deadline passes. It takes effect even if the caller is
    gone, and by then its compares or an expired lease may reject it, like any late request.
    """

    error_after: float = 0.0
    effect_after: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.error_after <= self.effect_after:
            raise ValueError(
                f"EffectAfter has its error after {self.error_after:g} s and its effect after {self.effect_after:g} s; "
                "the effect comes last: use Delay or AnswerAfter for one that comes first"
            )


class AnswerAfter(msgspec.Struct, frozen=True):
    """The call takes effect at once, and its answer or error comes this many seconds later."""

    seconds: float


Fault = Delay | Refuse | LoseAnswer | EffectAfter | AnswerAfter
WRITES_ONLY = LoseAnswer | EffectAfter
"""Faults that leave the outcome unknown; reads have no outcome."""


class Injected:
    """An injected fault. `hits` counts the calls it applied to; `remove` ends it."""

    def __init__(
        self, fault: Fault, kinds: Collection[Kind], times: int | None, where: Callable[..., bool] | None
    ) -> None:
        self.fault = fault
        self.hits = 0
        self._kinds = frozenset(kinds)
        self._times = times
        self._where = where

    def remove(self) -> None:
        self._times = self.hits

    @property
    def spent(self) -> bool:
        return self._times is not None and self.hits >= self._times

    def takes(self, kind: Kind, arguments: tuple[Any, ...]) -> bool:
        fits = not self.spent and kind in self._kinds and (self._where is None or self._where(kind, *arguments))
        self.hits += fits
        return fits


class FaultyStore(Store):
    def __init__(self, inner: Store, *, deadline: float = 5.0) -> None:
        """`deadline`: seconds after which a call on a frozen store fails."""
        self.inner = inner
        self.limits = inner.limits
        self._deadline = deadline
        self._injected: list[Injected] = []
        self._thawed = anyio.Event()
        self._thawed.set()
        self._watches: dict[_FaultyWatch, None] = {}
        self._late: set[asyncio.Task[None]] = set()

    # --- injecting faults -----------------------------------------------------------------------------------------

    def inject(
        self,
        fault: Fault,
        *,
        kinds: Collection[Kind] = ALL,
        times: int | None = 1,
        where: Callable[..., bool] | None = None,
    ) -> Injected:
        """Inject the fault into the next `times` calls (None: all) of these kinds. `where(kind, *arguments)` selects
        calls; faults that leave the outcome unknown are for writes only."""
        if isinstance(fault, WRITES_ONLY):
            kinds = WRITES.intersection(kinds)
        injected = Injected(fault, kinds, times, where)
        self._injected.append(injected)
        return injected

    @property
    def late_effects(self) -> int:
        """Calls that have failed for their callers (`EffectAfter`) and have yet to take effect."""
        return len(self._late)

    def heal(self) -> None:
        """Remove all faults and thaw. Pending late effects still happen: a request in flight can't be recalled."""
        self._injected.clear()
        self.thaw()

    def freeze(self) -> None:
        """Hang: no call is answered and no watch delivers until `thaw`. A call that reaches its deadline meanwhile has
        no effect, but its writer can't know that."""
        if self._thawed.is_set():
            self._thawed = anyio.Event()

    def thaw(self) -> None:
        self._thawed.set()

    def end_watches(self, reason: str = "ended on request") -> int:
        """Make every open watch raise `WatchEnded`. Returns how many there were."""
        return self._break_watches(WatchEnded(reason))

    def compact_watches(self, revision: int) -> int:
        """Make every open watch raise `Compacted`, as if it had lagged behind that revision."""
        return self._break_watches(Compacted(revision))

    @property
    def open_watches(self) -> int:
        return len(self._watches)

    def _break_watches(self, error: Exception) -> int:
        broken = [watch for watch in self._watches if watch.fail(error)]
        return len(broken)

    # --- the store -------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> GetResult:
        return await self._call("get", (key,), lambda: self.inner.get(key))

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000, revision: int = 0) -> Page:
        return await self._call(
            "list",
            (prefix,),
            lambda: self.inner.list(prefix, after=after, limit=limit, revision=revision),
        )

    async def put(self, key: str, value: bytes, *, lease: int = NO_LEASE) -> Written:
        return await self._call("put", (key, value), lambda: self.inner.put(key, value, lease=lease))

    async def delete(self, key: str) -> Deleted:
        return await self._call("delete", (key,), lambda: self.inner.delete(key))

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        return await self._call(
            "transact",
            (compares, operations),
            lambda: self.inner.transact(compares, operations, otherwise=otherwise),
        )

    async def grant(self, ttl: float) -> Granted:
        return await self._call("grant", (ttl,), lambda: self.inner.grant(ttl))

    async def keep_alive(self, lease: int) -> KeepAliveResult:
        return await self._call("keep_alive", (lease,), lambda: self.inner.keep_alive(lease))

    async def revoke(self, lease: int) -> None:
        await self._call("revoke", (lease,), lambda: self.inner.revoke(lease))

    async def remaining(self, lease: int) -> RemainingResult:
        return await self._call("remaining", (lease,), lambda: self.inner.remaining(lease))

    def watch(self, prefix: str, *, start_revision: int) -> AbstractAsyncContextManager[AsyncIterator[WatchItem]]:
        return _FaultyWatch(self, prefix, start_revision)

    def restarts(self) -> Mapping[str, int]:
        return self.inner.restarts()

    def problems(self) -> Sequence[str]:
        return self.inner.problems()

    async def close(self) -> None:
        """Close the store. Late effects that have not happened yet are dropped."""
        late = list(self._late)
        # Before the thaw, or the calls that wait for it would take effect after all.
        for task in late:
            task.cancel()
        self.heal()
        await asyncio.gather(*late, return_exceptions=True)
        await self.inner.close()

    async def _call(self, kind: Kind, arguments: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        await self.wait_thawed(kind)
        fault = self.take(kind, arguments)
        match fault:
            case None:
                pass
            case Delay(seconds=seconds):
                await anyio.sleep(seconds)
                await self.wait_thawed(kind)
            case Refuse(reason=reason):
                raise StoreUnavailable(f"{kind}: {reason}")
            case LoseAnswer(applied=applied):
                if applied:
                    await call()
                raise OutcomeUnknown(f"{kind}: the answer was lost on request")
            case EffectAfter(error_after=error_after, effect_after=effect_after):
                self._apply_later(effect_after, call)
                await anyio.sleep(error_after)
                raise OutcomeUnknown(f"{kind}: no answer within {error_after:g} s")
            case AnswerAfter(seconds=seconds):
                try:
                    return await call()
                finally:
                    await anyio.sleep(seconds)
                    await self.wait_thawed(kind)
            case _:
                assert_never(fault)
        return await call()

    def _apply_later(self, seconds: float, call: Callable[[], Awaitable[Any]]) -> None:
        """Let the call take effect after these seconds, whether or not its caller still waits."""

        async def act() -> None:
            await anyio.sleep(seconds)
            await self.wait_thawed_for_ever()
            # There is no caller left to get the error.
            with suppress(AssignerError):
                await call()

        task = asyncio.create_task(act(), name="late effect")
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def take(self, kind: Kind, arguments: tuple[Any, ...]) -> Fault | None:
        taken = next((injected for injected in self._injected if injected.takes(kind, arguments)), None)
        self._injected = [injected for injected in self._injected if not injected.spent]
        return taken.fault if taken else None

    async def wait_thawed(self, kind: Kind) -> None:
        with anyio.move_on_after(self._deadline) as scope:
            await self._thawed.wait()
        if scope.cancelled_caught:
            if kind in WRITES:
                raise OutcomeUnknown(f"{kind}: no answer within {self._deadline:g} s")
            raise StoreUnavailable(f"{kind}: no answer within {self._deadline:g} s")

    async def wait_thawed_for_ever(self) -> None:
        while not self._thawed.is_set():
            await self._thawed.wait()

    def opened(self, watch: _FaultyWatch) -> None:
        self._watches[watch] = None

    def closed(self, watch: _FaultyWatch) -> None:
        self._watches.pop(watch, None)


class _FaultyWatch(AsyncIterator[WatchItem]):
    """A watch that can be ended from outside, and delivers nothing while its store is frozen."""

    def __init__(self, store: FaultyStore, prefix: str, start_revision: int) -> None:
        self._store = store
        self._prefix = prefix
        self._context = store.inner.watch(prefix, start_revision=start_revision)
        self._items: AsyncIterator[WatchItem] | None = None
        self._error: Exception | None = None
        self._broken = asyncio.Event()
        self._next: asyncio.Task[WatchItem] | None = None
        """Kept over a cancelled read, so that the inner watch is never interrupted while it takes an item."""

    def fail(self, error: Exception) -> bool:
        if self._broken.is_set():
            return False
        self._error = error
        self._broken.set()
        return True

    async def __aenter__(self) -> Self:
        fault = self._store.take("watch", (self._prefix,))
        self._items = await self._context.__aenter__()
        self._store.opened(self)
        if isinstance(fault, Refuse | WRITES_ONLY):
            self.fail(WatchEnded(f"watch of {self._prefix!r}: refused on request"))
        elif isinstance(fault, Delay | AnswerAfter):
            await anyio.sleep(fault.seconds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.closed(self)
        with anyio.CancelScope(shield=True):
            await _drop(self._next)
            await self._context.__aexit__(kind, error, trace)

    async def __anext__(self) -> WatchItem:
        assert self._items is not None, "enter the watch first"
        await self._store.wait_thawed_for_ever()
        if self._next is None:
            self._next = asyncio.create_task(_read(self._items), name=f"faulty watch of {self._prefix}")
        broken = asyncio.create_task(self._broken.wait(), name=f"faulty watch of {self._prefix}")
        try:
            await asyncio.wait((self._next, broken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            broken.cancel()
        if self._error is not None:
            raise self._error
        # The store was frozen while it waited: the item is held back until the thaw.
        await self._store.wait_thawed_for_ever()
        item = self._next.result()
        self._next = None
        return item


async def _read(items: AsyncIterator[WatchItem]) -> WatchItem:
    return await anext(items)


async def _drop(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        task.cancel()
        # The task is not awaited, so its exception is read here and ignored.
        await asyncio.gather(task, return_exceptions=True)
