"""The page about the gateway lists exactly the APIs, versions, settings and spans that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from assigner.gateway.classic.handlers import ClassicHandlers
from assigner.gateway.groups import SharedCalls
from assigner.gateway.modern.encoding import DESCRIBE, HEARTBEAT
from assigner.gateway.spans import NAMES
from assigner.gateway.wire.versions import FORWARDED, OWN
from assigner.observability.tracing import COORDINATOR_SPANS, GATEWAY_SPANS
from assigner.settings.catalog import CATALOG

PAGE = (Path(__file__).parents[3] / "docs/reference/gateway.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_apis_that_it_answers_are_listed_with_their_versions() -> None:
    nothing = cast(Any, None)
    handlers = {**SharedCalls({}, nothing, nothing, nothing, nothing).handlers(), **ClassicHandlers(nothing).handlers()}
    answered = {api: (one.first, one.last) for api, one in handlers.items()} | dict(OWN)
    listed = {
        int(api): (int(first), int(last))
        for api, first, last in re.findall(r"^\| (\d+) \| \w+ \| (\d+)-(\d+) \|$", section("APIs"), re.MULTILINE)
    }
    assert listed == answered | {HEARTBEAT: (0, 1), DESCRIBE: (0, 1)}


def test_the_apis_that_it_passes_on_are_listed() -> None:
    passed_on = section("APIs").split("Passed on to the brokers")[1].split("Fetch is offered")[0]
    listed = {int(number) for found in re.findall(r"\(([^)]*)\)", passed_on) for number in re.findall(r"\d+", found)}
    assert listed == FORWARDED


def test_settings_that_it_names_exist() -> None:
    named = set(re.findall(r"`((?:gateway|quotas|kafka|group|instance)\.[a-z_]+)`", PAGE))
    assert named <= set(CATALOG)


def test_the_spans_are_those_that_are_made() -> None:
    named = set(re.findall(r"`(assigner\.(?:gateway|group|coordinator)\.[a-z.-]+)`", PAGE))
    assert named == GATEWAY_SPANS | COORDINATOR_SPANS
    assert set(NAMES.values()) < GATEWAY_SPANS
