"""The demo adds up what its routers say, and draws it within its frame."""

from __future__ import annotations

import pytest

from assigner.demo.recording import frame_text
from assigner.demo.rendering import HEIGHT, WIDE
from assigner.demo.snapshot import Cell, Snapshot
from assigner.demo.traffic import HISTORY, PARTITIONS, RouterCounts, RouterTraffic, Traffic, TrafficRecord

CELLS = (Cell(),) * PARTITIONS


def saying(name: str, *answered: tuple[float, int]) -> RouterTraffic:
    router = RouterTraffic(name)
    for at, count in answered:
        router.add(RouterCounts(made=count + 2, answered=count, in_flight=2, stashed=1), at)
    return router


def test_requests_per_second_are_those_of_the_last_second() -> None:
    router = saying("one", (0.0, 0), (1.0, 100), (1.5, 150), (2.0, 170))
    assert router.line(2.0).per_second == 70
    assert router.line(3.1).per_second == 0


def test_requests_at_an_even_rate_are_counted_at_that_rate_whenever_it_is_asked_for() -> None:
    router = saying("one", *((number / 10, number * 10) for number in range(31)))
    assert [round(router.line(3.0 + late).per_second) for late in (0.0, 0.04, 0.09)] == [100] * 3


def test_a_router_that_has_just_begun_is_not_said_to_be_faster_than_it_is() -> None:
    assert saying("one", (4.5, 0), (5.0, 30)).line(5.0).per_second == 30


def test_routers_are_added_up_and_those_that_left_still_count() -> None:
    gone = saying("gone", (0.0, 40))
    gone.present = False
    traffic = TrafficRecord().take([gone, saying("here", (4.5, 0), (5.0, 30))], 5.0)
    assert traffic.total("answered") == 70
    assert traffic.per_second == 30
    assert traffic.history == (30,)


def test_the_history_keeps_what_fits_into_its_line() -> None:
    record = TrafficRecord()
    for _ in range(2 * HISTORY):
        record.take([], 0.0)
    assert len(record.take([], 0.0).history) == HISTORY


@pytest.mark.parametrize("lost", [0, 3])
def test_a_frame_shows_routers_and_what_was_lost(lost: int) -> None:
    routers = [saying(f"router-{number}", (0.0, 0), (0.9, 1_234)) for number in (1, 2, 3)]
    routers[0].add(RouterCounts(answered=2_345, lost=lost, held=1_012, stashed=7, retries=55, retrying=4), 1.0)
    record = TrafficRecord()
    for _ in range(HISTORY):
        record.take(routers, 1.0)
    frame = frame_text(Snapshot(cells=CELLS, traffic=record.take(routers, 1.0)))
    assert f"answered 4,813   lost {lost} " in frame
    assert "were stashed 1,012   retries 55 " in frame
    assert "router-1  2345         0       7        4 " in frame
    assert "all       4813         4       9        4 " in frame
    assert max(len(line) for line in frame.splitlines()) == WIDE.width
    # Nothing is broken into two lines.
    assert len(frame.splitlines()) == HEIGHT
    assert len(frame_text(Snapshot(cells=CELLS, traffic=Traffic())).splitlines()) == HEIGHT


def test_what_waits_is_drawn_and_one_request_is_seen_among_none() -> None:
    record = TrafficRecord()
    router = saying("one", (0.0, 0))
    for stashed, retrying in ((0, 0), (1, 0), (0, 0)):
        router.add(RouterCounts(stashed=stashed, retrying=retrying), 1.0)
        record.take([router], 1.0)
    router.add(RouterCounts(stashed=30, retrying=70), 1.0)
    traffic = record.take([router], 1.0)
    assert traffic.waiting == (0, 1, 0, 100)
    assert "waiting    ▁ █" in frame_text(Snapshot(traffic=traffic))
