"""What JVMs save their time with that live for a test or some: the settings go to all of them by the environment.

They compile with the quick compiler only, collect garbage in the simple way, and take the classes of Spark from an
archive, if `make test` or `make test-spark` has made one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.archive_spark import archive

_ROOT = Path(__file__).parents[2]
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


def environment() -> dict[str, str]:
    """Variables for Spark sessions of this process and of those it starts."""
    found = archive()
    archived = f' "-XX:SharedArchiveFile={found}"' if found is not None and found.exists() else ""
    return {
        "SPARK_LAUNCHER_OPTS": _QUICK,
        "SPARK_SUBMIT_OPTS": _QUICK + archived,
        "PYSPARK_PYTHON": sys.executable,
        # Workers import the project and the tests from this checkout, whatever directory Spark runs in.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")])),
    }
