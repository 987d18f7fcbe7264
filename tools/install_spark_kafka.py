"""Get Spark's own Kafka source, which does not come with pyspark: its jars, resolved by Maven into the cache directory.

Only `bench.spark` needs it. Plain standard library. Where Maven can't get the release that belongs to pyspark, the
newest one that is known to work with it is taken; `connector()` tells which.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cache import cache_directory

COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
SPARK, KAFKA, COMMONS = "org.apache.spark", "org.apache.kafka", "org.apache.commons"
CONNECTOR, TOKENS = "spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"
# What pyspark has already is left out.
NEEDED = f"{CONNECTOR},{TOKENS},kafka-clients,commons-pool2"
PINNED = (
    (SPARK, CONNECTOR, "4.2.0"),
    (SPARK, TOKENS, "4.0.0"),
    (KAFKA, "kafka-clients", "3.9.2"),
    (COMMONS, "commons-pool2", "2.13.1"),
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"

Artifact = tuple[str, str, str]


def spark_kafka_home() -> Path:
    """Where the jars are kept; it need not exist yet."""
    return cache_directory() / f"spark-kafka-{version('pyspark')}"


def jars() -> list[Path]:
    return sorted(spark_kafka_home().glob("*.jar"))


def connector() -> str:
    """The version of the source that was fetched."""
    (found,) = spark_kafka_home().glob(f"{CONNECTOR}-*.jar")
    return found.stem.removeprefix(f"{CONNECTOR}-")


def unavailable() -> str | None:
    """Why there is no such source here, if so. Fetches it when Maven can."""
    if spark_kafka_home().exists():
        return None
    if shutil.which("mvn") is None:
        return "Maven (mvn) is not on the PATH, so Spark's Kafka source cannot be fetched"
    exact = ((SPARK, CONNECTOR, version("pyspark")),)
    failure = _fetch(exact, alone=False) and _fetch(PINNED, alone=True)
    return f"Spark's Kafka source cannot be fetched: {failure}" if failure else None


def _fetch(artifacts: tuple[Artifact, ...], *, alone: bool) -> str:
    """Put the jars in their place; what went wrong, if something did. `alone`: without what they depend on."""
    home = spark_kafka_home()
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetch-") as scratch:
        project = Path(scratch)
        (project / "pom.xml").write_text(_pom(artifacts, _ALONE if alone else ""))
        options = [f"-DincludeArtifactIds={NEEDED}", f"-DoutputDirectory={project / 'libs'}"]
        command = ["mvn", "--batch-mode", "--quiet", COPY_DEPENDENCIES, *options]
        done = subprocess.run(command, cwd=project, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            return done.stdout.partition("\n")[0]
        # A rename of the whole, so that half of it is never found.
        (project / "libs").rename(home)
    return ""


def _pom(artifacts: tuple[Artifact, ...], more: str) -> str:
    listed = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{number}</version>{more}</dependency>"
        for group, artifact, number in artifacts
    )
    head = "<modelVersion>4.0.0</modelVersion><groupId>throwaway</groupId><artifactId>spark-kafka</artifactId>"
    return f"<project>{head}<version>1</version><dependencies>{listed}</dependencies></project>"


def main() -> int:
    problem = unavailable()
    print(problem or f"Spark's Kafka source {connector()} is there: {spark_kafka_home()}")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
