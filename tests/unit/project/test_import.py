"""The package can be imported as it lies there, installed or not, and its client without what is heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import assigner
import assigner.client

ROOT = Path(__file__).parents[3]
HEAVY = {"aetcd", "aiohttp", "click", "grpc", "numpy", "prometheus_client", "rich", "structlog"}
FOR_OPERATORS = {"assigner.client.admin", "assigner.proto.kafka_assigner.v1", "betterproto2", "grpclib.server"}
"""The generated messages, what they import, and the one module of the client that uses them."""
PACKAGE_READERS = {"email", "importlib.metadata", "importlib.resources", "zipfile"}
"""What reading a package's version or files may bring along."""


def test_the_package_is_imported_also_where_it_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "assigner").symlink_to(ROOT / "assigner")
    # Without `site` there are no installed packages, and so nothing that knows a version.
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import assigner; print(assigner.__version__)"
    found = subprocess.run([sys.executable, "-S", "-c", program], cwd="/", capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip()) == (0, "unknown"), found.stderr


def test_an_installed_package_knows_its_version() -> None:
    assert assigner.__version__[0].isdecimal()


def test_the_client_imports_nothing_heavy_though_it_is_installed() -> None:
    imported = modules_after("import assigner.client")
    assert "grpclib.client" in imported
    assert not imported & HEAVY


def test_a_consumer_imports_neither_generated_messages_nor_what_reads_packages() -> None:
    imported = modules_after("from assigner.client import AssignerConsumer")
    assert "assigner.proto.runtime" in imported
    assert imported & (FOR_OPERATORS | PACKAGE_READERS) == set()


def test_the_operators_client_brings_the_generated_messages() -> None:
    assert modules_after("from assigner.client import AdminClient") >= FOR_OPERATORS


def test_all_public_names_of_the_client_can_be_had() -> None:
    assert [name for name in assigner.client.__all__ if not hasattr(assigner.client, name)] == []
    assert assigner.client.AdminClient.__module__ == "assigner.client.admin"


def test_a_name_that_the_client_does_not_have_is_named() -> None:
    with pytest.raises(AttributeError, match=r"module 'assigner\.client' has no attribute 'Admin'"):
        _ = assigner.client.Admin  # type: ignore[attr-defined]


def test_a_router_imports_no_more_than_a_consumer_does() -> None:
    imported = modules_after("from assigner.routing import Router")
    assert "assigner.proto.runtime" in imported
    assert imported & (HEAVY | FOR_OPERATORS | PACKAGE_READERS) == set()


def test_a_program_that_sends_http_without_aiohttp_is_told_the_extra() -> None:
    program = "import sys; sys.modules['aiohttp'] = None; import assigner.routing.aiohttp"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: assigner.routing.aiohttp needs aiohttp" in found.stderr
    assert "pip install '.[aiohttp]'" in found.stderr


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds once it has run the statement."""
    program = f"{statement}; import sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(found.stdout.split())
