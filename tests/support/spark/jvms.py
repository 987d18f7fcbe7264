"""What JVMs save their time with that live for a test or some: the settings go to all of them by the environment.

They compile with the quick compiler only, collect garbage in the simple way, and take the classes of Spark from an
archive, if `make test` or `make test-spark` has made one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.archive_spark import archive

_ROOT = Path(__file__).parents[3]
_WORKER_PYTHON = Path(__file__).parent / "worker_python.sh"
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


def environment(python: str = sys.executable) -> dict[str, str]:
    """Variables for Spark sessions of this process and of those it starts, whose workers run `python`."""
    found = archive()
    archived = f' "-XX:SharedArchiveFile={found}"' if found is not None and found.exists() else ""
    return {
        "SPARK_LAUNCHER_OPTS": _QUICK,
        "SPARK_SUBMIT_OPTS": _QUICK + archived,
        "PYSPARK_PYTHON": str(_WORKER_PYTHON),
        "WORKER_PYTHON": python,
        # Workers import the project and the tests from this checkout, whatever directory Spark runs in.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")])),
    }
