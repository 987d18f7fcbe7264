"""Provides asyncio primitives that the standard library and anyio lack. None of them knows the service.

- `wakeup`: an event that can be set repeatedly, without a lost wake-up.
- `idle_workers`: wakes the workers that share a queue one at a time.
- `waiters`: waits for a number that only grows, such as a revision.
- `backoff`: exponential backoff with deterministic jitter, so that a run can be repeated.
- `supervision`: restarts a loop that failed, and reports one that keeps failing.
- `shutdown`: work that is finished although its caller is cancelled, within a bound.

The package imports `api` and what is below it, though it needs little more than `logs` and `errors`; backends and the
client use it too. All of it belongs to one event loop: only `Wakeup.notify_from_any_thread` may be called from another
thread.
"""
