"""The project as others get it: its wheel, and environments that hold the wheel and chosen packages.

The packages are links to those of the development environment, so that nothing is downloaded and an environment is made
in a second.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = "kafka-assigner"
# All that a wheel is built from.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "assigner", "backends", "strategies")


def copy_sources(target: Path) -> Path:
    """Copy what a wheel is built from, links as links, as `git clone` and Docker's COPY do."""
    target.mkdir(parents=True)
    for name in SOURCES:
        origin = ROOT / name
        if origin.is_dir():
            leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(origin, target / name, symlinks=True, ignore=leftovers)
        else:
            shutil.copy(origin, target / name)
    return target


def build_wheel(source: Path, target: Path) -> Path:
    """Build the wheel of *source*, a directory or an sdist, into the directory *target*."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(target))
    _pip("wheel", *options, str(source))
    (wheel,) = target.glob("*.whl")
    return wheel


def build_sdist(source: Path, target: Path) -> Path:
    program = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    _run([sys.executable, "-c", program, str(target)], cwd=source)
    (sdist,) = target.glob("*.tar.gz")
    return sdist


class Environment:
    """A virtual environment with the wheel, and of the packages here those that were asked for."""

    def __init__(self, path: Path, wheel: Path, packages: Iterable[Distribution]) -> None:
        venv.create(path, with_pip=False)
        self.bin = path / "bin"
        self.python = self.bin / "python"
        self._site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(path), "platbase": str(path)}))
        for package in packages:
            self._link(package)
        _pip("--python", str(self.python), "install", "--quiet", "--no-deps", "--no-index", str(wheel))

    def run(
        self, *command: str | Path, cwd: Path, variables: Mapping[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end in *cwd*, with nothing of this process's environment that leads to the checkout."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment = {**kept, "PATH": f"{self.bin}:{os.environ.get('PATH', os.defpath)}", **(variables or {})}
        words = [str(word) for word in command]
        return subprocess.run(
            words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=timeout
        )

    def _link(self, package: Distribution) -> None:
        for name in {Path(file).parts[0] for file in package.files or () if ".." not in Path(file).parts}:
            self._link_path(Path(str(package.locate_file(name))), self._site / name)

    def _link_path(self, origin: Path, link: Path) -> None:
        if origin.is_dir() and not any(origin.glob("__init__.*")) and origin.suffix not in (".dist-info", ".libs"):
            # Several distributions share such a directory, as they do `google`.
            link.mkdir(exist_ok=True)
            for inner in origin.iterdir():
                self._link_path(inner, link / inner.name)
        elif not link.is_symlink() and origin.name != "__pycache__":
            link.symlink_to(origin)


def everything() -> list[Distribution]:
    """All packages of the development environment but the project."""
    return [found for found in distributions() if canonicalize_name(found.metadata["Name"]) != PROJECT]


def required_by(*requirements: str) -> list[Distribution]:
    """The packages of the development environment that pip would install for these requirements."""
    found: dict[str, Distribution] = {}
    wanted = [(Requirement(text), "") for text in requirements]
    while wanted:
        requirement, extra = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        package = distribution(name)
        inner = [Requirement(text) for text in package.requires or ()]
        wanted.extend((one, asked) for one in inner for asked in requirement.extras)
        if name not in found:
            found[name] = package
            wanted.extend((one, "") for one in inner)
    return list(found.values())


def _pip(*arguments: str) -> None:
    _run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], cwd=ROOT)


def _run(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
