"""Partitions by where their replicas are, and how many must be read from another rack than their owner's.

A member that does not say where it is is far from nothing, and neither is anybody from a partition whose replicas are
not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from assigner.strategy import NONE, IntArray, Problem
from bench.strategies.linear_programs import Counts, Near


@dataclass(frozen=True)
class _Classes:
    """Partitions of one topic with replicas in the same racks."""

    topic: Counts
    racks: Counts
    """A bit for each rack; 0 where none is known."""
    size: Counts
    number: Counts
    """[flat partition]: its class."""


def _classes(problem: Problem) -> _Classes:
    nothing = (np.zeros(len(problem.owner) + 1, np.int32), np.empty(0, np.int32))
    starts, racks = problem.topics.replica_racks or nothing
    partition = np.repeat(np.arange(len(problem.owner)), np.diff(starts))
    bits = np.zeros(len(problem.owner), np.int64)
    np.bitwise_or.at(bits, partition, np.int64(1) << racks.astype(np.int64))
    topic = np.repeat(np.arange(problem.topics.count), problem.topics.partitions)
    found, number, size = np.unique(np.stack((topic, bits)), axis=1, return_inverse=True, return_counts=True)
    return _Classes(found[0], found[1], size, number.reshape(-1))


def near_of(problem: Problem) -> Near:
    classes = _classes(problem)
    members = problem.members.count
    mine = problem.owner != NONE
    cell = classes.number[mine] * members + problem.owner[mine]
    held = np.bincount(cell, minlength=len(classes.size) * members).reshape(len(classes.size), members)
    rack = problem.members.rack.astype(np.int64)
    there = (classes.racks[:, None] >> rack.clip(min=0)[None, :]) & 1 == 1
    far = ~there & (rack != NONE)[None, :] & (classes.racks != 0)[:, None]
    return Near(classes.topic, classes.size, held.astype(np.int64), far)


def fewest_mismatches(problem: Problem) -> int:
    """Partitions that must be far when nobody may have more than its share: what a flow from classes to the racks'
    shares of each topic, and of the whole, leaves over."""
    if problem.topics.replica_racks is None or not problem.members.count or not len(problem.owner):
        return 0
    classes = _classes(problem)
    return int(classes.size.sum()) - _most_near(problem, classes)


def _most_near(problem: Problem, classes: _Classes) -> int:
    rack = problem.members.rack
    racks = int(rack.max(initial=NONE)) + 1
    members, topics = problem.members.count, problem.topics.count
    # The last place is for those that don't say where they are.
    here = np.bincount(np.where(rack == NONE, racks, rack), minlength=racks + 1)
    share, whole = _shares(problem.topics.partitions, members, here)
    count, places = len(classes.size), racks + 1
    second, third = 1 + count, 1 + count + topics * places
    sink = third + places
    arcs = [(np.zeros(count, np.int64), 1 + np.arange(count), classes.size)]
    for place in range(places):
        known = (classes.racks >> place) & 1 == 1
        fits = np.flatnonzero(known | (classes.racks == 0) | (place == racks))
        arcs.append((1 + fits, second + classes.topic[fits] * places + place, classes.size[fits]))
        arcs.append((second + np.arange(topics) * places + place, np.full(topics, third + place), share[:, place]))
    arcs.append((third + np.arange(places), np.full(places, sink), whole))
    start, end, most = (np.concatenate(column) for column in zip(*arcs, strict=True))
    some = most > 0
    graph = csr_array((most[some].astype(np.int32), (start[some], end[some])), shape=(sink + 1, sink + 1))
    return int(maximum_flow(graph, 0, sink).flow_value)


def _shares(sizes: IntArray, members: int, here: Counts) -> tuple[Counts, Counts]:
    """Most that the members of each rack may have of each topic, and of the whole."""
    floor, extras = np.divmod(sizes.astype(np.int64), members)
    total_floor, total_extras = divmod(int(sizes.sum()), members)
    share = floor[:, None] * here + np.minimum(here, extras[:, None])
    return share, total_floor * here + np.minimum(here, total_extras)
