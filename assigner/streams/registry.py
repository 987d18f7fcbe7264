"""Keeps the streams that are open at this instance: one per name, for the session on record only.

A newer stream replaces an older one of the same name, and the older one's end never touches the newer. Where both are
of one session, the older ends with `StreamReplaced`, upon which a client connects again: the registry can't know which
of the two the process still reads, because a call may arrive long after one that was sent later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from assigner.core.group import Change
from assigner.errors import AssignerError, LimitReached, StreamReplaced
from assigner.storage.mirror import GroupMirror

MAX_STREAMS = 50_000


class RegisteredStream(Protocol):
    @property
    def group(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def session(self) -> str: ...

    @property
    def backlog(self) -> int:
        """How many partitions wait to be sent."""
        ...

    def end(self, error: AssignerError) -> None:
        """End the stream with this error. The first one counts."""
        ...


S = TypeVar("S", bound=RegisteredStream)


class GroupDispatcher(ABC, Generic[S]):
    """Listens to one group's mirror, and puts each change into the outboxes of the streams it concerns."""

    def __init__(self, mirror: GroupMirror) -> None:
        self.mirror = mirror
        self.streams: dict[str, S] = {}
        """Name -> its stream."""

    @abstractmethod
    def changed(self, changes: Sequence[Change]) -> None:
        """Take changes that the mirror has applied, in order; must not block."""

    @abstractmethod
    def check_session(self, stream: S) -> None:
        """End the stream if its session is over."""


class StreamRegistry(ABC, Generic[S]):
    def __init__(self, *, max_streams: int = MAX_STREAMS) -> None:
        self._max_streams = max_streams
        self._dispatchers: dict[str, GroupDispatcher[S]] = {}
        self._count = 0

    @abstractmethod
    def _dispatcher_of(self, mirror: GroupMirror) -> GroupDispatcher[S]: ...

    def __len__(self) -> int:
        return self._count

    def streams(self) -> Iterable[S]:
        return [stream for dispatcher in self._dispatchers.values() for stream in dispatcher.streams.values()]

    def stream(self, group: str, name: str) -> S | None:
        dispatcher = self._dispatchers.get(group)
        return dispatcher.streams.get(name) if dispatcher else None

    @property
    def backlog(self) -> int:
        return sum(stream.backlog for stream in self.streams())

    def check_room(self) -> None:
        if self._count >= self._max_streams:
            raise LimitReached(f"this instance serves {self._max_streams} streams already; connect to another one")

    def replace(
        self, mirror: GroupMirror, name: str, session: str, superseded: AssignerError | None, make: Callable[[], S]
    ) -> S:
        """Open the stream of a name. One that was open ends with `superseded` if it is of another session."""
        dispatcher = self._dispatchers.get(mirror.group)
        if dispatcher is None:
            dispatcher = self._dispatchers[mirror.group] = self._dispatcher_of(mirror)
            mirror.listen(dispatcher)
        before = dispatcher.streams.get(name)
        if before:
            replaced = StreamReplaced(f"a later stream of {name!r} took this one's place; connect again")
            before.end(superseded if superseded and before.session != session else replaced)
        else:
            self._count += 1
        stream = dispatcher.streams[name] = make()
        dispatcher.check_session(stream)
        return stream

    def remove(self, stream: S) -> None:
        """Take out a stream that was left, unless a later one has its name."""
        if self.stream(stream.group, stream.name) is not stream:
            return
        dispatcher = self._dispatchers[stream.group]
        del dispatcher.streams[stream.name]
        self._count -= 1
        if not dispatcher.streams:
            dispatcher.mirror.unlisten(dispatcher)
            del self._dispatchers[stream.group]
