"""What `pip install` brings without an extra joins a group, and holds nothing of the service."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import Distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from assigner.__main__ import SERVER_MODULES
from assigner.embedded import EmbeddedAssigner
from tests.support.project.installation import ROOT, Environment, required_by

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("wheel")]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVER = PROJECT["optional-dependencies"]["server"]

CONSUMER = """
import asyncio, json, sys
from assigner.client import AssignerConsumer, Handler, Ownership


class Worker(Handler):
    def __init__(self) -> None:
        self.owned = set()
        self.all_owned = asyncio.Event()

    async def assigned(self, partition: Ownership) -> None:
        self.owned.add(str(partition))
        if len(self.owned) == 4:
            self.all_owned.set()


async def main() -> None:
    imported = sorted(sys.modules)
    worker = Worker()
    async with AssignerConsumer([sys.argv[1]], "billing", "worker-1", ["orders"], worker):
        await worker.all_owned.wait()
    print(json.dumps({"owned": sorted(worker.owned), "imported": imported, "after": sorted(sys.modules)}))


asyncio.run(main())
"""


def names(packages: list[Distribution]) -> set[str]:
    return {canonicalize_name(package.metadata["Name"]) for package in packages}


def requirement_names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(re.split(r"[<>=!~\[ ]", text)[0]) for text in requirements}


@pytest.fixture(scope="module")
def consumer(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the project and its dependencies, without any extra."""
    packages = required_by(*PROJECT["dependencies"])
    return Environment(tmp_path_factory.mktemp("consumer") / "venv", wheel, packages)


def test_no_library_of_the_service_comes_with_the_client() -> None:
    assert not names(required_by(*PROJECT["dependencies"])) & requirement_names(SERVER)


def test_the_program_knows_the_modules_of_the_extra() -> None:
    here = packages_distributions()
    wanted = requirement_names(SERVER)
    assert {canonicalize_name(one) for module in SERVER_MODULES for one in here[module]} == wanted


def test_a_client_without_extras_joins_a_group_and_imports_nothing_heavy(consumer: Environment, tmp_path: Path) -> None:
    (tmp_path / "consumer.py").write_text(CONSUMER)
    with EmbeddedAssigner(topics={"billing": {"orders": 4}}) as service:
        done = consumer.run(consumer.python, "consumer.py", service.address, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["owned"] == [f"orders/{number}@1" for number in range(4)]
    ours = {name.split(".")[1] for name in told["after"] if name.startswith("assigner.")}
    assert ours <= {"aio", "client", "clock", "core", "errors", "logs", "model", "proto", "secret_files"}


@pytest.mark.parametrize("words", [["serve"], ["groups"], ["--help"], ["pipeline", "simulate", "--sample"]])
def test_a_command_without_the_extra_says_what_to_install(
    consumer: Environment, words: list[str], tmp_path: Path
) -> None:
    done = consumer.run(consumer.bin / "assigner", *words, cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: the assigner command needs click; ")
    assert line.endswith("pip install '.[server]'")


def test_a_command_that_meets_a_missing_module_of_the_extra_says_the_same(wheel: Path, tmp_path: Path) -> None:
    """Many environments have click for another reason."""
    packages = required_by(*PROJECT["dependencies"], "click", "rich")
    partly = Environment(tmp_path / "venv", wheel, packages)
    done = partly.run(partly.bin / "assigner", "serve", cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"Error: the assigner command needs \w+; .* pip install '\.\[server\]'", line)
