"""Loads cut into messages that the service takes: short lists, and not too many partitions in one call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice

from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.proto.kafka_assigner import v1

IN_A_CALL = 5_000
IN_A_LIST = 500


def messages(
    loads: Mapping[TopicPartition, float], node: float | None
) -> Iterator[tuple[list[v1.TopicLoads], float | None]]:
    """At least one; the node's load goes with the first. Raises `InvalidInput` for what is not a load."""
    if node is not None:
        _check("node", node)
    rest = iter(sorted(loads.items()))
    while part := list(islice(rest, IN_A_CALL)):
        yield list(_lists(part)), node
        node = None
    if not loads:
        yield [], node


def _lists(part: list[tuple[TopicPartition, float]]) -> Iterator[v1.TopicLoads]:
    told = v1.TopicLoads()
    for tp, load in part:
        _check(str(tp), load)
        if tp.topic != told.topic or len(told.partitions) >= IN_A_LIST:
            if told.partitions:
                yield told
            told = v1.TopicLoads(topic=tp.topic)
        told.partitions.append(tp.partition)
        told.loads.append(float(load))
    yield told


def _check(what: str, load: float) -> None:
    if not math.isfinite(load) or load < 0:
        raise InvalidInput(f"the load of {what} is {load}; it must be a number from 0 up")
