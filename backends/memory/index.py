"""Keeps an ordered index of keys, in which the keys under a prefix are contiguous.

Keys live in sorted runs of bounded length: adding one costs a search and a short shift, for any number of keys.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

RUN = 512
"""A run is split in two when it grows to twice this."""


class KeyIndex:
    def __init__(self) -> None:
        self._runs: list[list[str]] = []
        self._last: list[str] = []
        """The last key of each run, for binary search."""

    def add(self, key: str) -> None:
        """Add a key that is not in the index."""
        if not self._runs:
            self._runs.append([key])
            self._last.append(key)
            return
        at = min(bisect_left(self._last, key), len(self._runs) - 1)
        run = self._runs[at]
        insort(run, key)
        self._last[at] = run[-1]
        if len(run) >= 2 * RUN:
            self._runs.insert(at, run[:RUN])
            del run[:RUN]
            self._last.insert(at, self._runs[at][-1])

    def remove(self, key: str) -> None:
        """Remove a key that is in the index."""
        at = bisect_left(self._last, key)
        run = self._runs[at]
        del run[bisect_left(run, key)]
        if run:
            self._last[at] = run[-1]
        else:
            del self._runs[at], self._last[at]

    def under(self, prefix: str, after: str = "") -> Iterator[str]:
        """Yield the keys with the prefix that come after `after`, in order. The index must not change during the
        iteration."""
        start = max(prefix, after)
        at = bisect_left(self._last, start)
        if at == len(self._runs):
            return
        offset = bisect_left(self._runs[at], start)
        for run in self._runs[at:]:
            for key in run[offset:] if offset else run:
                if not key.startswith(prefix):
                    return
                if key != after or not after:
                    yield key
            offset = 0
