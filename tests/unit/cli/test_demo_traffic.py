"""The demo adds up what its routers say, and draws it within its frame."""

from __future__ import annotations

import pytest

from assigner.demo.recording import frame_text
from assigner.demo.rendering import WIDTH
from assigner.demo.snapshot import Snapshot
from assigner.demo.traffic import HISTORY, RouterCounts, RouterTraffic, Traffic, TrafficRecord


def saying(name: str, *answered: tuple[float, int]) -> RouterTraffic:
    router = RouterTraffic(name)
    for at, count in answered:
        router.add(RouterCounts(made=count + 2, answered=count, in_flight=2, stashed=1), at)
    return router


def test_requests_per_second_are_those_of_the_last_second() -> None:
    router = saying("one", (0.0, 0), (1.0, 100), (1.5, 150), (2.0, 170))
    assert router.line(2.0).per_second == 70
    assert router.line(2.6).per_second == 0


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
    routers[0].add(RouterCounts(answered=2_345, lost=lost, frozen=12, stashed=7), 1.0)
    record = TrafficRecord()
    for _ in range(HISTORY):
        record.take(routers, 1.0)
    frame = frame_text(Snapshot(traffic=record.take(routers, 1.0)))
    assert f"answered 4,813   sent again 0   lost {lost}" in frame
    assert all(router.name in frame for router in routers)
    assert all(len(line) <= WIDTH for line in frame.splitlines())
    # Nothing is broken into two lines: the frame is as high as without requests.
    assert len(frame.splitlines()) == len(frame_text(Snapshot()).splitlines())
    assert len(frame_text(Snapshot(traffic=Traffic())).splitlines()) == len(frame.splitlines())
