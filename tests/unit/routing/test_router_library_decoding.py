"""The decoder of tables reads what the service's encoder writes, whatever it is; and names what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assigner.core.routing.table import RoutingTable
from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.model.routes import PublishedLoads, Route, RoutingOpening, TableChanges
from assigner.proto.runtime import message_class
from assigner.routing.route_decoding import PART, decode
from assigner.server.services.route_encoding import encode

update = message_class("RoutingUpdate")
names = st.text(min_size=1, max_size=8)
partitions = st.builds(TopicPartition, st.sampled_from(["orders", "payments", "x"]), st.integers(0, 40))
routes = st.builds(Route, names, names, st.integers(0, 2**63), st.sampled_from(["", "h1", "h2"]), st.booleans())
tables = st.builds(
    TableChanges,
    opening=st.none() | st.builds(RoutingOpening, st.sampled_from([0.5, 30.0]), st.sampled_from(["", "one"])),
    full=st.booleans(),
    more=st.booleans(),
    revision=st.integers(0, 2**63),
    generation=st.integers(0, 2**63),
    routes=st.dictionaries(partitions, routes).map(lambda rows: tuple(rows.items())),
    unowned=st.lists(partitions, unique=True).map(tuple),
    topics=st.dictionaries(names, st.integers(0, 2**31)).map(lambda topics: tuple(topics.items())),
    loads_valid_for=st.sampled_from([0.0, 1.5]),
)


def decoded(changes: TableChanges) -> list[TableChanges]:
    messages = [update.FromString(message) for message in encode(changes) if message is not None]
    return [part for message in messages for part in decode(message)]


@given(tables)
def test_what_is_encoded_is_decoded(changes: TableChanges) -> None:
    parts = decoded(changes)
    first, last = parts[0], parts[-1]
    assert first.opening == changes.opening
    assert (first.full, last.more) == (changes.full, changes.more)
    assert {(part.revision, part.generation) for part in parts} == {(changes.revision, changes.generation)}
    assert {tp: route for part in parts for tp, route in part.routes} == dict(changes.routes)
    assert sorted(tp for part in parts for tp in part.unowned) == sorted(changes.unowned)
    assert {topic: count for part in parts for topic, count in part.topics} == dict(changes.topics)
    assert first.loads_valid_for == changes.loads_valid_for


def test_loads_are_decoded() -> None:
    loads = (PublishedLoads("orders", (0, 2), (0.5, 2.0)),)
    (part,) = decoded(TableChanges(loads=loads, loads_valid_for=30.0))
    assert (part.loads, part.loads_valid_for) == (loads, 30.0)


def test_a_long_message_comes_in_parts_of_which_only_the_first_opens_a_table() -> None:
    rows = tuple((TopicPartition("orders", one), Route("a", "", one)) for one in range(2 * PART + 1))
    parts = decoded(TableChanges(full=True, revision=7, routes=rows))
    assert [part.full for part in parts] == [True, *[False] * (len(parts) - 1)]
    assert [part.more for part in parts] == [*[True] * (len(parts) - 1), False]
    assert max(len(part.routes) for part in parts) == PART
    table = RoutingTable()
    table.begin_stream()
    applied = [table.apply(part) for part in parts]
    assert [one.completed for one in applied] == [*[False] * (len(parts) - 1), True]
    assert len(table) == 2 * PART + 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"owners": [0], "epochs": []}, "1 owners and 0 epochs"),
        ({"owners": [0], "epochs": [1], "partitions": [1, 2]}, "2 partitions of 'orders'"),
        ({"owners": [3], "epochs": [1]}, "owner 3 of orders/0, of 1 owners"),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(fields: dict[str, Any], says: str) -> None:
    message = update(owners=[{"name": "a"}], routes=[{"topic": "orders", **fields}])
    with pytest.raises(InvalidInput, match=says):
        list(decode(message))
