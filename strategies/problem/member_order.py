"""Who is served first: the less busy, then the first by name.

Where nothing else tells members apart, strategies give to the one with the lower number. So members are renumbered,
from the least busy one on, before a problem is solved, and back afterwards. How busy nodes are is coarsely rounded:
it changes all the time, and must not shuffle who gets what for nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assigner.strategy import NONE, FloatArray, IntArray, Members, Problem

_STEPS = 4
"""Classes of busyness up to the mean: a quarter of the mean makes a difference."""

_MOST = 64
"""So many classes at most: beyond sixteen times the mean all are alike."""


def serving_order(load: FloatArray | None) -> IntArray | None:
    """Members from the least busy one on; None: in their own order."""
    if load is None:
        return None
    known = np.isfinite(load)
    mean = float(load[known].mean()) if known.any() else 0.0
    if mean <= 0:
        return None
    relative = np.where(known, load, mean) / mean
    classes = np.floor(np.minimum(relative * _STEPS, _MOST))
    order = np.argsort(classes, kind="stable").astype(np.int32)
    return None if bool((np.diff(order) > 0).all()) else order


def renumbered(problem: Problem, order: IntArray) -> Problem:
    """The same problem with members in this order."""
    number = np.append(np.argsort(order), NONE).astype(np.int32)
    members = problem.members
    return replace(
        problem,
        members=Members(
            members.capacity[order],
            members.rack[order],
            members.subscription[order],
            members.hold[order],
            members.cap[order],
            None,
            None if members.key is None else members.key[order],
        ),
        owner=number[problem.owner],
        standbys=number[problem.standbys] if problem.standbys.size else problem.standbys,
    )


def original(owner: IntArray, order: IntArray) -> IntArray:
    """Owners by their own numbers again."""
    return np.asarray(np.append(order, np.int32(NONE))[owner])
