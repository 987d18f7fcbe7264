"""A backend that somebody else wrote: found by its entry point, told where its store is, checked by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.processes.test_serve import WITHIN, line_with

pytestmark = pytest.mark.processes

PACKAGE = '''
"""A store in memory that wants to know a path, as one on a disk would."""
from pathlib import Path

from assigner.errors import InvalidInput
from assigner.backends.memory import MemoryBackend


class AcmeBackend(MemoryBackend):
    async def open(self, settings, clock):
        if "path" not in settings.options:
            raise InvalidInput("store.options.path is missing; name the directory that acme keeps its data in")
        told = {"options": dict(settings.options), "endpoints": list(settings.endpoints)}
        Path(settings.options["path"]).write_text(repr(told))
        return await super().open(settings, clock)


backend = AcmeBackend()
'''


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which the package is installed, as far as Python's metadata goes."""
    (tmp_path / "acme_backend.py").write_text(PACKAGE)
    metadata = tmp_path / "acme_backend-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-backend\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[assigner.backends]\nacme = acme_backend:backend\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def serve(environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "assigner.cli", "serve", "--store", "acme", "--grpc-port", "0", "--http-port", "0"]
    return subprocess.Popen(
        [*command, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_it_gets_the_options_and_endpoints_that_are_its_own_affair(installed: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / "told"
    settings = tmp_path / "settings.toml"
    settings.write_text(
        f'[store]\nendpoints = ["postgresql://h/db", "/var/lib/acme.db"]\n'
        f"[store.options]\npath = {json.dumps(str(place))}\nflavour = 'vanilla'\n"
    )
    process = serve(installed, "--config", str(settings))
    try:
        assert line_with(process.stderr, "service_started")["store"] == "acme"
    finally:
        process.terminate()
        process.communicate(timeout=WITHIN)
    told = {
        "options": {"path": str(place), "flavour": "vanilla"},
        "endpoints": ["postgresql://h/db", "/var/lib/acme.db"],
    }
    assert place.read_text() == repr(told)


def test_what_the_backend_refuses_is_reported_as_a_wrong_setting(installed: dict[str, str]) -> None:
    process = serve(installed)
    _, errors = process.communicate(timeout=WITHIN)
    assert process.returncode == 2
    assert "store.options.path is missing; name the directory" in errors
    assert "Traceback" not in errors


def test_an_endpoint_that_etcd_can_not_use_is_refused_by_etcd(installed: dict[str, str]) -> None:
    process = serve(installed, "--store", "etcd", "--endpoints", "/var/lib/acme.db")
    _, errors = process.communicate(timeout=WITHIN)
    assert process.returncode == 2
    assert "etcd endpoint '/var/lib/acme.db' is not host:port" in errors
    assert "Traceback" not in errors
