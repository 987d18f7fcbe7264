"""Get the test suites that others wrote for Kafka's clients, built into the cache directory in exact versions.

Four of them: Kafka's own Java integration tests, by Maven; librdkafka with its test runner, by npm and a C compiler;
franz-go's group tests, by Go; kafka-python's integration tests, by pip. What can't be had is told with its reason, and
the others go on. Plain standard library. Exit status 0 says that all that was asked for is there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cache import cache_directory
from tools.install_kafka import COPY_DEPENDENCIES, KAFKA_VERSION, LOG4J, LOG4J_VERSION

LIBRDKAFKA_VERSION = "2.15.1"
# librdkafka publishes no archive of its own in a registry; this package brings the sources with their tests.
LIBRDKAFKA_PACKAGE = "@confluentinc/kafka-javascript@1.10.1"
FRANZ_GO_VERSION = "1.22.2"
FRANZ_GO_MODULE = f"github.com/twmb/franz-go@v{FRANZ_GO_VERSION}"
KAFKA_PYTHON_VERSION = "3.0.12"

_KAFKA = "org.apache.kafka"
_TEST = "test"
_JAVA: tuple[tuple[str, str, str, str], ...] = (
    (_KAFKA, "kafka-clients-integration-tests", KAFKA_VERSION, _TEST),
    (_KAFKA, "kafka-test-common-runtime", KAFKA_VERSION, ""),
    (_KAFKA, "kafka-test-common-internal-api", KAFKA_VERSION, ""),
    (_KAFKA, "kafka-test-common-util", KAFKA_VERSION, ""),
    (_KAFKA, "kafka_2.13", KAFKA_VERSION, ""),
    (_KAFKA, "kafka_2.13", KAFKA_VERSION, _TEST),
    (_KAFKA, "kafka-clients", KAFKA_VERSION, ""),
    (_KAFKA, "kafka-clients", KAFKA_VERSION, _TEST),
    (_KAFKA, "kafka-server-common", KAFKA_VERSION, _TEST),
    (_KAFKA, "kafka-tools", KAFKA_VERSION, ""),
    (_KAFKA, "kafka-tools", KAFKA_VERSION, _TEST),
    ("org.junit.platform", "junit-platform-console", "1.13.1", ""),
    ("org.junit.jupiter", "junit-jupiter", "5.13.1", ""),
    ("org.hamcrest", "hamcrest", "3.0", ""),
    ("org.mockito", "mockito-core", "5.20.0", ""),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.82", ""),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION, ""),
)
_SLOWLY = ("nice", "-n", "19")


class Unavailable(Exception):
    """A suite cannot be had here; the text says why."""


@dataclass(frozen=True)
class Suite:
    """One suite: what has to be on the PATH to have it, and how it gets into an empty directory."""

    name: str
    version: str
    tools: tuple[str, ...]
    fetch: Callable[[Path, Path], None]
    """Called with a scratch directory, and the directory in it that becomes the suite's home."""

    @property
    def home(self) -> Path:
        """Where the suite is kept; it need not exist yet."""
        return cache_directory() / f"suite-{self.name}-{self.version}"

    def ensure(self) -> Path:
        """Return the suite's home, fetching and building it first where need be; raise `Unavailable`."""
        if self.home.exists():
            return self.home
        missing = [tool for tool in self.tools if shutil.which(tool) is None]
        if missing:
            raise Unavailable(f"{', '.join(missing)}: not on the PATH")
        self.home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.home.parent, prefix="fetch-") as scratch:
            result = Path(scratch) / "result"
            result.mkdir()
            self.fetch(Path(scratch), result)
            # A rename of the whole, so that half a suite is never found.
            result.rename(self.home)
        return self.home


def _run(command: Sequence[str], directory: Path, timeout: float = 3600.0) -> None:
    try:
        done = subprocess.run(
            [*_SLOWLY, *command], cwd=directory, check=False, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took longer than {timeout:g} s") from None
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command[:3])} failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")


def _unpack(archive: Path, into: Path) -> Path:
    """Unpack an archive that holds one directory, and return that directory."""
    with tarfile.open(archive) as packed:
        packed.extractall(into, filter="data")
    (unpacked,) = (entry for entry in into.iterdir() if entry.is_dir())
    return unpacked


# --- the four ----------------------------------------------------------------------------------------------------


def _fetch_java(scratch: Path, result: Path) -> None:
    (scratch / "pom.xml").write_text(_pom())
    output = f"-DoutputDirectory={result / 'libs'}"
    _run(["mvn", "--batch-mode", "--quiet", COPY_DEPENDENCIES, "-DincludeScope=runtime", output], scratch)
    (result / "log4j2.properties").write_text(LOG4J.replace("level = info", "level = warn"))


def _pom() -> str:
    listed = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        + (f"<classifier>{classifier}</classifier>" if classifier else "")
        + "</dependency>"
        for group, artifact, version, classifier in _JAVA
    )
    head = "<modelVersion>4.0.0</modelVersion><groupId>throwaway</groupId><artifactId>suites</artifactId>"
    return f"<project>{head}<version>1</version><dependencies>{listed}</dependencies></project>"


def _fetch_librdkafka(scratch: Path, result: Path) -> None:
    _run(["npm", "pack", "--silent", LIBRDKAFKA_PACKAGE], scratch)
    (archive,) = scratch.glob("*.tgz")
    unpacked = scratch / "unpacked"
    unpacked.mkdir()
    sources = _unpack(archive, unpacked) / "deps" / "librdkafka"
    result.rmdir()
    sources.rename(result)
    # What is left out needs libraries that a machine may not have, and no test of groups uses it.
    _run(["bash", "./configure", "--disable-sasl", "--disable-curl", "--disable-gssapi"], result)
    _run(["make", "-j1", "libs"], result)
    _run(["make", "-j1", "-C", "tests", "test-runner"], result)


def _fetch_franz_go(scratch: Path, result: Path) -> None:
    (scratch / "go.mod").write_text("module throwaway\n\ngo 1.24\n")
    _run(["go", "mod", "download", FRANZ_GO_MODULE], scratch)
    found = subprocess.run(["go", "env", "GOMODCACHE"], check=True, capture_output=True, text=True).stdout.strip()
    # The module cache is read-only, and Go builds tests of a module only from within it.
    sources = scratch / "sources"
    shutil.copytree(Path(found) / FRANZ_GO_MODULE, sources, copy_function=shutil.copyfile)
    for directory in (sources, *(entry for entry in sources.rglob("*") if entry.is_dir())):
        directory.chmod(0o755)
    _run(["go", "test", "-p", "1", "-c", "-o", str(result / "kgo.test"), "./pkg/kgo"], sources)


def _fetch_kafka_python(scratch: Path, result: Path) -> None:
    # pip asks the build system for the metadata even where it only downloads.
    what = [f"kafka-python=={KAFKA_PYTHON_VERSION}", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    _run([sys.executable, "-m", "pip", "download", "--quiet", *what, "--dest", str(scratch)], scratch)
    (archive,) = scratch.glob("*.tar.gz")
    unpacked = scratch / "unpacked"
    unpacked.mkdir()
    sources = _unpack(archive, unpacked)
    result.rmdir()
    sources.rename(result)


JAVA = Suite("kafka-java", KAFKA_VERSION, ("java", "javac", "mvn"), _fetch_java)
LIBRDKAFKA = Suite("librdkafka", LIBRDKAFKA_VERSION, ("npm", "make", "gcc", "g++", "bash"), _fetch_librdkafka)
FRANZ_GO = Suite("franz-go", FRANZ_GO_VERSION, ("go",), _fetch_franz_go)
KAFKA_PYTHON = Suite("kafka-python", KAFKA_PYTHON_VERSION, (), _fetch_kafka_python)
SUITES = (JAVA, FRANZ_GO, KAFKA_PYTHON, LIBRDKAFKA)


def main(names: Sequence[str]) -> int:
    known = {suite.name: suite for suite in SUITES}
    if unknown := set(names) - set(known):
        print(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return 2
    status = 0
    for suite in [known[name] for name in names] or SUITES:
        began = time.monotonic()
        there = suite.home.exists()
        if not there:
            print(f"{suite.name}: fetching and building {suite.version} ...", flush=True)
        try:
            home = suite.ensure()
        except (Unavailable, OSError) as failure:
            print(f"{suite.name}: cannot be had: {failure}", flush=True)
            status = 1
        else:
            how = "is there" if there else f"was built in {time.monotonic() - began:.0f} s"
            print(f"{suite.name} {suite.version} {how}: {home}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
