"""A request is sent again where it certainly was not done, or where its caller says that twice is harmless."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext

import anyio
import pytest

from assigner.errors import InvalidInput
from assigner.routing import MaybeServed, NotServed, Retries, StashBound, StashOverflow, Target, TopicPartition
from assigner.routing.admission import Remedy
from assigner.routing.retries import Setback, Tries

pytestmark = pytest.mark.virtual_time

TARGET = Target("orders", 3, "worker-1", "h:1", 7)
REFUSED = Setback("stale_epoch", "epoch 7 is over")
LOST = Setback("connection_lost", "reset", maybe_done=True)


class Routes:
    """A router that hears of a newer route after a while."""

    group = "billing"

    def __init__(self, newer_after: float = float("inf")) -> None:
        self.newer_after = newer_after
        self.waits: list[float] = []
        self.asked: list[tuple[str, object, int]] = []

    def route(self, topic: str, key: bytes | str, *, size: int = 0) -> AbstractAsyncContextManager[Target]:
        self.asked.append((topic, key, size))
        return nullcontext(TARGET)

    def pick(self, topic: str, *, size: int = 0) -> AbstractAsyncContextManager[Target]:
        self.asked.append((topic, None, size))
        return nullcontext(TARGET)

    async def newer_than(self, target: Target, *, within: float = 5.0) -> bool:
        self.waits.append(within)
        await anyio.sleep(min(within, self.newer_after))
        return self.newer_after <= within


def tries(routes: Routes, *, idempotent: bool = False, key: bytes | None = b"k", **retries: float) -> Tries:
    return Tries(routes, Retries(**retries), "orders", key, size=9, idempotent=idempotent)  # type: ignore[arg-type]


async def test_a_refused_request_is_tried_again_with_longer_and_longer_pauses_until_its_time_is_over() -> None:
    routes = Routes()
    one = tries(routes, within=3.0, first_pause=0.1, longest_pause=1.0)
    began = anyio.current_time()
    for _ in range(6):
        await one.after(TARGET, REFUSED)
    with pytest.raises(NotServed, match="epoch 7 is over") as ended:
        await one.after(TARGET, REFUSED)
    assert anyio.current_time() - began == pytest.approx(3.0)
    assert routes.waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 0.5])
    assert (ended.value.reason, ended.value.tries, ended.value.target) == ("stale_epoch", 7, TARGET)


async def test_a_newer_route_ends_the_pause() -> None:
    began = anyio.current_time()
    await tries(Routes(newer_after=0.01), first_pause=0.5).after(TARGET, REFUSED)
    assert anyio.current_time() - began == pytest.approx(0.01)


async def test_a_request_is_tried_no_more_often_than_it_may() -> None:
    one = tries(Routes(), tries=3)
    for _ in range(2):
        await one.after(TARGET, REFUSED)
    with pytest.raises(NotServed, match="after 3 tries"):
        await one.after(TARGET, REFUSED)


async def test_a_request_that_may_have_been_done_is_not_sent_again() -> None:
    with pytest.raises(MaybeServed, match="may have been done"):
        await tries(Routes()).after(TARGET, LOST)


async def test_an_idempotent_request_is_sent_again_and_what_it_did_stays_unknown_to_the_end() -> None:
    one = tries(Routes(), idempotent=True, tries=3)
    await one.after(TARGET, LOST)
    await one.after(TARGET, REFUSED)
    with pytest.raises(MaybeServed):
        await one.after(TARGET, REFUSED)


@pytest.mark.parametrize(
    ("setback", "repeatable"), [(Setback("malformed_target", "wrong", Remedy.NONE), True), (REFUSED, False)]
)
async def test_what_a_repetition_would_not_help_fails_at_once(setback: Setback, repeatable: bool) -> None:
    routes = Routes()
    with pytest.raises(NotServed):
        await tries(routes).after(TARGET, setback, repeatable=repeatable)
    assert not routes.waits


async def test_an_owner_may_ask_for_a_longer_pause_up_to_the_longest() -> None:
    routes = Routes()
    one = tries(routes, first_pause=0.1, longest_pause=2.0)
    for pause in (1.0, 60.0):
        await one.after(TARGET, Setback("preparing", "soon", Remedy.COME_AGAIN, pause=pause))
    assert routes.waits == pytest.approx([1.0, 2.0])


async def test_a_request_without_a_key_goes_to_any_partition() -> None:
    routes = Routes()
    for key in (b"k", None):
        async with tries(routes, key=key).next() as target:
            assert target == TARGET
    assert routes.asked == [("orders", b"k", 9), ("orders", None, 9)]


class Full(Routes):
    """A router with no room for another request."""

    def route(self, topic: str, key: bytes | str, *, size: int = 0) -> AbstractAsyncContextManager[Target]:
        raise StashOverflow(TopicPartition("orders", 3), StashBound.REQUESTS, 1)


async def test_a_request_that_finds_no_room_was_not_sent_unless_an_earlier_try_was() -> None:
    one = tries(Full(), idempotent=True)
    await one.after(TARGET, REFUSED)
    with pytest.raises(StashOverflow):
        await anext(targets_of(one))
    await one.after(TARGET, LOST)
    with pytest.raises(MaybeServed, match="orders/3@7 to worker-1"):
        await anext(targets_of(one))


async def targets_of(one: Tries) -> AsyncIterator[Target]:
    async with one.next() as target:
        yield target


@pytest.mark.parametrize("wrong", [{"tries": 0}, {"within": -1.0}, {"first_pause": 0.0}, {"longest_pause": 0.01}])
def test_retries_that_allow_no_try_or_no_pause_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="allows no try"):
        Retries(**wrong).check()  # type: ignore[arg-type]
