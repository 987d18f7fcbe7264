"""What is installed has one import name, `assigner`, and works beside a project that has folders named like ours."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.project.installation import Environment, build_sdist, build_wheel, everything
from tests.support.project.namesakes import write_namesakes

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("wheel")]

GROUP = """
import asyncio, json, sys
import backends, strategies
from assigner.client import AssignerConsumer, Handler, Ownership
from assigner.embedded import EmbeddedAssigner


class Worker(Handler):
    def __init__(self) -> None:
        self.owned = set()
        self.all_owned = asyncio.Event()

    async def assigned(self, partition: Ownership) -> None:
        self.owned.add(str(partition))
        if len(self.owned) == 4:
            self.all_owned.set()


async def consume(address: str) -> list[str]:
    worker = Worker()
    async with AssignerConsumer([address], "billing", "worker-1", ["orders"], worker):
        await worker.all_owned.wait()
    return sorted(worker.owned)


with EmbeddedAssigner(topics={"billing": {"orders": 4}}) as assigner:
    owned = asyncio.run(consume(assigner.address))
files = {name: sys.modules[name].__file__ for name in ("assigner.backends", "assigner.strategies")}
print(json.dumps({"owned": owned, "project": [backends.OWNER, strategies.OWNER], "files": files}))
"""


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def modules_below(directories: Iterable[Path]) -> set[str]:
    return {str(path.relative_to(ROOT)) for directory in directories for path in directory.rglob("*.py")}


def test_the_wheel_has_one_top_level_name_and_every_module(wheel: Path) -> None:
    files = files_of(wheel)
    assert {name.partition("/")[0] for name in files if ".dist-info/" not in name} == {"assigner"}
    plugins = modules_below([ROOT / "backends", ROOT / "strategies"])
    assert {f"assigner/{name}" for name in plugins} <= files
    assert modules_below([ROOT / "assigner"]) <= files
    assert "assigner/py.typed" in files
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files)


def test_an_sdist_gives_the_same_wheel(wheel: Path, sources: Path, tmp_path: Path) -> None:
    sdist = build_sdist(sources, tmp_path / "sdist")
    assert files_of(build_wheel(sdist, tmp_path / "wheel")) == files_of(wheel)


def test_a_group_is_driven_in_a_project_with_folders_of_the_same_names(wheel: Path, tmp_path: Path) -> None:
    project = write_namesakes(tmp_path / "project")
    (project / "job.py").write_text(GROUP)
    environment = Environment(tmp_path / "venv", wheel, everything())
    done = environment.run(environment.python, "job.py", cwd=project, variables={"PYTHONPATH": str(project)})
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["owned"] == [f"orders/{number}@1" for number in range(4)]
    assert told["project"] == ["the project", "the project"]
    assert all(file.startswith(str(tmp_path / "venv")) for file in told["files"].values()), told["files"]
