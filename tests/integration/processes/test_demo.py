"""The demo from beginning to end, with real processes, as `make demo` runs it where there is no terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_the_demo_plays_to_its_end_and_can_be_recorded(tmp_path: Path) -> None:
    record = tmp_path / "demo.svg"
    command = [sys.executable, "-m", "assigner.cli", "demo", "--speed", "8", "--no-wait", "--record", str(record)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    for number in range(1, 5):
        assert f"{number}/4 " in ended.stdout
    assert "worker-3 ready 32" in ended.stdout
    assert "worker-1 gone" in ended.stdout
    assert "draining" in record.read_text()


def test_the_demo_with_routers_loses_no_request(tmp_path: Path) -> None:
    record = tmp_path / "demo.txt"
    command = [sys.executable, "-m", "assigner.cli", "demo", "--routers", "--speed", "4", "--no-wait"]
    ended = subprocess.run([*command, "--record", str(record)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    for number in range(1, 6):
        assert f"{number}/5 " in ended.stdout
    assert "pod-3 ready 32" in ended.stdout
    assert "pod-2 gone" in ended.stdout
    assert "router-1 is gone" in ended.stdout
    # The pod was killed with requests on their way to it.
    last = ended.stdout.rpartition("answered ")[2]
    answered, again, lost = re.match(r"([\d,]+)   sent again (\d+)   lost (\d+)", last).groups()  # type: ignore[union-attr]
    assert int(answered.replace(",", "")) > 100
    assert int(again) > 0
    assert int(lost) == 0
    assert "stashed" in record.read_text()
