"""Exports metrics of one instance: groups led, terms won and lost, supervised loops and tasks.

They are read at each scrape, from counts that the instance keeps anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class InstanceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of an instance. The last six fields are counts since its start."""

    tasks: int = 0
    instances: int = 0
    groups: int = 0
    led: int = 0
    misplaced: int = 0
    """Groups led here although another instance is their preferred leader."""
    terms_won: int = 0
    terms_lost: int = 0
    """Terms that ended without the instance resigning."""
    term_failures: int = 0
    handovers: int = 0
    store_read_only: bool = False
    restarts: Mapping[str, int] = {}
    """Restarts by the loop's name, which is a constant of the program."""


Read = Callable[[InstanceSnapshot], int]

_GAUGES: tuple[tuple[str, str, Read], ...] = (
    ("assigner_tasks", "Tasks on the event loop.", lambda it: it.tasks),
    ("assigner_instances", "Live instances that this one sees, itself among them.", lambda it: it.instances),
    ("assigner_groups", "Groups that this instance knows of.", lambda it: it.groups),
    ("assigner_groups_led", "Groups that this instance leads.", lambda it: it.led),
    ("assigner_store_read_only", "1 while the store refuses writes, else 0.", lambda it: int(it.store_read_only)),
    ("assigner_groups_misplaced", "Groups led here that another instance should lead.", lambda it: it.misplaced),
)
_COUNTERS: tuple[tuple[str, str, Read], ...] = (
    ("assigner_terms_won", "Terms won.", lambda it: it.terms_won),
    ("assigner_terms_lost", "Terms that ended against the instance's will.", lambda it: it.terms_lost),
    ("assigner_terms_failed", "Terms ended because their work failed.", lambda it: it.term_failures),
    ("assigner_handovers", "Groups handed over to another instance.", lambda it: it.handovers),
)


def instance_families(instance: InstanceSnapshot) -> Iterator[Metric]:
    for name, says, read in _GAUGES:
        yield GaugeMetricFamily(name, says, value=read(instance))
    for name, says, read in _COUNTERS:
        yield CounterMetricFamily(name, says, value=read(instance))
    restarts = CounterMetricFamily("assigner_loop_restarts", "Failed loops that were restarted.", labels=["loop"])
    for loop, count in instance.restarts.items():
        restarts.add_metric([loop], count)
    yield restarts
