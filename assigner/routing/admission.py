"""Admits a routed request at its owner: by its headers, through the gate of its partition.

A refusal always comes before the request begins, so it means that nothing was done. Whether the router should look for
another owner or come again soon is what tells refusals apart. `aiohttp` and `grpclib` put them into their protocols.

Not promised: that the ownership outlasts the request. Work that takes long checks the gate again before its effect, or
gives the epoch to what it writes to.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from enum import Enum

from assigner.client.consumer import AssignerConsumer
from assigner.client.gate import ADMIT_WITHIN
from assigner.core.client.gate import GateClosed, StaleEpoch
from assigner.errors import AssignerError
from assigner.routing.headers import OWNER, MalformedTarget, RequestTarget, target_of


class Remedy(Enum):
    """What a router should do about a refusal."""

    LOOK_AGAIN = "look again"
    """Send the request to the next owner, once the router knows it."""
    COME_AGAIN = "come again"
    """Send the request again soon: its owner may be about to admit it."""
    NONE = "none"
    """Repeating the request as it is does not help."""


class NotAdmitted(AssignerError):
    """A routed request that was refused before anything of it was done."""

    def __init__(self, reason: str, remedy: Remedy, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """One word, for the header `assigner-refused`: that of `Shut` where the gate was shut."""
        self.remedy = remedy


_target: ContextVar[RequestTarget | None] = ContextVar("assigner_request_target", default=None)


def request_target() -> RequestTarget:
    """The target of the request that is being handled. Raises `LookupError` if it has none."""
    target = _target.get()
    if target is None:
        raise LookupError("this request has no target; ask only in the handler of a request that a router sent")
    return target


class RequestAdmission:
    """Admits the requests of one consumer. On the consumer's event loop only."""

    def __init__(self, consumer: AssignerConsumer, *, within: float = ADMIT_WITHIN, required: bool = True) -> None:
        """`within`: seconds that a request waits for a gate that is about to open for it. `required`: refuse requests
        that have no target."""
        self._consumer = consumer
        self._within = within
        self._required = required

    async def admit(self, headers: Iterable[tuple[str, str | bytes]], admitted: AsyncExitStack) -> None:
        """Admit a request by its headers, and count it as in progress until `admitted` is left; until then the task
        finds its target by `request_target`. Raises `NotAdmitted`.

        The request begins after this has returned: what the gate says later is no refusal any more."""
        target = self._target_of(headers)
        if target is not None:
            await self._enter(target, admitted)
            admitted.callback(_target.reset, _target.set(target))

    def _target_of(self, headers: Iterable[tuple[str, str | bytes]]) -> RequestTarget | None:
        try:
            target = target_of(headers)
        except MalformedTarget as error:
            raise NotAdmitted("malformed_target", Remedy.NONE, str(error)) from error
        if target is None and self._required:
            raise NotAdmitted(
                "no_target", Remedy.NONE, f"the request has no header {OWNER}; send it by way of a router"
            )
        return target

    async def _enter(self, target: RequestTarget, admitted: AsyncExitStack) -> None:
        consumer = self._consumer
        if target.owner != consumer.name:
            # Addresses are reused: the owner that was meant may be gone, and this consumer may have its address now.
            text = f"the request is for {target.owner}, and this is {consumer.name}; look again who owns its partition"
            raise NotAdmitted("other_owner", Remedy.LOOK_AGAIN, text)
        if target.group and consumer.group and target.group != consumer.group:
            text = f"the request is for the group {target.group}, and this is a consumer of {consumer.group}"
            raise NotAdmitted("other_group", Remedy.NONE, f"{text}; send it by way of a router of that group")
        entering = consumer.entering(target.topic, target.partition, target.epoch, within=self._within)
        try:
            await admitted.enter_async_context(entering)
        except StaleEpoch as error:
            raise NotAdmitted("stale_epoch", Remedy.LOOK_AGAIN, str(error)) from error
        except GateClosed as error:
            remedy = Remedy.COME_AGAIN if error.is_passing else Remedy.LOOK_AGAIN
            raise NotAdmitted(error.reason.value, remedy, str(error)) from error
