"""Keeps Python's garbage collector from holding the event loop up.

A full collection visits every object that could be part of a cycle: with thousands of open streams that takes tenths
of a second, in which no lease is renewed. Nearly everything here is freed by counting references; so what exists once
the service is up is set aside for good, and collections become rare. For a process of our own only: an embedding
program decides for itself.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE, OLD = 50_000, 20, 100
"""Allocations before a collection of the youngest objects; how many of those before one of the next age, twice."""


def settle_in() -> None:
    """Call once, when everything is imported and started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
