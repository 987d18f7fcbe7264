"""What the images are made of is pinned: every package by hash, every base image by whoever builds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.project.dockerfile import read_dockerfile

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILES = [ROOT / "Dockerfile", ROOT / "deploy" / "spark" / "Dockerfile"]

each = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))


@each
def test_base_images_can_be_named_by_digest_without_an_edit(path: Path) -> None:
    for line in re.findall(r"^FROM (.+)$", path.read_text(), re.MULTILINE):
        image = line.split()[0]
        assert re.fullmatch(r"\$\{\w+_IMAGE\}", image), f"{image} is written into the file; make it an argument"


@each
def test_packages_are_installed_by_hash_and_the_project_without_dependencies(path: Path) -> None:
    for stage in read_dockerfile(path):
        for step in stage.all("RUN"):
            for command in re.split(r"&&|;", step.arguments):
                if re.search(r"\bpip (install|wheel)\b", command):
                    assert "--require-hashes" in command or "--no-deps" in command, command


def test_the_lock_of_the_spark_image_has_its_spark_and_the_versions_of_the_other_locks() -> None:
    def versions(name: str) -> dict[str, str]:
        return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE))

    spark, dev = versions("spark.lock"), versions("dev.lock")
    assert spark.items() <= dev.items()
    (version,) = re.findall(r"^ARG SPARK_VERSION=(.+)$", DOCKERFILES[1].read_text(), re.MULTILINE)
    assert spark["pyspark"] == version
    assert required("spark") <= {name.lower() for name in spark}


def required(extra: str) -> set[str]:
    """The packages that the extra names, itself or by another extra."""
    requirements = PROJECT["dependencies"] + PROJECT["optional-dependencies"][extra]
    ours = f"{PROJECT['name']}["
    inner = [name for text in requirements if text.startswith(ours) for name in text[len(ours) : -1].split(",")]
    named = {re.split(r"[<>=\[]", text)[0].lower() for text in requirements if not text.startswith(ours)}
    return named.union(*(required(name) for name in inner))


def test_the_lock_of_the_service_has_what_it_needs_and_no_spark() -> None:
    text = (ROOT / "requirements" / "run.lock").read_text()
    locked = {name.lower() for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    assert required("server") | required("kafka") <= locked
    assert "pyspark" not in locked


def test_each_package_of_the_spark_image_has_a_hash() -> None:
    text = (ROOT / "requirements" / "spark.lock").read_text().replace("\\\n", " ")
    packages = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert packages
    assert all("--hash=sha256:" in line for line in packages)
