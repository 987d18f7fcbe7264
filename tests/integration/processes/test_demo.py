"""The demo from beginning to end, and stopped in the middle, with real processes, as `make demo` runs it where there
is no terminal."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.service_processes import until


@pytest.mark.processes
def test_the_demo_plays_to_its_end_and_can_be_recorded(tmp_path: Path) -> None:
    record = tmp_path / "demo.svg"
    command = [sys.executable, "-m", "assigner.cli", "demo", "--speed", "8", "--no-wait", "--record", str(record)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    for number in range(1, 5):
        assert f"{number}/4 " in ended.stdout
    assert re.search("worker-3 ready +32", ended.stdout)
    assert re.search("worker-1 gone +0", ended.stdout)
    assert "draining" in record.read_text()


@pytest.mark.processes
def test_the_demo_with_routers_loses_no_request(tmp_path: Path) -> None:
    record = tmp_path / "demo.txt"
    command = [sys.executable, "-m", "assigner.cli", "demo", "--routers", "--speed", "4", "--no-wait"]
    ended = subprocess.run([*command, "--record", str(record)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    for number in range(1, 6):
        assert f"{number}/5 " in ended.stdout
    assert re.search("pod-3 ready +32", ended.stdout)
    assert re.search("pod-2 gone +0", ended.stdout)
    assert "router-1 is gone" in ended.stdout
    # The pod was killed with requests on their way to it.
    last = ended.stdout.rpartition("answered ")[2]
    answered, lost = re.match(r"([\d,]+)   lost ([\d,]+) ", last).groups()  # type: ignore[union-attr]
    stashed, retries = re.search(r"were stashed ([\d,]+)   retries ([\d,]+) ", last).groups()  # type: ignore[union-attr]
    assert number_in(answered) > 100
    assert number_in(lost) == 0
    assert number_in(stashed) > 0
    assert number_in(retries) > 0
    assert set(re.findall(r"\d/5 ", record.read_text())) == {f"{number}/5 " for number in range(1, 6)}


def number_in(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.processes
@pytest.mark.parametrize("options", [[], ["--routers"]], ids=["workers", "routers"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_demo_that_is_ended_in_the_middle_leaves_no_process_behind(
    number: signal.Signals, options: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "assigner.cli", "demo", "--record", str(tmp_path / "demo.svg"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        wanted = 5 if options else 3
        until(lambda: len(psutil.Process(demo.pid).children()) == wanted, 60, "the demo has started its processes")
        children = psutil.Process(demo.pid).children()
        demo.send_signal(number)
        output, _ = demo.communicate(timeout=60)
    until(lambda: not any(is_alive(child) for child in children), 60, "the demo's processes have ended")
    if number is signal.SIGKILL:
        assert demo.returncode == -number
    else:
        assert (demo.returncode, output.splitlines()[-1]) == (0, f"stopped; nothing is recorded in {command[5]}")


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; what is only not reaped yet by whoever inherited it does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
