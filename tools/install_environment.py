"""Make a virtual environment hold exactly what a lock file lists, and the project itself.

Plain standard library: this runs before anything is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
OLDEST_PYTHON = (3, 11)


def _run(*command: str | Path) -> bool:
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode == 0


def _with_uv(python: Path, lock: Path) -> bool:
    """Install by uv, which is some ten times faster and removes what the lock no longer lists."""
    uv = python.with_name("uv")
    bootstrap = REQUIREMENTS / "bootstrap.lock"
    if not _run(python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", bootstrap):
        return False
    sync = (uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python)
    if not _run(*sync, lock, REQUIREMENTS / "build.lock"):
        return False
    install = (uv, "pip", "install", "--quiet", "--python", python)
    return _run(*install, "--no-deps", "--no-build-isolation", "--editable", ROOT)


def _with_pip(python: Path, lock: Path) -> bool:
    """Install by pip: it reads the machine's pip configuration (an own index, say), uv does not."""
    install = (python, "-m", "pip", "install", "--quiet")
    locks = ("-r", lock, "-r", REQUIREMENTS / "build.lock")
    return _run(*install, "--require-hashes", *locks) and _run(
        *install, "--no-deps", "--no-build-isolation", "--editable", ROOT
    )


def _environment(path: Path) -> Path:
    """Return the interpreter of the environment at *path*, creating the environment where needed."""
    python = path / "bin" / "python"
    if not python.exists():
        venv.create(path, with_pip=True, clear=path.exists())
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--lock", type=Path, required=True)
    arguments = parser.parse_args()
    if sys.version_info < OLDEST_PYTHON:
        print(f"Python {sys.version.split()[0]} is too old: 3.11 or newer is needed.", file=sys.stderr)
        print("Name another one with: make PYTHON=/path/to/python3.11 ...", file=sys.stderr)
        return 1
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    # Trust what the machine trusts: behind a company's proxy uv's own list of authorities is not enough.
    os.environ.setdefault("UV_SYSTEM_CERTS", "true")
    lock = arguments.lock.resolve()
    print(f"Installing {lock.name} into {arguments.venv} ...", flush=True)
    python = _environment(arguments.venv.absolute())
    if _with_uv(python, lock):
        return 0
    print("uv could not do it (its message is above); trying pip ...", file=sys.stderr, flush=True)
    if _with_pip(python, lock):
        return 0
    print(f"{lock.name} could not be installed; the reason is above.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
