"""Authenticates by user and password: one token for all requests, fetched again when etcd rejects it.

Tokens expire, and end with a restart of the member and with changes to etcd's users. So their age is not tracked: the
first request that is rejected for its token fetches a new one for all.
"""

from __future__ import annotations

import anyio
import anyio.to_thread

from assigner.backends.etcd import rpc
from assigner.backends.etcd.connection import Connection
from assigner.backends.etcd.errors import Final, classify
from assigner.backends.etcd.member import REQUIRE_LEADER, MemberConnection
from assigner.errors import InvalidInput, StoreRefused, StoreUnavailable
from assigner.secret_files import read_secret


class Login:
    def __init__(
        self, member: MemberConnection, user: str | None, password: str | None, password_file: str | None = None
    ) -> None:
        self._member = member
        self._user = user
        self._password = password
        self._password_file = password_file
        self._metadata: rpc.Metadata | None = None if user else REQUIRE_LEADER
        self._lock = anyio.Lock()
        self.logins = 0

    @property
    def can_renew(self) -> bool:
        return self._user is not None

    @property
    def current(self) -> rpc.Metadata | None:
        return self._metadata

    async def metadata(self, connection: Connection, timeout: float) -> rpc.Metadata:
        """The metadata of every request. Logs in first if there is no token, once for all concurrent callers.

        Raises `StoreRefused` for wrong credentials, `StoreUnavailable` if the member does not answer.
        """
        if self._metadata is not None:
            return self._metadata
        # The connection may fail while we wait for the lock.
        with connection.in_use():
            return await self._log_in_once(connection, timeout)

    async def _log_in_once(self, connection: Connection, timeout: float) -> rpc.Metadata:
        async with self._lock:
            if self._metadata is None:
                self._metadata = await self._authenticate(connection, timeout)
            return self._metadata

    def forget(self, metadata: rpc.Metadata) -> None:
        """Drop the token in `metadata`, which etcd rejected."""
        if self._metadata is metadata and self.can_renew:
            self._metadata = None

    def refusal(self, reason: str) -> StoreRefused:
        """Make the error for a token that is rejected and can't be renewed."""
        if self._user is None:
            return StoreRefused(f"etcd wants a login and none is configured ({reason}); set user and password")
        return StoreRefused(f"etcd refuses the login ({reason}); check user and password")

    async def _authenticate(self, connection: Connection, timeout: float) -> rpc.Metadata:
        password = self._password or ""
        if self._password_file:
            password = await anyio.to_thread.run_sync(password_from, self._password_file)
        request = rpc.AuthenticateRequest(name=self._user, password=password)
        try:
            answer = await connection.authenticate(request, timeout=max(timeout, 0.001), metadata=REQUIRE_LEADER)
        except rpc.RpcError as error:
            if "authentication is not enabled" in (error.details() or ""):
                return REQUIRE_LEADER
            failure = classify(error, answered_meanwhile=False)
            if isinstance(failure, Final):
                raise StoreRefused(str(failure.error)) from error
            raise StoreUnavailable(f"etcd did not answer the login: {failure.reason}") from error
        if (foreign_cluster := self._member.foreign_cluster(answer.header)) is not None:
            raise StoreUnavailable(foreign_cluster)
        self.logins += 1
        return (*REQUIRE_LEADER, ("token", answer.token))


def password_from(path: str) -> str:
    """Read the password from a file. Raises `StoreUnavailable`, which is retried: the file may be being replaced."""
    try:
        return read_secret(path)
    except InvalidInput as error:
        raise StoreUnavailable(f"no login at etcd: {error}") from error
