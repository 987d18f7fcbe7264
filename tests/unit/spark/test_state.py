"""State that moves with its partition, tried on Spark's own tester of processors: no JVM."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import LongType, StringType, StructField, StructType

from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.spark.schema import ControlKind, control_row
from assigner.spark.state import PartitionProcessor

TP = TopicPartition("orders", 0)
OUTPUT = StructType([StructField("word", StringType()), StructField("seen", LongType())])


class Counts(PartitionProcessor[dict[str, int]]):
    """How often each word came so far, with each record."""

    def __init__(self) -> None:
        super().__init__(OUTPUT)

    def begin(self) -> dict[str, int]:
        return {}

    def process(self, state: dict[str, int], rows: pd.DataFrame) -> tuple[dict[str, int], pd.DataFrame]:
        made: list[dict[str, Any]] = []
        for offset, value in zip(rows["offset"], rows["value"], strict=True):
            word = value.decode()
            state[word] = state.get(word, 0) + 1
            made.append({"offset": offset, "word": word, "seen": state[word]})
        return state, pd.DataFrame(made)


class Query:
    """One query's checkpoint: a processor with its state store."""

    def __init__(self) -> None:
        self._tester = TwsTester(Counts())

    def batch(self, *rows: dict[str, object]) -> list[dict[str, Any]]:
        columns = ["key", "value", "topic", "partition", "offset", "epoch", "control"]
        frame = pd.DataFrame([{**dict.fromkeys(columns), **row} for row in rows], columns=columns, dtype=object)
        made: Any = self._tester.testInPandas("orders-0", frame)
        return list(made.to_dict("records"))

    @property
    def holds_state(self) -> bool:
        return self._tester.peekValueState("partition", "orders-0") is not None


def record(offset: int, word: str = "a", epoch: int = 1) -> dict[str, object]:
    return {"topic": "orders", "partition": 0, "offset": offset, "epoch": epoch, "value": word.encode()}


def control(kind: ControlKind, offset: int, epoch: int = 1, state: bytes | None = None) -> dict[str, object]:
    return control_row(kind, TP, epoch=epoch, offset=offset, state=state)


def restore(offset: int = 0, epoch: int = 1, state: bytes | None = None) -> dict[str, object]:
    return control(ControlKind.RESTORE, offset, epoch, state)


def seen(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["offset"], row["seen"]) for row in rows if row["control"] is None]


def states(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["control"] == "state"]


def test_state_grows_from_batch_to_batch() -> None:
    query = Query()
    assert seen(query.batch(restore(), record(0), record(1))) == [(0, 1), (1, 2)]
    assert seen(query.batch(record(2))) == [(2, 3)]


def test_rows_have_the_columns_of_their_origin() -> None:
    (row,) = Query().batch(restore(), record(0))
    assert row == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "epoch": 1,
        "word": "a",
        "seen": 1,
        "control": None,
        "state": None,
    }


def test_records_are_processed_in_order_however_they_come() -> None:
    assert seen(Query().batch(record(2), restore(), record(0), record(1))) == [(0, 1), (1, 2), (2, 3)]


def test_a_release_hands_the_state_to_the_next_owner_and_forgets_it() -> None:
    old, new = Query(), Query()
    old.batch(restore(), record(0), record(1))
    last = old.batch(control(ControlKind.RELEASE, 3), record(2))
    (state,) = states(last)
    assert (state["offset"], state["epoch"]) == (3, 1)
    assert seen(last) == [(2, 3)]
    assert not old.holds_state
    assert seen(new.batch(restore(3, epoch=2, state=state["state"]), record(3, epoch=2))) == [(3, 4)]


def test_a_snapshot_hands_the_state_out_and_keeps_it() -> None:
    query = Query()
    (state,) = states(query.batch(restore(), record(0), control(ControlKind.SNAPSHOT, 1)))
    assert state["offset"] == 1
    assert seen(query.batch(record(1))) == [(1, 2)]


def test_a_crash_costs_what_was_read_since_the_snapshot_and_no_more() -> None:
    """The old owner dies after offset 3; its last snapshot was at 2. The next one reads both again."""
    old, new = Query(), Query()
    (state,) = states(old.batch(restore(), record(0), record(1), control(ControlKind.SNAPSHOT, 2)))
    lost = seen(old.batch(record(2), record(3)))
    again = seen(new.batch(restore(2, epoch=2, state=state["state"]), *(record(n, epoch=2) for n in (2, 3, 4))))
    assert again[:2] == lost
    assert again[2] == (4, 5)


def test_a_partition_released_before_anything_was_read_hands_over_an_empty_state() -> None:
    old, new = Query(), Query()
    (state,) = states(old.batch(restore(7), control(ControlKind.RELEASE, 7)))
    assert state["offset"] == 7
    assert seen(new.batch(restore(7, epoch=2, state=state["state"]), record(7, epoch=2))) == [(7, 1)]


def test_offsets_that_led_to_nothing_are_not_read_again() -> None:
    """Compacted away or aborted: the release knows better how far the owner read than the last record."""
    (state,) = states(Query().batch(restore(), record(0), control(ControlKind.RELEASE, 90)))
    assert state["offset"] == 90


def test_what_a_zombie_left_behind_is_replaced_when_the_partition_returns() -> None:
    query = Query()
    query.batch(restore(), record(0), record(1))
    assert seen(query.batch(restore(5, epoch=4), record(5, epoch=4))) == [(5, 1)]


def test_a_restarted_query_resumes_with_the_state_of_its_checkpoint() -> None:
    query = Query()
    query.batch(restore(), record(0))
    assert seen(query.batch(control(ControlKind.RESUME, 1, epoch=2), record(1, epoch=2))) == [(1, 2)]


@pytest.mark.parametrize("at", [1, 2])
def test_records_that_are_in_the_state_already_are_not_processed_twice(at: int) -> None:
    query = Query()
    query.batch(restore(), record(0), record(1))
    assert seen(query.batch(*(record(n) for n in range(at, 4)))) == [(2, 3), (3, 4)]


def test_records_without_a_restore_are_an_error_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match=r"orders/0 come without a restore row.*controlRows=true"):
        Query().batch(record(0))


def test_records_of_another_epoch_than_the_states_are_an_error() -> None:
    query = Query()
    query.batch(restore(), record(0))
    with pytest.raises(InvalidInput, match="carry epoch 2, its state epoch 1"):
        query.batch(record(1, epoch=2))


def test_resuming_where_the_checkpoint_is_not_is_an_error() -> None:
    with pytest.raises(InvalidInput, match=r"go on at 5 with the state.*there is none"):
        Query().batch(control(ControlKind.RESUME, 5))
    query = Query()
    query.batch(restore(), record(0), record(1))
    with pytest.raises(InvalidInput, match="it holds records up to 2"):
        query.batch(control(ControlKind.RESUME, 1, epoch=2))


def test_a_column_that_is_filled_in_may_not_be_among_the_output() -> None:
    class Wrong(Counts):
        def __init__(self) -> None:
            PartitionProcessor.__init__(self, StructType([StructField("offset", LongType())]))

    with pytest.raises(InvalidInput, match="has the column offset"):
        Wrong()


def test_a_processor_that_forgets_a_column_fails_with_its_name() -> None:
    class Forgetful(Counts):
        def process(self, state: dict[str, int], rows: pd.DataFrame) -> tuple[dict[str, int], pd.DataFrame]:
            return state, pd.DataFrame({"word": ["a"], "seen": [1]})

    tester = TwsTester(Forgetful())
    frame = pd.DataFrame([{**record(0), "control": None}, restore()])
    with pytest.raises(InvalidInput, match="without the column offset; it is to make offset, word, seen"):
        tester.testInPandas("orders-0", frame)


def test_a_processor_may_make_nothing() -> None:
    class Silent(Counts):
        def process(self, state: dict[str, int], rows: pd.DataFrame) -> tuple[dict[str, int], pd.DataFrame]:
            return {"n": len(rows)}, pd.DataFrame()

    tester = TwsTester(Silent())
    frame = pd.DataFrame([{**record(0), "control": None}, restore()])
    assert len(tester.testInPandas("orders-0", frame)) == 0
