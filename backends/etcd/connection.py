"""Manages one connection to one member, open from the first probe until its last request has ended.

Closing a grpc channel cancels the calls on it, and their callers could not tell that from their own cancellation. So a
failed connection is closed only after its last call has ended; each call has a deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from assigner.backends.etcd import rpc
from assigner.backends.etcd.channel import Endpoint
from assigner.backends.etcd.rpc import RpcChannel, StreamMethod, UnaryMethod


class Connection:
    def __init__(self, endpoint: Endpoint, channel: RpcChannel, now: float) -> None:
        self.endpoint = endpoint
        self._channel = channel
        keys, leases, watches = rpc.KVStub(channel), rpc.LeaseStub(channel), rpc.WatchStub(channel)
        self.status = rpc.cancellable(rpc.MaintenanceStub(channel).Status)
        self.authenticate = rpc.cancellable(rpc.AuthStub(channel).Authenticate)
        self.watch: StreamMethod = watches.Watch
        self.keep_alive: StreamMethod = leases.LeaseKeepAlive
        methods: dict[str, UnaryMethod] = {
            "range": keys.Range,
            "put": keys.Put,
            "delete": keys.DeleteRange,
            "transaction": keys.Txn,
            "grant": leases.LeaseGrant,
            "revoke": leases.LeaseRevoke,
            "remaining": leases.LeaseTimeToLive,
        }
        self.methods = {kind: rpc.cancellable(method) for kind, method in methods.items()}
        self.version: tuple[int, ...] = ()
        self.last_answer = now
        """When a call or a stream last got an answer from the member. Probes don't count."""
        self.has_served = False
        self.failed = anyio.Event()
        """Set once the member was found unusable; streams then use another connection."""
        self.reason = ""
        self._users = 0
        self._unused = anyio.Event()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the channel open while the context is open, even if the connection fails.

        Enter it before the first await after the connection was obtained: a failed connection without users is closed,
        and a request can't be sent on a closed channel.
        """
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0 and self.failed.is_set():
                self._unused.set()

    def record_answer(self, now: float) -> None:
        self.last_answer = now
        self.has_served = True

    def fail(self, reason: str) -> None:
        if not self.failed.is_set():
            self.reason = reason
            self.failed.set()
            if self._users == 0:
                self._unused.set()

    async def wait_unused(self) -> None:
        """Wait until the connection has no users. Call it only after `fail`."""
        await self._unused.wait()

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._channel.close()
