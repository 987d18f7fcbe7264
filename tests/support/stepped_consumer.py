"""A consumer that tests run step by step: it calls `Instance.members` directly, the way the gRPC handlers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from assigner.api import Registration
from assigner.errors import AssignerError
from assigner.instance import Instance
from assigner.model.commands import Ack, Commands, Release, Warm
from assigner.model.keys import TopicPartition
from assigner.testing.waiting import eventually

if TYPE_CHECKING:
    from tests.support.cluster import Cluster


class SteppedConsumer:
    """A consumer that acks by itself, or when the test calls for it: `answers_warm`, `answers_release`.

    With `session=""` the service mints one, as for upstream's clients. Its group is the cluster's unless it says so."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        session: str | None = None,
        group: str | None = None,
        answers_warm: bool = True,
        answers_release: bool = True,
        renews: bool = True,
        **registration: Any,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.group = cluster.group.group if group is None else group
        self.answers_warm = answers_warm
        self.answers_release = answers_release
        self.renews = renews
        self.heard: list[Commands] = []
        """Everything the stream said, in order."""
        self.owned: dict[TopicPartition, int] = {}
        self.standbys: set[TopicPartition] = set()
        self.to_warm: dict[TopicPartition, Warm] = {}
        self.to_release: dict[TopicPartition, Release] = {}
        self.ended: AssignerError | str | None = None
        """Why the stream ended; "drained" if it ended well."""
        self._registration = Registration(
            group=self.group,
            name=name,
            session=f"session-of-{name}" if session is None else session,
            renews=renews,
            **registration,
        )
        self.session = self._registration.session
        self.principal = self._registration.principal
        self._scope: anyio.CancelScope | None = None
        self.instance: Instance | None = None
        self.hears = True
        """If not, the stream is read and nothing of it acted upon, as if it had stalled; renewals go on."""
        self.last_heard = 0.0
        """For clients that do not renew: when their connection last gave a sign of life."""

    @property
    def is_following(self) -> bool:
        """Whether the stream is open, and what it says is acted upon."""
        return self.ended is None and self.hears and self._scope is not None and not self._scope.cancel_called

    async def connect(self, instance: Instance) -> None:
        self.instance = instance
        self.ended = None
        self.last_heard = self.cluster.clock.now()
        await self.cluster.tasks.start(self._run)

    async def _run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        assert self.instance is not None
        stream = await self.instance.members.register(self._registration, lambda: self.last_heard)
        self.session = stream.session
        with anyio.CancelScope() as self._scope:
            try:
                async with anyio.create_task_group() as tasks:
                    if self.renews:
                        tasks.start_soon(self._renew)
                    async for commands in stream.commands():
                        await self._take(commands)
                        if commands.full:
                            task_status.started()
                    self.ended = "drained"
                    tasks.cancel_scope.cancel()
            except* AssignerError as errors:
                self.ended = _first(errors)
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.leave()

    async def _take(self, commands: Commands) -> None:
        self.heard.append(commands)
        if not self.hears:
            return
        if commands.full:
            self.owned.clear()
            self.standbys.clear()
        for lost, _ in commands.unassigned:
            self.owned.pop(lost, None)
        self.owned.update(commands.assigned)
        gone = {*commands.standbys_removed, *(partition for partition, _ in commands.assigned)}
        self.standbys = self.standbys - gone | {*commands.standbys_added}
        for cancel in commands.cancels:
            self.to_warm.pop(cancel.tp, None)
        self.to_warm.update({warm.tp: warm for warm in commands.warms})
        self.to_release.update({release.tp: release for release in commands.releases})
        if self.answers_warm and self.to_warm:
            await self.ready(*self.to_warm)
        if self.answers_release and self.to_release:
            await self.release(*self.to_release)

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(self.cluster.ttl / 4)
            try:
                assert self.instance is not None
                await self.instance.members.renew(self.group, self.name, self.session, principal=self.principal)
            except AssignerError:
                continue

    async def ready(self, *tps: TopicPartition, failure: str = "") -> None:
        assert self.instance is not None
        answers = [Ack(tp, self.to_warm[tp].handoff_id if tp in self.to_warm else "", failure) for tp in tps]
        for tp in tps:
            self.to_warm.pop(tp, None)
        refused = await self.instance.members.ready(
            self.group, self.name, self.session, answers, principal=self.principal
        )
        for one in refused:
            raise one.error

    async def release(self, *tps: TopicPartition) -> None:
        assert self.instance is not None
        answers = [Ack(tp, self.to_release[tp].handoff_id if tp in self.to_release else "") for tp in tps]
        for tp in tps:
            if tp in self.to_release and self.to_release.pop(tp).epoch == self.owned.get(tp):
                self.owned.pop(tp, None)
        refused = await self.instance.members.released(
            self.group, self.name, self.session, answers, principal=self.principal
        )
        for one in refused:
            raise one.error

    def crash(self) -> None:
        """The process is gone: no more answers, no more renewals. Its lease runs out by itself."""
        assert self._scope is not None
        self._scope.cancel()

    async def deregister(self, *, gates_closed: bool = False) -> bool:
        assert self.instance is not None
        return await self.instance.members.deregister(
            self.group, self.name, self.session, gates_closed=gates_closed, principal=self.principal
        )

    async def until(self, what: str, holds: Callable[[SteppedConsumer], bool], within: float | None = None) -> None:
        within = (within or self.cluster.patience) + self.cluster.allowance
        await eventually(lambda: holds(self), within=within, what=f"{self.name}: {what}")


def _first(errors: BaseExceptionGroup[AssignerError]) -> AssignerError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, AssignerError)
    return error
