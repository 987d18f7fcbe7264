"""User and password: one token for all requests, fetched again when etcd no longer knows it.

Tokens end by time, by a restart of the member that keeps them and by changes to etcd's users, so nobody here counts
their life: the first request that is refused for its token gets a new one for all.
"""

from __future__ import annotations

import anyio
import anyio.to_thread

from assigner.backends.etcd import rpc
from assigner.backends.etcd.connection import Connection
from assigner.backends.etcd.errors import Final, judge
from assigner.backends.etcd.member import REQUIRE_LEADER, MemberConnection
from assigner.errors import InvalidInput, StoreRefused, StoreUnavailable
from assigner.secret_files import read_secret


class Login:
    def __init__(
        self, link: MemberConnection, user: str | None, password: str | None, password_file: str | None = None
    ) -> None:
        self._link = link
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
        """What every request carries. Logs in first if need be, once for all who wait.

        Raises `StoreRefused` for wrong credentials, `StoreUnavailable` if the member does not answer.
        """
        if self._metadata is not None:
            return self._metadata
        # Waiting for one's turn takes a while, in which the connection may fail.
        with connection.in_use():
            return await self._in_turn(connection, timeout)

    async def _in_turn(self, connection: Connection, timeout: float) -> rpc.Metadata:
        async with self._lock:
            if self._metadata is None:
                self._metadata = await self._authenticate(connection, timeout)
            return self._metadata

    def forget(self, metadata: rpc.Metadata) -> None:
        """The token in `metadata` was refused."""
        if self._metadata is metadata and self.can_renew:
            self._metadata = None

    def refusal(self, reason: str) -> StoreRefused:
        """The error for a token that is refused and can't be replaced by a better one."""
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
            verdict = judge(error, answered_meanwhile=False)
            if isinstance(verdict, Final):
                raise StoreRefused(str(verdict.error)) from error
            raise StoreUnavailable(f"etcd did not answer the login: {verdict.reason}") from error
        if (stranger := self._link.stranger(answer.header)) is not None:
            raise StoreUnavailable(stranger)
        self.logins += 1
        return (*REQUIRE_LEADER, ("token", answer.token))


def password_from(path: str) -> str:
    """The password in the file. One that can't be read now may be in the middle of being replaced: try again."""
    try:
        return read_secret(path)
    except InvalidInput as error:
        raise StoreUnavailable(f"no login at etcd: {error}") from error
