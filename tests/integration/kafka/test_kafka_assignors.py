"""Our strategies against Kafka's own assignors, which run in a Java process on the same problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from assigner.strategy import IntArray, Problem
from assigner.strategy.explanation import Explanation
from assigner.strategy.registry import load
from bench.strategies.bounds import imbalance
from bench.strategies.grid import Operation, Shape, Sizes, Subscriptions, changed, dealt, fresh
from bench.strategies.kafka_assignors import ASSIGNORS, KafkaAssignors, unavailable
from bench.strategies.timed_calls import ONCE, Failed
from tests.support.servers.kafka import KafkaUnavailableError, ensure_kafka
from tests.support.strategies.problems import assert_valid

# One worker starts Java and runs all of these.
pytestmark = [pytest.mark.kafka, pytest.mark.processes, pytest.mark.xdist_group("kafka-assignors")]

SHAPES = [
    Shape(7, 10, 100),
    Shape(20, 30, 401, Sizes.SKEWED),
    Shape(20, 30, 400, subscriptions=Subscriptions.DISJOINT),
    Shape(20, 30, 400, subscriptions=Subscriptions.NESTED),
    Shape(20, 30, 400, racks=True),
]
ALIKE = [shape for shape in SHAPES if shape.subscriptions is Subscriptions.ONE]
CHANGES = [operation for operation in Operation if operation is not Operation.FULL]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaAssignors]:
    try:
        ensure_kafka()
    except KafkaUnavailableError as reason:
        pytest.skip(str(reason))
    missing = unavailable()
    if missing is not None:
        pytest.skip(missing)
    with KafkaAssignors(heap=("-Xmx256m",)) as running:
        yield running


def answer(kafka: KafkaAssignors, assignor: str, problem: Problem) -> IntArray:
    kafka.load(problem)
    return kafka.run(assignor, ONCE).owner


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_range_gives_each_partition_to_whom_kafka_gives_it(kafka: KafkaAssignors, shape: Shape) -> None:
    problem = fresh(shape)
    assert load("range").assign(problem).owner.tolist() == answer(kafka, "range", problem).tolist()


@pytest.mark.parametrize("operation", CHANGES)
@pytest.mark.parametrize("shape", ALIKE, ids=str)
def test_even_over_all_moves_no_more_than_kafka_does(kafka: KafkaAssignors, shape: Shape, operation: Operation) -> None:
    problem = changed(shape, operation, dealt(shape, operation))
    ours = load("sticky_balanced").assign(replace(problem, options={"balance": "global", "racks": "ignore"}))
    for assignor in ("uniform", "cooperative-sticky"):
        owner = answer(kafka, assignor, problem)
        assert imbalance(problem, owner) <= 1
        assert ours.explanation.moves <= Explanation(problem, owner, 0).moves


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_kafka_answers_is_understood(kafka: KafkaAssignors, shape: Shape, assignor: str) -> None:
    """Every partition has an owner that wants it, so nothing was lost or mixed up on the way."""
    problem = changed(shape, Operation.JOIN_MANY, dealt(shape, Operation.JOIN_MANY))
    owner = answer(kafka, assignor, problem)
    assert_valid(problem, replace(load("range").assign(problem), owner=owner))


def test_an_assignor_that_takes_too_long_is_stopped_and_the_next_one_runs(kafka: KafkaAssignors) -> None:
    problem = fresh(Shape(7, 10, 100))
    kafka.load(problem)
    with pytest.raises(Failed, match="took too long"):
        kafka.run("uniform", replace(ONCE, warm_up=0.2, patience=-10.0))
    with pytest.raises(Failed, match="load a problem first"):
        kafka.run("uniform", ONCE)
    assert answer(kafka, "uniform", problem).min() == 0
