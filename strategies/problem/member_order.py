"""Orders members so that of otherwise equal ones the less busy comes first, then the first by name.

Among equal members, strategies prefer the one with the lower number. So members are renumbered, from the least busy one
on, before a problem is solved, and back afterwards. The load of nodes is rounded coarsely: it changes all the time, and
must not change assignments without need.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assigner.strategy import NONE, FloatArray, IntArray, Members, Problem

_STEPS = 4
"""Classes of load up to the mean: a difference of a quarter of the mean counts."""

_MOST = 64
"""The maximum of classes: above sixteen times the mean all are equal."""


def serving_order(load: FloatArray | None) -> IntArray | None:
    """Order members from the least busy one on; None: in their own order."""
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
    """Renumber the members of a problem in this order."""
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
    """Translate owners back to the original numbers."""
    return np.asarray(np.append(order, np.int32(NONE))[owner])
