"""The package can be imported as it lies there, installed or not, and its client without what is heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import assigner

ROOT = Path(__file__).parents[3]
HEAVY = {"aetcd", "aiohttp", "click", "grpc", "numpy", "prometheus_client", "rich", "structlog"}


def test_the_package_is_imported_also_where_it_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "assigner").symlink_to(ROOT / "assigner")
    # Without `site` there are no installed packages, and so nothing that knows a version.
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import assigner; print(assigner.__version__)"
    found = subprocess.run([sys.executable, "-S", "-c", program], cwd="/", capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip()) == (0, "unknown"), found.stderr


def test_an_installed_package_knows_its_version() -> None:
    assert assigner.__version__[0].isdecimal()


def test_the_client_imports_nothing_heavy_though_it_is_installed() -> None:
    program = "import sys, assigner.client; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(found.stdout.split())
    assert "grpclib.client" in imported
    assert not imported & HEAVY
