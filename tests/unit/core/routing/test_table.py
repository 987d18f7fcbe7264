"""What a router's table shows after updates of the service, in order, in parts, late, or of another store."""

from __future__ import annotations

import pytest

from assigner.core.routing.table import RoutingTable, succeeding
from assigner.errors import InvalidInput, LimitReached
from assigner.model.keys import TopicPartition
from assigner.model.routes import Route, RoutingOpening, TableChanges

HELD = Route("a", "a:80", 5, "h1", True)


def tp(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


def at(owner: str, epoch: int, handoff_id: str = "", *, frozen: bool = False) -> Route:
    return Route(owner, f"{owner}:80", epoch, handoff_id, frozen)


def whole(revision: int, incarnation: str = "", more: bool = False, /, **routes: Route) -> TableChanges:
    rows = tuple((tp(int(name.removeprefix("p"))), route) for name, route in routes.items())
    opening = RoutingOpening(30.0, incarnation)
    return TableChanges(
        opening=opening, full=True, more=more, revision=revision, routes=rows, topics=(("t", 8),), generation=revision
    )


def difference(revision: int, unowned: tuple[int, ...] = (), more: bool = False, /, **routes: Route) -> TableChanges:
    rows = tuple((tp(int(name.removeprefix("p"))), route) for name, route in routes.items())
    return TableChanges(more=more, revision=revision, routes=rows, unowned=tuple(map(tp, unowned)), generation=revision)


def table_with(**routes: Route) -> RoutingTable:
    table = RoutingTable()
    table.begin_stream()
    table.apply(whole(10, **routes))
    return table


def is_behind(table: RoutingTable) -> bool:
    return table.is_behind


# --- rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "is_frozen", "handoff_id"),
    [
        (at("b", 6), False, ""),
        (at("a", 6), False, ""),
        (at("a", 5, "h2"), False, "h2"),
        (at("a", 5), True, "h1"),
        (at("a", 5, "h1"), True, "h1"),
        (at("a", 5, "h2", frozen=True), True, "h2"),
        (at("b", 4), True, "h1"),
    ],
    ids=["flip", "reaffirmed", "successor", "handoff deleted", "same handoff", "frozen by another", "stale"],
)
def test_a_frozen_partition_thaws_by_a_higher_epoch_or_by_another_handoff_alone(
    shown: Route, is_frozen: bool, handoff_id: str
) -> None:
    after = succeeding(HELD, shown)
    assert (after.frozen, after.handoff_id) == (is_frozen, handoff_id)


def test_a_deleted_handoff_leaves_the_owners_new_address_known() -> None:
    assert succeeding(HELD, Route("a", "elsewhere:80", 5)) == Route("a", "elsewhere:80", 5, "h1", True)


def test_a_row_of_an_older_epoch_changes_nothing_and_is_counted() -> None:
    table = table_with(p0=at("a", 5))
    assert table.apply(difference(11, p0=at("b", 4))).rows == []
    assert table.route("t", 0) == at("a", 5)
    assert table.stale == 1
    table.apply(difference(12, p0=at("a", 5, "h1")))
    table.apply(difference(13, p0=at("b", 6)))
    assert table.stale == 1, "neither was of an epoch that is over"


def test_a_freeze_is_not_forgotten_while_the_partition_has_no_owner() -> None:
    table = table_with(p0=HELD)
    (lost,) = table.apply(difference(11, (0,))).rows
    assert (lost.before, lost.after) == (HELD, None)
    table.apply(difference(12, p0=at("a", 5)))
    route = table.route("t", 0)
    assert route is not None
    assert route.frozen


def test_a_row_that_is_shown_again_is_no_change_unless_it_is_frozen() -> None:
    table = table_with(p0=at("a", 5), p1=HELD)
    assert [row.tp for row in table.apply(difference(10, p0=at("a", 5), p1=HELD)).rows] == [tp(1)]


def test_a_whole_table_opens_nothing_that_was_frozen_or_newer_when_it_lost_its_owner() -> None:
    table = table_with(p0=HELD, p1=at("a", 9))
    table.apply(difference(11, (0, 1)))
    table.begin_stream()
    table.apply(whole(12, p0=at("a", 5), p1=at("b", 8)))
    assert table.route("t", 0) == at("a", 5, "h1", frozen=True)
    assert table.route("t", 1) == at("a", 9)


def test_a_whole_table_without_the_handoff_opens_nothing_that_is_frozen() -> None:
    table = table_with(p0=HELD, p1=at("a", 9))
    table.begin_stream()
    table.apply(whole(12, p0=at("a", 5), p1=at("b", 8)))
    assert table.route("t", 0) == at("a", 5, "h1", frozen=True)
    assert table.route("t", 1) == at("a", 9)


def test_a_whole_table_shows_what_is_frozen_again_and_what_has_changed() -> None:
    """What is frozen has to be acknowledged again: the ack may have been lost with the connection."""
    table = table_with(p0=at("a", 5), p1=HELD, p2=at("a", 5), p3=at("a", 5))
    table.begin_stream()
    table.apply(whole(11, "", True, p0=at("a", 5), p1=HELD, p2=at("b", 6)))
    # Until the last part, what changes is shown too; here it changes back, and one comes and goes.
    table.apply(difference(11, (), True, p0=at("b", 6), p3=at("a", 5), p4=at("c", 1)))
    applied = table.apply(difference(11, (4,), p2=at("a", 5)))
    assert sorted((row.tp.partition, row.after) for row in applied.rows) == [(0, at("b", 6)), (1, HELD)]
    assert len(table) == 4


# --- order ---------------------------------------------------------------------------------------------------------


def test_an_update_that_is_older_than_the_table_is_ignored_and_an_equal_one_is_applied() -> None:
    table = table_with(p0=at("a", 5))
    assert table.apply(difference(9, p0=at("b", 6))).rows == []
    assert (table.route("t", 0), table.stale) == (at("a", 5), 1)
    table.apply(difference(10, p0=at("b", 6)))
    assert table.route("t", 0) == at("b", 6)


def test_the_table_of_an_instance_that_lags_behind_is_used_once_it_has_caught_up() -> None:
    table = table_with(p0=at("a", 5), p1=at("a", 5))
    table.begin_stream()
    applied = table.apply(whole(8, p0=at("a", 4), p1=at("a", 5), p2=at("c", 1)))
    assert not applied.completed
    assert is_behind(table)
    assert (table.revision, table.route("t", 2), table.stale) == (10, None, 1)
    assert not table.apply(difference(9, p0=at("a", 5))).completed
    assert not table.apply(difference(10, (), True, p0=at("a", 5))).completed, "it is cut in two"
    table.begin_stream()
    assert not is_behind(table), "the next instance may be another one"
    table.apply(whole(9, p0=at("a", 5), p1=at("a", 5), p2=at("c", 1)))
    applied = table.apply(difference(10, (2,), p0=at("b", 6)))
    assert applied.completed
    assert not is_behind(table)
    assert [row.after for row in applied.rows] == [at("b", 6)]
    assert dict(table) == {tp(0): at("b", 6), tp(1): at("a", 5)}


def test_a_whole_table_in_parts_is_used_when_the_last_has_arrived() -> None:
    table = RoutingTable()
    table.begin_stream()
    assert not table.apply(whole(10, "", True, p0=at("a", 5))).completed
    assert not is_behind(table), "it is not complete"
    assert (table.revision, table.route("t", 0), table.partitions("t")) == (0, None, 0)
    applied = table.apply(difference(10, p1=at("b", 5)))
    assert applied.completed
    assert len(applied.rows) == 2
    assert (table.revision, table.generation, table.partitions("t"), len(table)) == (10, 10, 8, 2)


def test_what_a_whole_table_does_not_list_has_no_owner() -> None:
    table = table_with(p0=at("a", 5), p1=at("a", 5))
    table.begin_stream()
    applied = table.apply(whole(11, p1=at("a", 5)))
    assert [(row.tp, row.after) for row in applied.rows] == [(tp(0), None)]
    assert table.route("t", 0) is None


def test_a_table_that_breaks_off_changes_nothing() -> None:
    table = table_with(p0=at("a", 5))
    table.begin_stream()
    table.apply(whole(12, "", True, p0=at("b", 6)))
    table.begin_stream()
    assert table.route("t", 0) == at("a", 5)
    with pytest.raises(InvalidInput, match="before a whole table"):
        table.apply(difference(13, p0=at("b", 6)))


def test_a_difference_in_parts_counts_as_shown_with_its_last_part() -> None:
    table = table_with(p0=at("a", 5))
    table.apply(difference(12, (), True, p0=at("b", 6)))
    assert (table.revision, table.route("t", 0)) == (10, at("b", 6))
    table.apply(difference(12, p1=at("b", 1)))
    assert table.revision == 12


# --- another store, and bounds ---------------------------------------------------------------------------------------


def test_another_incarnation_of_the_store_begins_with_its_own_revisions_and_epochs() -> None:
    table = RoutingTable()
    table.begin_stream()
    table.apply(whole(10, "one", p0=HELD, p1=at("a", 9)))
    table.begin_stream()
    applied = table.apply(whole(2, "two", p0=at("b", 1)))
    assert applied.completed
    assert dict(table) == {tp(0): at("b", 1)}
    assert (table.revision, table.incarnation) == (2, "two")
    table.apply(difference(3, p1=at("b", 1)))
    assert table.route("t", 1) == at("b", 1)


def test_an_unknown_incarnation_is_no_other_one() -> None:
    table = RoutingTable()
    table.begin_stream()
    table.apply(whole(10, "one", p0=at("a", 5)))
    table.begin_stream()
    assert not table.apply(whole(2, p0=at("b", 1))).completed
    assert table.route("t", 0) == at("a", 5)


def test_what_had_no_owner_in_another_incarnation_is_forgotten() -> None:
    table = RoutingTable(max_partitions=3)
    table.begin_stream()
    table.apply(whole(10, "one", p0=at("a", 9), p1=at("a", 9), p2=at("a", 9)))
    table.apply(difference(11, (0, 1, 2)))
    table.begin_stream()
    table.apply(whole(2, "two", p3=at("b", 1), p4=at("b", 1), p5=at("b", 1)))
    assert len(table) == 3


def test_a_table_tells_how_many_partitions_have_an_owner() -> None:
    table = table_with(p0=at("a", 5))
    assert len(table) == 1
    table.apply(difference(11, p1=at("a", 5), p2=at("a", 5)))
    table.apply(difference(12, (0, 7)))
    assert len(table) == 2
    table.apply(TableChanges(revision=13, topics=(("t", 9), ("u", 4))))
    assert (table.partitions("t"), table.partitions("u"), table.topics) == (9, 4, {"t": 9, "u": 4})


def test_a_topic_that_is_gone_takes_its_rows_along() -> None:
    table = table_with(p0=at("a", 5), p1=at("a", 5))
    applied = table.apply(TableChanges(revision=11, topics=(("t", 0),)))
    assert sorted(row.tp.partition for row in applied.rows if row.after is None) == [0, 1]
    assert (table.partitions("t"), len(table), table.topics) == (0, 0, {})


def test_more_partitions_than_a_router_keeps_are_refused() -> None:
    table = RoutingTable(max_partitions=2)
    table.begin_stream()
    with pytest.raises(LimitReached, match="more than 2 partitions"):
        table.apply(whole(1, p0=at("a", 1), p1=at("a", 1), p2=at("a", 1)))
    table.begin_stream()
    table.apply(whole(1, p0=at("a", 1), p1=at("a", 1)))
    with pytest.raises(LimitReached):
        table.apply(difference(2, p2=at("a", 1)))


def test_partitions_without_an_owner_are_remembered_only_as_long_as_their_topic_has_them() -> None:
    table = RoutingTable(max_partitions=2)
    table.begin_stream()
    table.apply(whole(1, p0=at("a", 1), p1=at("a", 1)))
    table.apply(difference(2, (0, 1)))
    with pytest.raises(LimitReached):
        table.apply(difference(3, p2=at("a", 1)))
    table.apply(TableChanges(revision=4, topics=(("t", 0),)))
    table.apply(TableChanges(revision=5, topics=(("t", 8),), routes=((tp(2), at("a", 1)),)))
    assert table.route("t", 2) == at("a", 1)


def test_partitions_that_get_an_owner_back_are_counted_once() -> None:
    table = RoutingTable(max_partitions=2)
    table.begin_stream()
    table.apply(whole(1, p0=at("a", 1), p1=at("a", 1)))
    table.apply(difference(2, (0, 1)))
    table.apply(difference(3, p0=at("b", 2), p1=at("b", 2)))
    table.apply(difference(4, (0, 1)))
    table.begin_stream()
    table.apply(whole(5, "", True, p0=at("c", 3), p1=at("c", 3)))
    table.apply(difference(5, (0,), True))
    assert table.apply(difference(5, p0=at("d", 4))).completed
    assert [route.owner for _, route in table] == ["c", "d"]
    table.apply(difference(6, (1,)))
    table.apply(difference(7, p1=at("d", 4)))
    table.apply(difference(8, (0, 1)))
    table.begin_stream()
    table.apply(whole(8, "", True, p0=at("a", 5), p1=at("a", 5)))
    table.apply(difference(8, (0, 0), True))
    with pytest.raises(LimitReached):
        table.apply(difference(8, (), True, p2=at("a", 5)))
    table.begin_stream()
    with pytest.raises(LimitReached):
        table.apply(whole(8, p0=at("a", 5), p1=at("a", 5), p2=at("a", 5)))


def test_a_table_at_its_limit_takes_changes_of_the_partitions_that_it_has() -> None:
    table = RoutingTable(max_partitions=2)
    table.begin_stream()
    table.apply(whole(1, p0=at("a", 1), p1=at("a", 1)))
    table.apply(difference(2, p0=at("b", 2), p1=at("b", 2)))
    assert [route.owner for _, route in table] == ["b", "b"]


def test_partitions_that_a_whole_table_gives_owners_again_are_counted_once() -> None:
    table = RoutingTable(max_partitions=3)
    table.begin_stream()
    table.apply(whole(1, p0=at("a", 1), p1=at("a", 1)))
    table.apply(difference(2, (0, 1)))
    table.begin_stream()
    table.apply(whole(3, p0=at("b", 2), p1=at("b", 2)))
    table.apply(difference(4, p2=at("b", 1)))
    assert len(table) == 3


def test_a_partition_beyond_a_topic_that_shrank_is_forgotten() -> None:
    table = RoutingTable(max_partitions=1)
    table.begin_stream()
    table.apply(whole(1, p7=at("a", 1)))
    table.apply(difference(2, (7,)))
    table.begin_stream()
    table.apply(TableChanges(opening=RoutingOpening(30.0, ""), full=True, revision=3, topics=(("t", 7),)))
    table.apply(difference(4, p0=at("a", 1)))
    assert len(table) == 1


def test_an_update_that_is_refused_changes_nothing() -> None:
    """Or the table would show owners that the requests were never told of."""
    table = RoutingTable(max_partitions=2)
    table.begin_stream()
    table.apply(whole(1, p0=at("a", 1), p1=at("a", 1)))
    with pytest.raises(LimitReached):
        table.apply(difference(2, p0=at("b", 2), p2=at("b", 1)))
    assert table.route("t", 0) == at("a", 1)
    table.begin_stream()
    rows = table.apply(whole(3, p0=at("b", 2), p1=at("a", 1))).rows
    assert [(row.tp, row.after) for row in rows] == [(tp(0), at("b", 2))]
