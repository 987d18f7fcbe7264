"""The checker of mixed groups finds what was planted: a loss, a duplicate, a second owner."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.support.kafka_groups.checks import Findings, check, table
from tests.support.kafka_groups.events import Event, Kind, parse
from tests.support.kafka_groups.ledger import Accident, Mishap, Record, gather

P = "orders/0"


def assigned(at: float, *partitions: str) -> Event:
    return Event(Kind.ASSIGNED, at, partitions or (P,))


def revoked(at: float, *partitions: str) -> Event:
    return Event(Kind.REVOKED, at, partitions or (P,))


def lost(at: float) -> Event:
    return Event(Kind.LOST, at, (P,))


def worked(at: float, *offsets: int, committed: bool = True) -> list[Event]:
    """Records that were processed one after the other, and committed."""
    found = []
    for number, offset in enumerate(offsets):
        found.append(Event(Kind.RECORD, at + number / 10, partition=P, offset=offset))
        if committed:
            found.append(Event(Kind.COMMITTED, at + number / 10 + 0.01, partition=P, offset=offset + 1))
    return found


def produced(count: int) -> frozenset[Record]:
    return frozenset(Record(P, offset) for offset in range(count))


def checked(count: int, accidents: Sequence[Accident] = (), **said: list[Event]) -> Findings:
    return check(gather(produced(count), said, accidents))


# --- what is right -----------------------------------------------------------------------------------------------


def test_a_partition_that_moves_between_two_is_without_fault() -> None:
    found = checked(
        4,
        a=[assigned(0.0), *worked(0.1, 0, 1), revoked(1.0)],
        b=[assigned(1.1), *worked(1.2, 2, 3)],
    )
    assert found.faults == []
    assert [(move.source, move.target, move.is_planned) for move in found.moves] == [("a", "b", True)]
    assert found.moves[0].pause == pytest.approx(1.0)


def test_the_record_in_flight_of_a_killed_member_may_be_processed_again() -> None:
    found = checked(
        3,
        [Accident("a", Mishap.KILLED, 0.5)],
        a=[assigned(0.0), *worked(0.1, 0), *worked(0.3, 1, committed=False)],
        b=[assigned(6.0), *worked(6.1, 1, 2)],
    )
    assert found.faults == []
    assert [(one.record.offset, one.because) for one in found.duplicates] == [(1, "a was killed")]
    assert [move.is_planned for move in found.moves] == [False]


def test_the_record_in_flight_of_a_frozen_member_may_be_processed_again() -> None:
    """It goes on where it was stopped, processes what it had in its hands, and only then hears that all is lost."""
    found = checked(
        3,
        [Accident("a", Mishap.FROZEN, 0.5, until=10.0)],
        a=[assigned(0.0), *worked(0.1, 0), *worked(10.1, 1, committed=False), lost(10.2)],
        b=[assigned(6.0), *worked(6.1, 1, 2)],
    )
    assert found.faults == []
    assert len(found.duplicates) == 1


def test_a_frozen_member_may_itself_process_again_what_it_could_not_commit() -> None:
    found = checked(
        2,
        [Accident("a", Mishap.FROZEN, 0.5, until=10.0)],
        a=[
            assigned(0.0),
            *worked(0.1, 0),
            *worked(0.4, 1, committed=False),
            lost(10.1),
            assigned(11.0),
            *worked(12, 1),
        ],
    )
    assert found.faults == []
    assert len(found.duplicates) == 1


def test_a_member_that_works_in_batches_may_repeat_the_whole_batch() -> None:
    said = {
        "spark": worked(0.1, 0, 1, 2, committed=False),
        "b": [assigned(6.0), *worked(6.1, 0, 1, 2)],
    }
    killed = [Accident("spark", Mishap.KILLED, 1.0)]
    assert check(gather(produced(3), said, killed, in_batches=frozenset({"spark"}))).faults == []
    assert len(check(gather(produced(3), said, killed)).unexplained) == 2


def test_the_table_shows_the_counts() -> None:
    found = checked(2, a=[assigned(0.0), *worked(0.1, 0, 1)])
    assert "records produced" in table(found)
    assert "lost                                0" in table(found)


# --- what is planted ---------------------------------------------------------------------------------------------


def test_a_record_that_nobody_processed_is_found() -> None:
    found = checked(3, a=[assigned(0.0), *worked(0.1, 0, 2)])
    assert found.lost == [Record(P, 1)]
    assert "lost: 1" in found.faults[0]


def test_a_record_that_nobody_produced_is_found() -> None:
    found = checked(1, a=[assigned(0.0), *worked(0.1, 0, 1)])
    assert found.unknown == [Record(P, 1)]


def test_a_duplicate_without_an_accident_is_found() -> None:
    found = checked(
        2,
        a=[assigned(0.0), *worked(0.1, 0, 1), revoked(1.0)],
        b=[assigned(1.1), *worked(1.2, 1)],
    )
    assert [one.record for one in found.unexplained] == [Record(P, 1)]
    assert found.faults


def test_a_killed_member_explains_no_duplicate_of_what_it_had_committed() -> None:
    found = checked(
        2,
        [Accident("a", Mishap.KILLED, 0.5)],
        a=[assigned(0.0), *worked(0.1, 0, 1)],
        b=[assigned(6.0), *worked(6.1, 1)],
    )
    assert len(found.unexplained) == 1


def test_a_killed_member_explains_one_duplicate_and_not_two() -> None:
    found = checked(
        2,
        [Accident("a", Mishap.KILLED, 0.5)],
        a=[assigned(0.0), *worked(0.1, 0, 1, committed=False)],
        b=[assigned(6.0), *worked(6.1, 0, 1)],
    )
    assert [one.record.offset for one in found.unexplained] == [0]


def test_the_accident_of_one_explains_no_duplicate_of_others() -> None:
    found = checked(
        1,
        [Accident("c", Mishap.KILLED, 0.5)],
        a=[assigned(0.0), *worked(0.1, 0, committed=False), revoked(1.0)],
        b=[assigned(1.1), *worked(1.2, 0)],
    )
    assert len(found.unexplained) == 1


def test_two_owners_at_a_time_are_found_even_if_one_of_them_did_nothing() -> None:
    found = checked(1, a=[assigned(0.0), *worked(0.1, 0), revoked(2.0)], b=[assigned(1.5)])
    assert [one.members for one in found.double_owners] == [("a", "b")]
    assert found.double_owners[0].seconds == pytest.approx(0.5)


def test_an_owner_that_was_only_slow_to_thaw_still_owns() -> None:
    """A freeze shorter than the session takes nothing away: whoever owns the partition meanwhile is a second owner."""
    short = Accident("a", Mishap.FROZEN, 0.5, until=1.0, outlasted_session=False)
    found = checked(1, [short], a=[assigned(0.0), *worked(0.1, 0)], b=[assigned(0.7), revoked(0.9)])
    assert len(found.double_owners) == 1


def test_a_frozen_member_that_goes_on_as_if_nothing_had_happened_is_found() -> None:
    found = checked(
        4,
        [Accident("a", Mishap.FROZEN, 0.5, until=10.0)],
        a=[assigned(0.0), *worked(0.1, 0), *worked(10.1, 1, 2, 3)],
        b=[assigned(6.0), *worked(6.1, 1, 2, 3)],
    )
    assert len(found.unexplained) == 3
    assert found.unowned


def test_a_member_that_processes_what_it_does_not_own_is_found() -> None:
    found = checked(2, a=[assigned(0.0), *worked(0.1, 0), revoked(1.0), *worked(1.5, 1)])
    assert [one.record.offset for one in found.unowned] == [1]


def test_a_member_that_never_says_what_it_owns_is_judged_by_its_records_only() -> None:
    assert checked(2, spark=worked(0.1, 0, 1)).faults == []


def test_an_ownership_without_an_end_lasts() -> None:
    ledger = gather(produced(0), {"a": [assigned(0.0)]})
    assert ledger.spans[0].end == math.inf


# --- what members say --------------------------------------------------------------------------------------------


def test_a_line_that_is_half_written_and_what_libraries_print_are_left_out() -> None:
    lines = [b'{"event":"up","at":1.5}\n', b"WARNING: something\n", b'{"event":"closed","at":2']
    assert [event.event for event in parse(lines)] == [Kind.UP]
