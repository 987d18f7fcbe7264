"""Checks the loads in requests and converts them into values of `assigner.api`. Errors name the field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from assigner.api import LoadDescription, LoadReport, TopicLoads, Weights
from assigner.core.loads.records import LARGEST, LONGEST
from assigner.errors import InvalidInput, LimitReached
from assigner.model.names import check_topic
from assigner.proto.kafka_assigner import v1
from assigner.server.services.requests import MAX_PARTITION, check_partition

MAX_REPORTED = 10_000
"""Partitions in one report."""
MAX_PUBLISHED = 100_000
"""Weights in one call."""
DAY = 86_400.0
MAX_LISTED = 1_000
USUALLY_LISTED = 20


def load_report(request: v1.ReportLoadRequest) -> LoadReport:
    _check_number(sum(len(entry.partitions) for entry in request.topics), MAX_REPORTED)
    topics = tuple(_topic_loads(f"topics[{number}]", entry) for number, entry in enumerate(request.topics))
    node = request.node_load
    return LoadReport(topics, None if node is None else _load("node_load", node))


def _topic_loads(field: str, entry: v1.TopicLoads) -> TopicLoads:
    if len(entry.partitions) != len(entry.loads):
        raise InvalidInput(
            f"{field} has {len(entry.partitions)} partitions and {len(entry.loads)} loads; give one each"
        )
    partitions = tuple(check_partition(partition) for partition in entry.partitions)
    return TopicLoads(check_topic(entry.topic), partitions, tuple(_loads(f"{field}.loads", entry.loads)))


def weights(request: v1.SetLoadsRequest) -> tuple[tuple[Weights, ...], float]:
    """Read the weights of a request, and for how long they are valid."""
    if not request.weights:
        raise InvalidInput("weights is required; name at least one topic")
    _check_number(sum(len(run.weights) for run in request.weights), MAX_PUBLISHED)
    return tuple(_weights(f"weights[{n}]", run) for n, run in enumerate(request.weights)), _valid_for(request.valid_for)


def _weights(field: str, run: v1.TopicWeights) -> Weights:
    if run.first > MAX_PARTITION:
        raise InvalidInput(f"{field}.first is {run.first}; the highest partition is {MAX_PARTITION}")
    return Weights(check_topic(run.topic), run.first, tuple(_loads(f"{field}.weights", run.weights)))


def _valid_for(seconds: float) -> float:
    if seconds == 0:
        return DAY
    if not (math.isfinite(seconds) and 1 <= seconds <= LONGEST):
        raise InvalidInput(f"valid_for is {seconds}; it must be 1 to {LONGEST} seconds, or 0 for a day")
    return seconds


def _loads(field: str, loads: Sequence[float]) -> Iterator[float]:
    for number, load in enumerate(loads):
        yield load if 0 <= load <= LARGEST else _load(f"{field}[{number}]", load)


def _load(field: str, load: float) -> float:
    if not 0 <= load <= LARGEST:
        raise InvalidInput(f"{field} is {load}; it must be a number from 0 to {LARGEST:g}")
    return load


def _check_number(number: int, most: int) -> None:
    if number > most:
        raise LimitReached(f"the call names {number} partitions; at most {most} fit in one: make several calls")


def limit(request: v1.DescribeLoadsRequest) -> int:
    if request.limit > MAX_LISTED:
        raise InvalidInput(f"limit is {request.limit}; at most {MAX_LISTED} are listed")
    return request.limit or USUALLY_LISTED


def loads_message(described: LoadDescription) -> v1.DescribeLoadsResponse:
    return v1.DescribeLoadsResponse(
        used=described.used,
        fallback=described.fallback,
        partitions=described.partitions,
        known=described.known,
        total=described.total,
        at=described.at,
        heaviest=[
            v1.PartitionLoadInfo(
                topic=one.tp.topic, partition=one.tp.partition, weight=one.load, share=one.share, owner=one.owner
            )
            for one in described.heaviest
        ],
        busiest=[
            v1.NodeLoadInfo(
                consumer=one.consumer,
                busy=None if math.isnan(one.busy) else one.busy,
                partitions=one.partitions,
                share=one.share,
            )
            for one in described.busiest
        ],
        unreadable=list(described.unreadable),
    )
