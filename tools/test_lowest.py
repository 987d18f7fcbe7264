"""Run the tests of client and logs with the lowest versions that pyproject.toml allows: make test-lowest.

The lowest versions of the dependencies lie in an environment of their own, in front of the packages of the development
environment, which the tests need besides. Without a package index nothing is tested: the program says that it skipped
the tests, and exits with 2.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = 2
TESTS = ("tests/unit/client", "tests/unit/logs", "tests/integration/client")


def lowest() -> list[str]:
    """Every dependency of the client at its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [re.sub(r"^([\w.-]+)>=([\w.]+).*$", r"\1==\2", text) for text in project["dependencies"]]


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=False)
        python = Path(directory) / "bin" / "python"
        uv = Path(sys.executable).with_name("uv")
        os.environ.setdefault("UV_SYSTEM_CERTS", "true")
        install: list[str | Path] = [uv, "pip", "install", "--quiet", "--no-deps", "--python", python, *lowest()]
        if subprocess.run(install, cwd=ROOT, check=False).returncode:
            print("skipped: the lowest versions can't be installed here (the reason is above), so nothing was tested")
            return SKIPPED
        site = sysconfig.get_path("purelib", "venv", vars={"base": directory, "platbase": directory})
        Path(site, "development.pth").write_text(sysconfig.get_path("purelib") + "\n")
        print("testing with", *lowest(), flush=True)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        tests: list[str | Path] = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, *sys.argv[1:]]
        return subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
