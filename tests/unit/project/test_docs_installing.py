"""How to install the project, said in one way everywhere, and true: nothing is published, so it is from a checkout."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from assigner.errors import how_to_install
from tests.unit.project.test_docs import PAGES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"])
SOURCES = [path for name in ("assigner", "backends", "strategies") for path in (ROOT / name).rglob("*.py")]
_FROM_CHECKOUT = re.compile(r"pip install '\.\[([\w,]+)\]'")


def extras_in(text: str) -> set[str]:
    return {extra for extras in _FROM_CHECKOUT.findall(text) for extra in extras.split(",")}


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_asked_of_a_package_index_that_does_not_have_it(path: Path) -> None:
    text = path.read_text()
    assert "kafka-assigner[" not in text
    assert "pip install kafka-assigner" not in text
    assert extras_in(text) <= set(EXTRAS)


def test_the_pages_that_need_an_extra_say_how_to_get_it() -> None:
    for page in ("README.md", "docs/how-to/spark.md", "docs/how-to/pipelines.md", "docs/how-to/test-a-spark-job.md"):
        assert "spark" in extras_in((ROOT / page).read_text()), page
    how_to = ("consume-with-aiokafka", "embed", "route-requests", "shard-a-service")
    for page in ("README.md", "docs/reference/cli.md", *(f"docs/how-to/{name}.md" for name in how_to)):
        assert "server" in extras_in((ROOT / page).read_text()), page
    assert "aiokafka" in extras_in((ROOT / "docs/how-to/consume-with-aiokafka.md").read_text())
    assert "aiohttp" in extras_in((ROOT / "docs/how-to/shard-a-service.md").read_text())


@pytest.mark.processes
@pytest.mark.parametrize("extra", EXTRAS)
def test_the_command_in_the_message_installs_that_extra(extra: str, tmp_path: Path) -> None:
    """All but the download: pip builds the project's metadata and says what it would install."""
    found = _FROM_CHECKOUT.search(how_to_install(extra))
    assert found is not None
    asked = found.group().removeprefix("pip install ").strip("'")
    report = tmp_path / "report.json"
    options = ["--dry-run", "--no-deps", "--ignore-installed", "--no-build-isolation", "--report", str(report)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options, asked]
    done = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "does not provide the extra" not in done.stderr
    (planned,) = json.loads(report.read_text())["install"]
    assert planned["metadata"]["name"] == PROJECT["name"]
    assert planned["requested_extras"] == [extra]
