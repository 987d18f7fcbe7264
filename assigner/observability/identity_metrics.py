"""Exports metrics of callers' identities: denied calls, tokens, and how old the keys and rules in force are.

They are read at each scrape, from counts that the server keeps anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class IdentityFiles(msgspec.Struct, frozen=True):
    """Files that identities are recognized by."""

    age: float
    """Seconds since they were last seen to be what is in force: rises for as long as they can't be read."""
    reloads: int
    failures: int


class IdentitySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    denied: Mapping[tuple[str, str], int] = {}
    """Denied calls by kind and claim, which are constants of the program."""
    files: Mapping[str, IdentityFiles] = {}
    """By what they hold: `keys`, `certificates`."""
    tokens: Mapping[str, int] = {}
    """Verifications by outcome. A token that is remembered is not verified again."""


def identity_families(identity: IdentitySnapshot) -> Iterator[Metric]:
    denied = CounterMetricFamily("assigner_auth_denied", "Calls that were denied.", labels=["kind", "claim"])
    for (kind, claim), count in identity.denied.items():
        denied.add_metric([kind, claim], count)
    yield denied
    age = GaugeMetricFamily("assigner_auth_files_age_seconds", "Age of what callers are known by.", labels=["files"])
    reloads = CounterMetricFamily("assigner_auth_reloads", "Reloads of that.", labels=["files"])
    failures = CounterMetricFamily("assigner_auth_reload_failures", "Reloads that failed.", labels=["files"])
    for what, files in identity.files.items():
        age.add_metric([what], files.age)
        reloads.add_metric([what], files.reloads)
        failures.add_metric([what], files.failures)
    yield from (age, reloads, failures)
    tokens = CounterMetricFamily("assigner_auth_tokens", "Tokens that were verified.", labels=["outcome"])
    for outcome, count in identity.tokens.items():
        tokens.add_metric([outcome], count)
    yield tokens
