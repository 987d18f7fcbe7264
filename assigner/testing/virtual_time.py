"""Provides an event loop with virtual time: when nothing is ready, it jumps to the next timer instead of waiting.

A test of an hour of leases and deadlines takes milliseconds and is deterministic. `loop.time()` stands still while
callbacks run, so `assigner.clock.LoopClock` and `anyio.sleep` agree with it to the last digit.

The loop never jumps over the outside world. While a socket is registered, an executor call or `anyio.to_thread` call is
running, or a block of `outside()` is open, it waits in real time, and virtual time follows the real one, what callbacks
take included: a test that talks to a real server on this loop simply runs at the server's pace. `sockets="local"` says
that both ends of every socket are in this process: then silence for `settle` real seconds means that nothing is in
flight, and it jumps.

Not promised: a jump for a task that spins on `sleep(0)` (time stands still while anything is ready; sleep for a while
instead), and detection of work that uses neither a socket nor an executor. Other threads, subprocesses without pipes
and `anyio.to_thread` with a custom limiter need `with loop.outside():`.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import anyio.to_thread

T = TypeVar("T")
SELF_PIPE = 1
"""The loop's own registration, by which other threads wake it."""


class Deadlock(AssertionError):
    """No task can become ready: every task waits for another one, or only timers rearm each other."""


class _JumpingSelector(selectors.BaseSelector):
    """A selector that asks its loop what to do when it would have to wait."""

    def __init__(self) -> None:
        self.real = selectors.DefaultSelector()
        self.wait: Callable[[float | None], list[tuple[selectors.SelectorKey, int]]] | None = None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self.real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self.real.select(0)
        if ready or (timeout is not None and timeout <= 0) or self.wait is None:
            return ready
        return self.wait(timeout)

    def get_map(self) -> Any:
        return self.real.get_map()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self.real.get_key(fileobj)

    def close(self) -> None:
        self.real.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(
        self,
        *,
        start: float = 1000.0,
        horizon: float = 7 * 86_400.0,
        sockets: Literal["wait", "local"] = "wait",
        settle: float = 0.002,
    ) -> None:
        """`horizon`: virtual seconds after which the loop raises `Deadlock`, because timers that only rearm each other
        would run for ever. `sockets`, `settle`: see the module's docstring."""
        self._now = start
        self._end = start + horizon
        self._local_sockets = sockets == "local"
        self._settle = settle
        self._outside = 0
        self._waited_until: float | None = None
        """Real time at the end of the last wait in real time, unless it jumped since."""
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.wait = self._wait
        self.jumps = 0

    def time(self) -> float:
        return self._now

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Wait in real time while the context is open, because something outside the loop is awaited."""
        self._outside += 1
        try:
            yield
        finally:
            self._outside -= 1

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self._outside += 1
        future.add_done_callback(self._executor_call_ended)
        return future

    def _executor_call_ended(self, _: asyncio.Future[Any]) -> None:
        self._outside -= 1

    async def shutdown_default_executor(self, *args: Any) -> None:
        with self.outside():
            await super().shutdown_default_executor(*args)

    # --- what happens instead of waiting ---------------------------------------------------------------------------

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._outside or self._threads_busy():
            return self._wait_real(timeout)
        if len(self._jumping.real.get_map()) > SELF_PIPE:
            if not self._local_sockets:
                return self._wait_real(timeout)
            if ready := self._jumping.real.select(self._settle):
                return ready
        if timeout is None:
            raise Deadlock(f"nothing is ready and no timer is set; waiting: {self._waiting()}")
        self._jump(timeout)
        return []

    def _wait_real(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        began = time.monotonic()
        if self._waited_until is not None:
            # What callbacks took, or the machine gave to others: the server at the other end has aged by it.
            behind, began = began - self._waited_until, self._waited_until
            timeout = None if timeout is None else max(0.0, timeout - behind)
        ready = self._jumping.real.select(timeout)
        self._waited_until = time.monotonic()
        self._now += self._waited_until - began
        return ready

    def _jump(self, timeout: float) -> None:
        self.jumps += 1
        self._waited_until = None
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        # The timer's own value, because now + (when - now) may differ from it in the last digit.
        self._now = min(scheduled[0].when(), self._now + timeout + 1e-6) if scheduled else self._now + timeout
        if self._now > self._end:
            raise Deadlock(f"{self._end:.0f} virtual seconds passed; timers go round without an end: {self._waiting()}")

    def _threads_busy(self) -> bool:
        return anyio.to_thread.current_default_thread_limiter().borrowed_tokens > 0

    def _waiting(self) -> str:
        tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
        return "; ".join(_where(task) for task in tasks[:20]) or "no task"


def _where(task: asyncio.Task[Any]) -> str:
    """The chain of coroutines a task is suspended in, outermost first."""
    chain = []
    step: Any = task.get_coro()
    while (frame := getattr(step, "cr_frame", None)) is not None:
        chain.append(f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})")
        step = step.cr_await
    return f"{task.get_name()}: {' > '.join(chain) or 'not started'}"


def run(main: Callable[[], Awaitable[T]], **options: Any) -> T:
    """Run `main` in virtual time to its end, for programs and for property tests that start many loops."""

    async def entry() -> T:
        return await main()

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(**options)) as runner:
        return runner.run(entry())


def current() -> VirtualTimeLoop:
    """The running loop, which must be a virtual one."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise RuntimeError("this test needs virtual time; mark it with @pytest.mark.virtual_time")
    return loop
