"""Says what is missing for Spark, and what to do about it, before something deep inside fails in its own words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from assigner.errors import AssignerError

_MODULES = {
    "pyspark": "pyspark",
    "pyarrow": "pyarrow",
    "pandas": "pandas",
    "confluent_kafka": "confluent-kafka",
    "sqlalchemy": "SQLAlchemy",
}
OLDEST_SPARK = (4, 2)
OLDEST_JAVA = 17


class MissingRequirement(AssignerError, ImportError):
    """Spark can't work here: a package or Java is missing, or too old."""


def require_extra() -> None:
    # Without pyarrow queries would wait for ever instead of failing.
    missing = [package for module, package in _MODULES.items() if find_spec(module) is None]
    if missing:
        raise MissingRequirement(
            f"assigner.spark needs {', '.join(missing)}; install the extra: pip install 'kafka-assigner[spark]'"
        )
    found = _version("pyspark")
    if found < OLDEST_SPARK:
        wanted = ".".join(map(str, OLDEST_SPARK))
        raise MissingRequirement(
            f"assigner.spark needs pyspark {wanted} or later, {'.'.join(map(str, found))} is installed; "
            f"pip install 'kafka-assigner[spark]'"
        )


def _version(package: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in re.findall(r"\d+", version(package))[:2])
    except PackageNotFoundError:
        # Spark's own distributions bring pyspark without its metadata.
        return OLDEST_SPARK


def require_java() -> None:
    """Call it before a session is made: Spark's own message does not say what is missing."""
    java = _java()
    if java is None:
        raise MissingRequirement(
            f"Spark needs Java {OLDEST_JAVA} and there is none: install it (Debian: apt install "
            f"openjdk-{OLDEST_JAVA}-jre-headless) and set JAVA_HOME, or put java on the PATH"
        )
    told = subprocess.run([java, "-version"], check=False, capture_output=True, text=True).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    if found is not None and int(found[1]) < OLDEST_JAVA:
        raise MissingRequirement(
            f"Spark needs Java {OLDEST_JAVA} or later, {java} is {found[1]}; set JAVA_HOME to a newer one"
        )


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")
