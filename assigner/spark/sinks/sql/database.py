"""Connects to the database of a fenced sink, SQLite or PostgreSQL, with explicit transactions.

A connection is opened per use and closed after it. Sinks run in forked processes and short-lived executors, where a
pooled connection would be shared by accident or left open.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from assigner.errors import AssignerError, InvalidInput

SQLITE, POSTGRESQL = "sqlite", "postgresql"
# How long a writer of SQLite waits for another one's transaction.
_BUSY_SECONDS = 60
# How long PostgreSQL leaves a transaction open whose owner is silent. A frozen owner holds the locks of its fences.
SILENT_SECONDS = 30.0
_MEMORY = (None, "", ":memory:")


class SinkUnavailable(AssignerError):
    """The database did not answer. No partial batch was written; the batch can be repeated."""


def parsed_url(url: str) -> URL:
    """Parse the URL of a supported database."""
    try:
        parsed = make_url(url)
    except ArgumentError as failure:
        raise InvalidInput(
            "option url is no database URL; write it as postgresql://user:password@host/database or sqlite:////file"
        ) from failure
    dialect = parsed.get_backend_name()
    if dialect not in (SQLITE, POSTGRESQL):
        raise InvalidInput(f"option url names {dialect}; fenced SQL sinks know {SQLITE} and {POSTGRESQL}")
    if dialect == SQLITE and parsed.database in _MEMORY:
        raise InvalidInput("option url names a SQLite database in memory, which no other process can see; name a file")
    return parsed


def open_database(url: str) -> Engine:
    """Open an engine. The errors for a missing driver and an unreachable database name the remedy."""
    parsed = parsed_url(url)
    try:
        engine = _sqlite(parsed) if parsed.get_backend_name() == SQLITE else _postgresql(parsed)
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"the database driver {missing.name!r} of option url is not installed; for PostgreSQL: "
            f"pip install 'psycopg[binary]', on the driver and on every executor"
        ) from missing
    shown = parsed.render_as_string(hide_password=True)

    @event.listens_for(engine, "handle_error")
    def explain(context: ExceptionContext) -> SinkUnavailable | None:
        if context.connection is not None:
            return None
        cause = str(context.original_exception).strip().partition("\n")[0]
        return SinkUnavailable(f"no connection to {shown} (option url): {cause}; start the database or correct the URL")

    return engine


def _postgresql(parsed: URL) -> Engine:
    # Under a stricter level the fence read after waiting for its lock would be the one from before.
    engine = create_engine(parsed, poolclass=NullPool, isolation_level="READ COMMITTED")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        milliseconds = int(SILENT_SECONDS * 1000)
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds}")

    return engine


def _sqlite(parsed: URL) -> Engine:
    engine = create_engine(parsed, poolclass=NullPool, connect_args={"timeout": _BUSY_SECONDS, "isolation_level": None})

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # Take the write lock at once: upgrading a read lock later can fail without waiting.
        connection.execute(text("BEGIN IMMEDIATE"))

    return engine


def is_postgresql(connection: Connection) -> bool:
    return connection.dialect.name == POSTGRESQL
