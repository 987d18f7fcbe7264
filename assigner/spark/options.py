"""Options of the source `assigned_kafka`: each is parsed and checked here, and an unknown one is an error.

Spark passes them as text, with names in lower case. `kafka.*` is passed on to librdkafka, except for settings that the
source must decide itself.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from assigner.errors import AssignerError, InvalidInput
from assigner.model.keys import TopicPartition
from assigner.model.names import check_name, check_topic
from assigner.spark.sinks.ledger import LEDGER_OPTIONS, ledger_of

T = TypeVar("T")
EARLIEST, LATEST = -2, -1
"""As Kafka and Spark write them in place of an offset."""
COMMITTED = -3
"""Ours: what the group has committed. Only for batch reads; a stream begins there anyway."""
MAX_ROWS = 1_000_000
"""The default limit of a batch: a release waits for the batch that is running."""
SNAPSHOT_EVERY = 100_000
"""Records of a partition between two snapshots of its state. At most so many, and those of one batch, are read again
when an owner with state dies."""

_WORDS = {"earliest": EARLIEST, "latest": LATEST, "committed": COMMITTED}
_KNOWN = {
    name.lower(): name
    for name in (
        "assigner",
        "group",
        "member",
        "subscribe",
        "startingOffsets",
        "endingOffsets",
        "maxOffsetsPerTrigger",
        "minPartitions",
        "maxRecordsPerPartition",
        "includeHeaders",
        "includeEpoch",
        "controlRows",
        "snapshotEvery",
        *LEDGER_OPTIONS,
        "failOnDataLoss",
        "assignerTimeout",
        "kafkaTimeout",
        "capacity",
        "rack",
        "generation",
        "tls",
        "tlsCa",
        "tlsCert",
        "tlsKey",
        "tokenFile",
    )
}
_REMEDIES = {
    "assign": "the assigner decides who gets which partitions: use subscribe",
    "subscribepattern": "list the topics with subscribe; a group's topics are known to the assigner",
    "topic": "use subscribe",
    "startingtimestamp": "use startingOffsets; it counts only where the group has no committed offset",
    "startingoffsetsbytimestamp": "use startingOffsets; it counts only where the group has no committed offset",
    "minoffsetspertrigger": "use a longer trigger interval",
    "maxtriggerdelay": "use a longer trigger interval",
    "groupidprefix": "the option group names the group; Kafka knows nothing of it",
    "path": "use load() without a path; subscribe names the topics",
    "asyncprogresstrackingenabled": "progress is reported when a batch is in Spark's commit log, which it would outrun",
}
_RESERVED = {
    "group.id": "it is the option group",
    "auto.offset.reset": "use startingOffsets and failOnDataLoss",
    "enable.auto.commit": "offsets are kept by the assigner",
    "enable.auto.offset.store": "offsets are kept by the assigner",
    "enable.partition.eof": "the source needs it",
    "key.deserializer": "keys are bytes: convert them in the query",
    "value.deserializer": "values are bytes: convert them in the query",
    "group.instance.id": "it is the option member",
}


class Tls(msgspec.Struct, frozen=True):
    """TLS files for the member's connection to the assigner. The files are read on the driver, where the member
    runs."""

    ca: str = ""
    """Empty: the system's authorities."""
    cert: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        # Here, because executors read options too, and have no use for the client.
        from assigner.client.tls import tls_context_from_files

        try:
            return tls_context_from_files(self.ca, self.cert, self.key)
        except InvalidInput as error:
            raise InvalidInput(f"options tlsCa, tlsCert and tlsKey: {error}") from error


class StartingOffsets(msgspec.Struct, frozen=True):
    """The offsets at which partitions without a committed offset begin or end."""

    default: int | None
    """EARLIEST, LATEST, COMMITTED, or None: every partition is named."""
    named: dict[TopicPartition, int] = {}

    def of(self, tp: TopicPartition, option: str = "startingOffsets") -> int:
        found = self.named.get(tp, self.default)
        if found is None:
            raise InvalidInput(f"option {option} says nothing about {tp}; name every partition, or use earliest")
        return found


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    assigner: tuple[str, ...]
    group: str
    member: str
    """Empty for a batch read, which joins no group."""
    topics: tuple[str, ...]
    kafka: dict[str, str]
    starting: StartingOffsets
    ending: StartingOffsets
    max_rows: int = MAX_ROWS
    min_partitions: int = 0
    max_records_per_partition: int | None = None
    headers: bool = False
    epoch: bool = False
    control_rows: bool = False
    snapshot_every: int = SNAPSHOT_EVERY
    fence: dict[str, str] = {}
    """The fenced sink that the query writes to; the source reads its fences and states."""
    fail_on_data_loss: bool = True
    assigner_timeout: float = 60.0
    """Seconds."""
    kafka_timeout: float = 60.0
    capacity: float = 1.0
    rack: str = ""
    generation: str = ""
    tls: Tls | None = None
    token_file: str = ""
    """The token that the member shows to the assigner; read on the driver, again whenever it changes."""


def read_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    refuse_unknown(given)
    options = {name.lower(): value for name, value in given.items()}
    read = _OptionReader(options)
    names = ("earliest", "latest") if streaming else ("earliest", "latest", "committed")
    starting, ending = read.offsets("startingOffsets", EARLIEST, names), read.offsets("endingOffsets", LATEST, names)
    if not streaming:
        _refuse_for_batches(options, uses_group=COMMITTED in (starting.default, ending.default))
    elif "endingoffsets" in options:
        raise InvalidInput("option endingOffsets is for batch reads; a stream has no end: leave it out")
    of_group = streaming or COMMITTED in (starting.default, ending.default)
    group = read.required("group", "the group whose members share the topics") if of_group else ""
    member = read.required("member", "a name of its own for each query, the same after a restart") if streaming else ""
    columns = columns_wanted(given)
    return SourceOptions(
        assigner=read.addresses(needed=of_group),
        group=read.checked("group", lambda: check_name("group", group)) if group else "",
        member=read.checked("member", lambda: check_name("consumer", member)) if member else "",
        topics=read.topics(),
        kafka=_kafka(options),
        starting=starting,
        ending=ending,
        max_rows=read.whole("maxOffsetsPerTrigger", 1) or MAX_ROWS,
        min_partitions=read.whole("minPartitions", 1) or 0,
        max_records_per_partition=read.whole("maxRecordsPerPartition", 1),
        headers=columns["headers"],
        epoch=columns["epoch"],
        control_rows=columns["control"],
        snapshot_every=read.whole("snapshotEvery", 1) or SNAPSHOT_EVERY,
        fence=_fence(options, group, needed=columns["control"]),
        fail_on_data_loss=read.flag("failOnDataLoss", True),
        assigner_timeout=read.seconds("assignerTimeout", 60.0),
        kafka_timeout=read.seconds("kafkaTimeout", 60.0),
        capacity=read.seconds("capacity", 1.0),
        rack=read.text("rack"),
        generation=read.text("generation"),
        tls=read.tls(),
        token_file=read.text("tokenFile"),
    )


def _refuse_for_batches(options: Mapping[str, str], *, uses_group: bool) -> None:
    if "member" in options:
        raise InvalidInput("option member is for streams; a batch read joins no group: leave it out")
    for name in ("includeEpoch", "controlRows", "snapshotEvery", *LEDGER_OPTIONS):
        if name.lower() in options:
            raise InvalidInput(f"option {name} is for streams; a batch read owns nothing: leave it out")
    for name in ("assigner", "group"):
        if name in options and not uses_group:
            raise InvalidInput(
                f"option {name} has no effect on a batch read, unless startingOffsets or endingOffsets is committed; "
                f"leave it out"
            )


def columns_wanted(given: Mapping[str, str]) -> dict[str, bool]:
    """Decide which optional columns the rows have."""
    read = _OptionReader({name.lower(): value for name, value in given.items()})
    control = read.flag("controlRows", False)
    epoch = read.flag("includeEpoch", control)
    if control and not epoch:
        raise InvalidInput("option includeEpoch is false, but control rows need the epoch; leave it out")
    return {"headers": read.flag("includeHeaders", False), "epoch": epoch, "control": control}


def refuse_unknown(given: Mapping[str, str]) -> None:
    for name in map(str.lower, given):
        if name in _KNOWN or name.startswith("kafka."):
            continue
        if name in _REMEDIES:
            raise InvalidInput(f"option {name} does not go with assigned_kafka: {_REMEDIES[name]}")
        close = get_close_matches(name, _KNOWN, 1)
        hint = f"did you mean {_KNOWN[close[0]]}?" if close else f"known are {', '.join(sorted(_KNOWN.values()))}"
        raise InvalidInput(f"option {name} is not known to assigned_kafka; {hint}")


def _kafka(options: Mapping[str, str]) -> dict[str, str]:
    given = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    if not given.get("bootstrap.servers", "").strip():
        raise InvalidInput("option kafka.bootstrap.servers is missing; give host:port of one or more brokers")
    for name, remedy in _RESERVED.items():
        if name in given:
            raise InvalidInput(f"option kafka.{name} can't be set: {remedy}")
    return given


def _fence(options: Mapping[str, str], group: str, *, needed: bool) -> dict[str, str]:
    found = {name: options[name].strip() for name in LEDGER_OPTIONS if options.get(name, "").strip()}
    if needed and not found:
        raise InvalidInput(
            "option controlRows needs to know where states are kept: name the fenced sink that the query writes to "
            "by fence.path, or by fence.url and fence.table"
        )
    if "snapshotevery" in options and not needed:
        raise InvalidInput("option snapshotEvery has no effect without controlRows=true; leave it out")
    try:
        ledger_of(found, group)
    except InvalidInput as error:
        raise InvalidInput(f"options fence.*: {error}") from error
    return found


class _OptionReader:
    """Parses single options into their types."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def text(self, name: str, default: str = "") -> str:
        return str(self._options.get(name.lower(), default)).strip()

    def required(self, name: str, what: str) -> str:
        found = self.text(name)
        if not found:
            raise InvalidInput(f"option {name} is missing; give {what}")
        return found

    def checked(self, name: str, check: Callable[[], T]) -> T:
        try:
            return check()
        except AssignerError as error:
            raise InvalidInput(f"option {name}: {error}") from error

    def addresses(self, *, needed: bool) -> tuple[str, ...]:
        found = tuple(one.strip() for one in self.text("assigner").split(",") if one.strip())
        if needed and not found:
            raise InvalidInput("option assigner is missing; give host:port of one or more instances of the assigner")
        if found:
            # Here, because executors read options too, and have no use for the client.
            from assigner.client.channel import parse_address

            self.checked("assigner", lambda: [parse_address(one) for one in found])
        return found

    def topics(self) -> tuple[str, ...]:
        listed = [one.strip() for one in self.required("subscribe", "topics, separated by commas").split(",")]
        if len(set(listed)) != len(listed):
            raise InvalidInput(f"option subscribe names a topic twice: {', '.join(listed)}; name each once")
        return self.checked("subscribe", lambda: tuple(check_topic(one) for one in listed))

    def flag(self, name: str, default: bool) -> bool:
        found = self.text(name).lower()
        if found not in ("", "true", "false"):
            raise InvalidInput(f"option {name} is {found!r}; write true or false")
        return default if not found else found == "true"

    def whole(self, name: str, least: int) -> int | None:
        found = self.text(name)
        if not found:
            return None
        if not (found.isascii() and found.isdecimal()) or int(found) < least:
            raise InvalidInput(f"option {name} is {found!r}; write a whole number from {least} up")
        return int(found)

    def seconds(self, name: str, default: float) -> float:
        found = self.text(name)
        try:
            number = float(found) if found else default
        except ValueError:
            number = -1.0
        if not 0 < number < 1_000_000:
            raise InvalidInput(f"option {name} is {found!r}; write a number above 0")
        return number

    def offsets(self, name: str, default: int, names: Sequence[str]) -> StartingOffsets:
        found = self.text(name)
        if not found:
            return StartingOffsets(default)
        if found.lower() in names:
            return StartingOffsets(_WORDS[found.lower()])
        try:
            return StartingOffsets(None, _named_offsets(json.loads(found)))
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"option {name} is neither {', '.join(names)} nor JSON such as "
                f'{{"orders": {{"0": 23, "1": -2}}}}: {error}'
            ) from error

    def tls(self) -> Tls | None:
        files = Tls(ca=self.text("tlsCa"), cert=self.text("tlsCert"), key=self.text("tlsKey"))
        if files.key and not files.cert:
            raise InvalidInput("option tlsKey is of no use without tlsCert; give both")
        return files if self.flag("tls", False) or files != Tls() else None


def _named_offsets(listed: Any) -> dict[TopicPartition, int]:
    named = {}
    for topic, of_partitions in listed.items():
        for partition, offset in of_partitions.items():
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST:
                raise ValueError(f"{topic}-{partition} is {offset!r}; -2 is the earliest, -1 the latest offset")
            named[TopicPartition(check_topic(topic), int(partition))] = offset
    return named
