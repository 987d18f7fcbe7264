"""Checks the packages and the Java that Spark needs, and raises an error with the remedy before Spark fails inside."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from assigner.errors import AssignerError, how_to_install

_MODULES = {
    "pyspark": "pyspark",
    "pyarrow": "pyarrow",
    "pandas": "pandas",
    "confluent_kafka": "confluent-kafka",
    "sqlalchemy": "SQLAlchemy",
}
OLDEST_SPARK = (4, 2)
FIRST_PANDAS_NOT_KNOWN = (3, 0)
OLDEST_JAVA = 17


class MissingRequirement(AssignerError, ImportError):
    """Spark can't work here: a package or Java is missing, or too old."""


def require_extra() -> None:
    # Without pyarrow queries would hang instead of failing.
    missing = [package for module, package in _MODULES.items() if find_spec(module) is None]
    if missing:
        raise MissingRequirement(f"assigner.spark needs {', '.join(missing)}; {how_to_install('spark')}")
    spark, pandas = _version("pyspark"), _version("pandas")
    if spark is not None and spark < OLDEST_SPARK:
        raise _unfit("pyspark", spark, f"{_text(OLDEST_SPARK)} or later")
    if pandas is not None and pandas >= FIRST_PANDAS_NOT_KNOWN:
        raise _unfit("pandas", pandas, f"below {_text(FIRST_PANDAS_NOT_KNOWN)}, since Spark does not know it yet")


def _unfit(package: str, found: tuple[int, ...], wanted: str) -> MissingRequirement:
    return MissingRequirement(
        f"assigner.spark needs {package} {wanted}; {_text(found)} is installed: {how_to_install('spark')}"
    )


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _version(package: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in re.findall(r"\d+", version(package))[:2])
    except PackageNotFoundError:
        # Spark's own distributions bring pyspark without its metadata.
        return None


def require_java() -> None:
    """Raise `MissingRequirement` without a suitable Java. Call it before a session is made: Spark's own message does
    not say what is missing."""
    java = _java()
    if java is None:
        raise MissingRequirement(
            f"Spark needs Java {OLDEST_JAVA} and there is none: install it (Debian: apt install "
            f"openjdk-{OLDEST_JAVA}-jre-headless) and set JAVA_HOME, or put java on the PATH"
        )
    output = subprocess.run([java, "-version"], check=False, capture_output=True, text=True).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if found is not None and int(found[1]) < OLDEST_JAVA:
        raise MissingRequirement(
            f"Spark needs Java {OLDEST_JAVA} or later, {java} is {found[1]}; set JAVA_HOME to a newer one"
        )


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")
