"""Make a virtual environment hold exactly what a lock file lists, and the project itself.

Plain standard library: this runs before anything is installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
OLDEST_PYTHON = (3, 11)
MARK = ".unfinished"
INTERRUPTED = 130
"""What a shell gives back for a command that Ctrl-C ended."""
TELL_SECONDS = 10.0


def _run(*command: str | Path, quiet: bool = False) -> bool:
    """Run a command to its end; told now and then while it takes long."""
    # Ctrl-C reaches this process alone, which then ends the command: one message instead of two tracebacks. So the
    # command inherits a mask that blocks it. A `preexec_fn` that ignores it would lose a Ctrl-C that comes during the
    # fork, because Python swallows what is raised there.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            [str(part) for part in command], cwd=ROOT, stdout=subprocess.DEVNULL if quiet else None
        )
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return _wait(process)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait(process: subprocess.Popen[bytes]) -> bool:
    """Wait for the end of a command, say now and then that it still runs, and return whether it succeeded."""
    began = time.monotonic()
    while True:
        try:
            return process.wait(TELL_SECONDS) == 0
        except subprocess.TimeoutExpired:
            print(f"    still at it, {time.monotonic() - began:.0f} s", flush=True)


def _tell(number: int, what: str) -> None:
    print(f"  {number} of 4: {what}", flush=True)


def _with_uv(python: Path, lock: Path) -> bool:
    """Install by uv, which is some ten times faster and removes what the lock no longer lists."""
    uv = python.with_name("uv")
    bootstrap = REQUIREMENTS / "bootstrap.lock"
    _tell(2, "the installer")
    if not _run(python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", bootstrap):
        return False
    _tell(3, f"the packages that {lock.name} lists")
    sync = (uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python)
    if not _run(*sync, lock, REQUIREMENTS / "build.lock"):
        return False
    _tell(4, "the project itself")
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
    """Return the interpreter of the environment at *path*; one that is not there, or not whole, is made from nothing.

    While something is installed a mark lies in it, so that the next try knows what this one left behind."""
    python, mark = path / "bin" / "python", path / MARK
    if mark.exists() or not _has_pip(python):
        if path.exists():
            print("  it was left behind unfinished and is made anew", flush=True)
            # First of all: without it nobody takes what is left for an environment.
            python.unlink(missing_ok=True)
            shutil.rmtree(path)
        _tell(1, "an empty environment")
        path.mkdir(parents=True)
        mark.touch()
        # Without pip, which venv would install by a process that answers Ctrl-C with a traceback.
        venv.create(path, with_pip=False)
        if not _run(python, "-m", "ensurepip", "--upgrade", "--default-pip", quiet=True):
            raise OSError(f"pip could not be installed into {path}; the reason is above")
    mark.touch()
    return python


def _has_pip(python: Path) -> bool:
    command = [str(python), "-c", "import pip._internal.cli.main"]
    return python.exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0


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
    path = arguments.venv.absolute()
    try:
        installed = _install(_environment(path), lock)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; the next try begins anew.", file=sys.stderr)
        return INTERRUPTED
    # What failed in order left nothing half done.
    (path / MARK).unlink(missing_ok=True)
    return 0 if installed else 1


def _install(python: Path, lock: Path) -> bool:
    if _with_uv(python, lock):
        return True
    print("uv could not do it (its message is above); trying pip ...", file=sys.stderr, flush=True)
    if _with_pip(python, lock):
        return True
    print(f"{lock.name} could not be installed; the reason is above.", file=sys.stderr)
    return False


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main())
