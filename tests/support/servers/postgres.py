"""A real PostgreSQL for the tests, on loopback, with a schema per test."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerFailedError, ServerProcess
from tools.install_postgres import postgres_programs

_READY_SECONDS = 30.0
_USERS = ("postgres", "nobody")
# A crash of the machine is not what tests are about.
_SETTINGS = {
    "fsync": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "deadlock_timeout": "200ms",
}


class PostgresUnavailableError(RuntimeError):
    """No PostgreSQL can be started here; the message says what to do about it."""


class PostgresServer:
    """One server with a data directory and a port of its own, which outlast restarts."""

    def __init__(self) -> None:
        programs = postgres_programs()
        if programs is None:
            raise PostgresUnavailableError("no PostgreSQL was found: run `make postgres`, or name one in POSTGRES_BIN")
        # Not pytest's directory: where root runs the tests, the server's user can't enter that.
        self._home = Path(tempfile.mkdtemp(prefix="assigner-postgres-"))
        self._programs = _reachable(programs, self._home)
        self.port = free_port()
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"postgresql://tests@127.0.0.1:{self.port}/postgres"

    def new_schema(self) -> str:
        """Make an empty schema and return a URL under which it is the one that tables are made in."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self.url}?options=-csearch_path%3D{name}"

    def start(self) -> Self:
        if not (self._home / "data").exists():
            self._initialise()
        flags = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [*_unprivileged(), str(self._programs / "postgres"), "-D", str(self._home / "data")]
        self._process = ServerProcess([*command, "-p", str(self.port), *flags], self._home / "postgres.log")
        self._process.wait_until(self._answers, _READY_SECONDS)
        return self

    def crash(self) -> None:
        """End the server as `pg_ctl stop -m immediate` does: no checkpoint, recovery at the next start."""
        if self._process is not None:
            subprocess.run(["/bin/kill", "-QUIT", str(self._process.pid)], check=True)
            self._process.terminate(_READY_SECONDS)
            self._process = None

    def stop(self) -> None:
        self.crash()
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except ServerFailedError:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _initialise(self) -> None:
        command = [str(self._programs / "initdb"), "-D", str(self._home / "data"), "-U", "tests", "-A", "trust", "-N"]
        options = ["--no-instructions", "-E", "UTF8", "--locale", "C.UTF-8"]
        done = subprocess.run([*_unprivileged(), *command, *options], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise ServerFailedError(f"initdb failed:\n{done.stdout}{done.stderr}")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def _reachable(programs: Path, home: Path) -> Path:
    """PostgreSQL refuses to run as root, and another user can't enter root's cache: it gets a copy."""
    if os.geteuid() != 0:
        return programs
    if programs.is_relative_to(Path.home()):
        programs = _copied(programs, home / "programs")
    user = _server_user()
    os.chown(home, user.pw_uid, user.pw_gid)
    return programs


def _copied(programs: Path, to: Path) -> Path:
    package = programs.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    # Programs from a wheel find their libraries in a folder beside the package.
    wanted = [package, libraries] if libraries.exists() else [programs.parent]
    for each in wanted:
        shutil.copytree(each, to / each.name, symlinks=True)
    return to / programs.relative_to(wanted[0].parent)


def _unprivileged() -> list[str]:
    if os.geteuid() != 0:
        return []
    setpriv, user = shutil.which("setpriv"), _server_user()
    if setpriv is None:
        raise PostgresUnavailableError("PostgreSQL does not run as root and setpriv is not there: run as another user")
    return [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _server_user() -> pwd.struct_passwd:
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresUnavailableError(f"PostgreSQL does not run as root and there is no user {' or '.join(_USERS)}")
