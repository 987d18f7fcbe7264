"""`make install` and the like, interrupted: whenever that happens, the next one makes the environment whole."""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATIENCE = 300.0
PACKAGE = "click"
PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "tried"
version = "1"

[tool.setuptools]
packages = []
"""

pytestmark = [pytest.mark.slow, pytest.mark.processes]


class Checkout:
    """A project of one dependency that is installed by our tool, with our locks for what the tool itself needs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = directory / ".venv"
        self._output = directory / "output"
        (directory / "tools").mkdir()
        (directory / "requirements").mkdir()
        shutil.copy(ROOT / "tools" / "install_environment.py", directory / "tools")
        for lock in ("bootstrap.lock", "build.lock"):
            shutil.copy(ROOT / "requirements" / lock, directory / "requirements")
        found = re.search(
            rf"^{PACKAGE}==.*?(?=^\w)", (ROOT / "requirements" / "run.lock").read_text(), re.MULTILINE | re.DOTALL
        )
        assert found is not None
        (directory / "requirements" / "tried.lock").write_text(found.group())
        (directory / "pyproject.toml").write_text(PROJECT)

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def install(self) -> subprocess.Popen[bytes]:
        tool = [sys.executable, "tools/install_environment.py", "--venv", ".venv", "--lock", "requirements/tried.lock"]
        with self._output.open("wb") as output:
            return subprocess.Popen(
                tool,
                cwd=self.directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # What a shell starts in the background ignores Ctrl-C, and so does all that it starts.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def interrupt(self, process: subprocess.Popen[bytes], place: str, number: signal.Signals) -> int:
        """Send the signal to the tool and all it started, as a terminal does, as soon as the file is there."""
        deadline = time.monotonic() + PATIENCE
        while not any(self.environment.glob(place)):
            assert process.poll() is None, f"it ended before {place} was there: {self.output}"
            assert time.monotonic() < deadline, f"{place} did not appear: {self.output}"
            time.sleep(0.001)
        os.killpg(process.pid, number)
        return process.wait(PATIENCE)

    def holds_everything(self) -> bool:
        """Whether the environment has what the lock lists, and the project."""
        check = f"import {PACKAGE}, pip, importlib.metadata as found; found.version('tried')"
        python = self.environment / "bin" / "python"
        try:
            return subprocess.run([python, "-c", check], check=False, cwd="/", capture_output=True).returncode == 0
        except OSError:
            # Copied so far only that it can't be run.
            return False


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    # Beside other tests several installations may take longer than a test is usually given.
    faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
    return Checkout(tmp_path)


def test_an_installation_that_was_killed_at_any_point_is_made_whole_by_the_next(checkout: Checkout) -> None:
    site = "lib/python3*/site-packages"
    for place in ("bin/python", f"{site}/pip/__init__.py", f"{site}/uv", f"{site}/{PACKAGE}"):
        checkout.interrupt(checkout.install(), place, signal.SIGKILL)
        assert not checkout.holds_everything(), f"killed too late, when {place} was there"
    assert checkout.install().wait(PATIENCE) == 0, checkout.output
    assert checkout.holds_everything()
    assert [line for line in checkout.output.splitlines() if " of 4: " in line] == [
        "  1 of 4: an empty environment",
        "  2 of 4: the installer",
        "  3 of 4: the packages that tried.lock lists",
        "  4 of 4: the project itself",
    ]
    # One that is whole is kept.
    assert checkout.install().wait(PATIENCE) == 0, checkout.output
    assert "1 of 4" not in checkout.output
    assert checkout.holds_everything()


def test_ctrl_c_says_what_it_means_instead_of_a_traceback(checkout: Checkout) -> None:
    status = checkout.interrupt(checkout.install(), "bin/python", signal.SIGINT)
    assert status == 130, checkout.output
    assert "Traceback" not in checkout.output
    assert "Interrupted; the next try begins anew." in checkout.output
