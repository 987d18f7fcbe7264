"""Get a current Kafka for the tests: its jars, resolved by Maven into the cache directory.

Plain standard library. Exit status 0 says that Kafka is there and that Java can run it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cache import cache_directory

KAFKA_VERSION = os.environ.get("KAFKA_VERSION", "4.3.1")
LOG4J_VERSION = "2.25.4"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

# Kafka logs by slf4j 1.7; without the binding to log4j it would log nothing at all.
POM = f"""\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>throwaway</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>{LOG4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
"""


def kafka_home() -> Path:
    """Return where Kafka is kept: a directory ``libs`` and ``log4j2.properties``; it need not exist yet."""
    return cache_directory() / f"kafka-{KAFKA_VERSION}"


def _say(text: str) -> None:
    print(f"kafka: {text}", flush=True)


def missing_tool() -> str | None:
    """Say which program is missing to have or to run Kafka, if any."""
    if shutil.which("java") is None:
        return "Java (17 or newer) is not on the PATH, so Kafka cannot run"
    if not kafka_home().exists() and shutil.which("mvn") is None:
        return "Maven (mvn) is not on the PATH, so Kafka's jars cannot be fetched"
    return None


def _fetch(home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetch-") as scratch:
        project = Path(scratch)
        (project / "pom.xml").write_text(POM)
        result = project / "result"
        output = f"-DoutputDirectory={result / 'libs'}"
        command = ["mvn", "--batch-mode", "--quiet", COPY_DEPENDENCIES, "-DincludeScope=runtime", output]
        done = subprocess.run(command, cwd=project, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"Maven failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        (result / "log4j2.properties").write_text(LOG4J)
        # A rename of the whole, so that half a Kafka is never found.
        result.rename(home)


def main() -> int:
    problem = missing_tool()
    if problem is not None:
        _say(f"{problem}. The tests marked `kafka` are skipped.")
        return 1
    home = kafka_home()
    if home.exists():
        _say(f"{KAFKA_VERSION} is there: {home}")
        return 0
    _say(f"fetching the jars of {KAFKA_VERSION} ...")
    started = time.monotonic()
    try:
        _fetch(home)
    except OSError as failure:
        _say(f"{failure}\nThe tests marked `kafka` are skipped.")
        return 1
    _say(f"fetched {home} in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
