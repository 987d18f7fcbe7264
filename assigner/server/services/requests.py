"""Checks requests and converts them into values of `assigner.api`. Raises `InvalidName` or `InvalidInput` only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, TypeVar

import msgspec

from assigner.api import Registration, RouterRegistration
from assigner.errors import InvalidInput
from assigner.logs.printable import one_line
from assigner.model.commands import Ack
from assigner.model.keys import TopicPartition
from assigner.model.names import check_name, check_topic
from assigner.model.records import Assignor, FreezeOverdue, GroupOptions, HandoffMode
from assigner.model.routes import FreezeAck
from assigner.proto.kafka_assigner import v1
from assigner.server.access import AdmittedCall, unchecked_call

MAX_FAILURE = 1_000
"""Characters of a failure's text that are kept."""
MAX_PARTITION = 999_999_999
"""Kafka allows 2^31, but the store's keys have at most nine digits."""
MAX_STRATEGY_OPTIONS = 16 * 1024
"""Bytes of JSON; they are stored with the group and read with every plan."""
MAX_NESTING = 20
_MAX_CAPACITY = 1e9
E = TypeVar("E", bound=Enum)

Caller = tuple[str, str, str]
"""Group, consumer or router, session."""
Identified = (
    v1.RegisterRequest
    | v1.PartitionReadyRequest
    | v1.PartitionReleasedRequest
    | v1.DeregisterRequest
    | v1.RenewRequest
    | v1.ReportLoadRequest
    | v1.CommitOffsetsRequest
)

IdentifiedRouter = v1.RegisterRouterRequest | v1.RenewRouterRequest | v1.CutoverAckRequest | v1.DeregisterRouterRequest


class RequestedAcks(msgspec.Struct, frozen=True):
    group: str
    name: str
    session: str
    acks: tuple[Ack, ...]


class Requests:
    """Reads requests by the service's rules for group names and with its default group, and checks whether their caller
    may name the group and, where it acts as a consumer, the consumer."""

    def __init__(
        self,
        default_group: str,
        check_group: Callable[[str], str],
        call: Callable[[], AdmittedCall] = unchecked_call,
    ) -> None:
        """`call`: returns the call that is being worked for."""
        self._default_group = default_group
        self._check_group = check_group
        self._call = call

    def group(self, name: str) -> str:
        """Return the group that a request names. Raises `PermissionDenied` if it is not one of the caller's."""
        group = self._group(name)
        self._call().check(group)
        return group

    def _group(self, name: str) -> str:
        return self._check_group(name) if name else self._default_group

    def caller(self, request: Identified) -> Caller:
        """Return whom a request acts for. Raises `PermissionDenied` if the caller may not be that consumer."""
        name, group = check_name("consumer_name", request.consumer_name), self._group(request.group)
        self._call().check(group, name)
        return group, name, _optional("session", request.session)

    @property
    def principal(self) -> str:
        """The identity of the caller; empty: it is not known."""
        return self._call().identity

    def may_see(self, group: str) -> bool:
        return self._call().may_see(group)

    def registration(self, request: v1.RegisterRequest) -> Registration:
        group, name, session = self.caller(request)
        topics = dict.fromkeys([request.topic, *request.topics] if request.topic else request.topics)
        return Registration(
            group=group,
            name=name,
            session=session,
            topics=tuple(check_topic(topic) for topic in topics),
            capacity=_capacity(request.capacity),
            rack=_optional("rack", request.rack),
            address=_optional("address", request.address),
            renews=request.renews,
            generation=_optional("generation", request.generation),
            principal=self.principal,
            cold=request.cold,
            kind=_optional("kind", request.kind),
        )

    def acks(self, request: v1.PartitionReadyRequest | v1.PartitionReleasedRequest, failure: str) -> RequestedAcks:
        """Read the acks of a request: that of the partition named in the request itself, and those of its batch."""
        acks = list(_batch(request.batch))
        if request.partition is not None:
            acks.insert(0, _ack(request.partition, request.handoff_id, failure))
        elif not acks:
            raise InvalidInput("partition is required")
        return RequestedAcks(*self.caller(request), tuple(acks))

    # --- routers ---

    def router(self, request: IdentifiedRouter) -> Caller:
        """Return the router that a request acts for. Raises `PermissionDenied` if the caller may not be that router."""
        name, group = check_name("router_name", request.router_name), self._group(request.group)
        self._call().check(group, name)
        return group, name, check_name("session", request.session)

    def router_registration(self, request: v1.RegisterRouterRequest) -> RouterRegistration:
        group, name, session = self.router(request)
        return RouterRegistration(group, name, session, request.loads, self.principal)

    def freeze_acks(self, request: v1.CutoverAckRequest) -> tuple[FreezeAck, ...]:
        if not request.acks:
            raise InvalidInput("acks is empty; name the frozen partitions that are acknowledged")
        return tuple(_freeze_ack(one) for one in request.acks)


def _batch(batch: Iterable[v1.PartitionAnswer]) -> Iterator[Ack]:
    for position, one in enumerate(batch):
        if one.partition is None:
            raise InvalidInput(f"partition is required; batch[{position}] has none")
        yield _ack(one.partition, one.handoff_id, one.failure)


def _ack(partition: v1.TopicPartition, handoff_id: str, failure: str) -> Ack:
    tp = TopicPartition(check_topic(partition.topic), check_partition(partition.partition))
    return Ack(tp, _optional("handoff_id", handoff_id), one_line(failure[:MAX_FAILURE])[:MAX_FAILURE])


def _freeze_ack(one: v1.FreezeAck) -> FreezeAck:
    tp = TopicPartition(check_topic(one.topic), check_partition(one.partition))
    return FreezeAck(tp, check_name("handoff_id", one.handoff_id))


def check_partition(partition: int) -> int:
    if partition > MAX_PARTITION:
        raise InvalidInput(f"partition {partition} is out of range; the highest is {MAX_PARTITION}")
    return partition


def _capacity(capacity: float) -> float:
    if capacity == 0:
        return 1.0
    if not (math.isfinite(capacity) and 0 < capacity <= _MAX_CAPACITY):
        raise InvalidInput(f"capacity is {capacity}; it must be above 0 and at most {_MAX_CAPACITY:g}, or 0 for 1")
    return capacity


def _optional(kind: str, name: str) -> str:
    return check_name(kind, name) if name else ""


# --- group options ------------------------------------------------------------------------------------------

_AS_THEY_ARE = (
    "strategy",
    "standby_count",
    "debounce",
    "warming_timeout",
    "freeze_timeout",
    "release_timeout",
    "max_concurrent_handoffs",
    "warm_concurrency",
    "quarantine_after",
    "paused",
    "balance_backoff",
    "rollout",
    "rollout_cap",
    "use_loads",
)


def option_changes(options: v1.GroupOptions | None) -> dict[str, Any]:
    """Read the options that a request sets, by the field names of `records.GroupOptions`."""
    if options is None:
        raise InvalidInput("options is required; set the ones to change")
    changes = {name: value for name in _AS_THEY_ARE if (value := getattr(options, name)) is not None}
    for name, value in changes.items():
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise InvalidInput(f"{name} is {value}; it must be a number of seconds from 0 up")
    if options.strategy is not None:
        check_name("strategy", options.strategy)
    if options.strategy_options is not None:
        changes["strategy_options"] = _json_object(options.strategy_options)
    if options.handoff_mode is not None:
        changes["handoff_mode"] = _one_of(HandoffMode, "handoff_mode", options.handoff_mode)
    if options.freeze_overdue is not None:
        changes["freeze_overdue"] = _one_of(FreezeOverdue, "freeze_overdue", options.freeze_overdue)
    if options.assignor is not None:
        changes["assignor"] = _one_of(Assignor, "assignor", options.assignor)
    if options.clear_copartitioned:
        changes["copartitioned"] = ()
    if options.copartitioned:
        changes["copartitioned"] = tuple(_topics(entry) for entry in options.copartitioned)
    return changes


def _json_object(text: str) -> dict[str, Any]:
    size = len(text.encode())
    if size > MAX_STRATEGY_OPTIONS:
        raise InvalidInput(f"strategy_options has {size} bytes; at most {MAX_STRATEGY_OPTIONS} are kept: shorten it")
    try:
        found = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"strategy_options is not a JSON object: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    _check_nesting(found, MAX_NESTING)
    return found


def _check_nesting(value: Any, left: int) -> None:
    if left < 0:
        raise _too_deep()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        _check_nesting(one, left - 1)


def _too_deep() -> InvalidInput:
    return InvalidInput(f"strategy_options is nested more than {MAX_NESTING} levels deep; flatten it")


def _one_of(kind: type[E], name: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(known.value) for known in kind)
        raise InvalidInput(f"{name} {value!r} is unknown; use one of: {known}") from None


def _topics(entry: str) -> tuple[str, ...]:
    topics = tuple(check_topic(topic.strip()) for topic in entry.split(","))
    if len(topics) < 2 or len(set(topics)) < len(topics):
        raise InvalidInput(f"copartitioned {entry!r} must name two or more different topics, separated by commas")
    return topics


def options_message(options: GroupOptions) -> v1.GroupOptions:
    plain = {name: getattr(options, name) for name in _AS_THEY_ARE}
    return v1.GroupOptions(
        **plain,
        strategy_options=msgspec.json.encode(options.strategy_options).decode(),
        handoff_mode=options.handoff_mode.value,
        freeze_overdue=options.freeze_overdue.value,
        assignor=options.assignor.value,
        copartitioned=[",".join(topics) for topics in options.copartitioned],
    )
