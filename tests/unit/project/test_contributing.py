"""What CONTRIBUTING.md tells people to type and where it sends them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", PAGE, re.MULTILINE))))
def test_make_knows_the_target(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:tests|docs|protos|assigner)/[\w./]*)`", PAGE))))
def test_the_places_are_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_map_has_every_package() -> None:
    packages = {path.stem for path in (ROOT / "assigner").iterdir() if path.is_dir() and path.name != "__pycache__"}
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    missing = packages - set(re.findall(r"`(\w+)`", rows))
    assert not missing
