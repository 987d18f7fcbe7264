"""Options of `assigned_kafka`: what is understood, and what is said about the rest."""

from __future__ import annotations

import pickle

import pytest

from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.spark import requirements
from assigner.spark.options import COMMITTED, EARLIEST, LATEST, MAX_ROWS, SourceOptions, Tls, read_options
from assigner.spark.requirements import MissingRequirement, require_extra, require_java
from assigner.spark.schema import arrow_schema, row_schema
from assigner.spark.source.reader import AssignedKafka

STREAM = {
    "assigner": "a:1,b:2",
    "group": "billing",
    "member": "etl-1",
    "kafka.bootstrap.servers": "k:9092",
    "subscribe": "orders, payments",
}
BATCH = {"kafka.bootstrap.servers": "k:9092", "subscribe": "orders"}


def read(streaming: bool = True, without: str = "", **more: str) -> SourceOptions:
    base = STREAM if streaming else BATCH
    given = {name: value for name, value in base.items() if name != without}
    return read_options(
        {**given, **{name.replace("__", "."): value for name, value in more.items()}}, streaming=streaming
    )


def test_the_least_that_is_needed() -> None:
    options = read()
    assert options.assigner == ("a:1", "b:2")
    assert options.topics == ("orders", "payments")
    assert options.kafka == {"bootstrap.servers": "k:9092"}
    assert options.starting.of(TopicPartition("orders", 3)) == EARLIEST
    assert options.max_rows == MAX_ROWS
    assert options.fail_on_data_loss
    assert not options.headers


def test_names_are_understood_in_any_case() -> None:
    assert read(MAXOFFSETSPERTRIGGER="7", IncludeHeaders="TRUE").max_rows == 7


def test_settings_of_kafka_are_passed_on() -> None:
    assert read(kafka__security__protocol="SSL").kafka["security.protocol"] == "SSL"


@pytest.mark.parametrize("name", ["assigner", "group", "member", "kafka.bootstrap.servers", "subscribe"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"option {name} is missing; give "):
        read(without=name)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"memebr": "x"}, "option memebr is not known to assigned_kafka; did you mean member?"),
        ({"zzz": "x"}, "option zzz is not known to assigned_kafka; known are assigner,"),
        ({"assign": "{}"}, "use subscribe"),
        ({"subscribePattern": "a.*"}, "list the topics with subscribe"),
        ({"asyncProgressTrackingEnabled": "true"}, "commit log"),
        ({"kafka__group__id": "x"}, r"option kafka.group.id can't be set: it is the option group"),
        ({"kafka__auto__offset__reset": "x"}, "use startingOffsets"),
        ({"assigner": "host:many"}, "option assigner: address 'host:many' is not host:port"),
        ({"group": ".."}, "option group: group '..' is reserved"),
        ({"member": "a\nb"}, "option member: .*printed"),
        ({"subscribe": "a,a"}, "names a topic twice"),
        ({"subscribe": "a b"}, "option subscribe: topic 'a b' is not a Kafka topic name"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger is '0'; write a whole number from 1 up"),
        ({"minPartitions": "-1"}, "option minPartitions is '-1'"),
        ({"includeHeaders": "yes"}, "option includeHeaders is 'yes'; write true or false"),
        ({"assignerTimeout": "soon"}, "option assignerTimeout is 'soon'; write a number above 0"),
        ({"kafkaTimeout": "0"}, "option kafkaTimeout is '0'"),
        ({"capacity": "nan"}, "option capacity is 'nan'"),
        ({"startingOffsets": "soon"}, "option startingOffsets is neither earliest, latest nor JSON"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "orders-0 is -3"),
        ({"startingOffsets": '{"orders": 5}'}, "option startingOffsets is neither"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"tlsKey": "k.pem"}, "option tlsKey is of no use without tlsCert"),
        ({"path": "/x"}, r"use load\(\) without a path"),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        read(True, "", **given)


def test_offsets_may_be_named_by_partition() -> None:
    starting = read(startingOffsets='{"orders": {"0": 23, "1": -2, "2": -1}}').starting
    assert [starting.of(TopicPartition("orders", n)) for n in range(3)] == [23, EARLIEST, LATEST]
    with pytest.raises(InvalidInput, match="option startingOffsets says nothing about orders/3"):
        starting.of(TopicPartition("orders", 3))


def test_tls_is_used_when_it_is_set() -> None:
    assert read().tls is None
    assert read(tls="true").tls == Tls()
    assert read(tlsCa="ca.pem").tls == Tls(ca="ca.pem")
    with pytest.raises(InvalidInput, match="can't be used"):
        Tls(ca="/no/such/file").context()


def test_a_batch_read_needs_no_group_and_refuses_a_member() -> None:
    assert read(streaming=False).group == ""
    for name, value in {"member": "m", "includeEpoch": "true", "group": "g", "assigner": "a:1"}.items():
        with pytest.raises(InvalidInput, match=f"option {name} .* leave it out"):
            read(streaming=False, **{name: value})


def test_control_rows_bring_their_columns() -> None:
    options = read(controlRows="true", fence__path="/lake", snapshotEvery="7")
    assert (options.control_rows, options.epoch, options.snapshot_every) == (True, True, 7)
    assert options.fence == {"fence.path": "/lake"}
    names = AssignedKafka({**STREAM, "controlRows": "true", "fence.path": "/lake"}).schema().names
    assert names[-2:] == ["epoch", "control"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"controlRows": "true"}, r"controlRows needs .*fence\.path"),
        ({"controlRows": "true", "includeEpoch": "false", "fence__path": "/l"}, "control rows need the epoch"),
        ({"snapshotEvery": "5"}, "no effect without controlRows"),
        ({"snapshotEvery": "0", "controlRows": "true", "fence__path": "/l"}, "whole number from 1 up"),
        ({"fence__url": "sqlite:///x"}, "only a part of that is given"),
        ({"fence__url": "nonsense", "fence__table": "t"}, r"options fence\.\*: option url is no database URL"),
        ({"fence__path": "/l", "fence__url": "sqlite:///x", "fence__table": "t"}, "both given"),
        ({"fence__sink": "x"}, "only a part of that is given"),
        ({"fence__tabel": "x"}, r"did you mean fence\.table"),
    ],
)
def test_what_is_wrong_about_states_and_sinks_is_named(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        read(True, "", **given)


@pytest.mark.parametrize("name", ["controlRows", "snapshotEvery", "fence__path"])
def test_a_batch_read_has_no_states(name: str) -> None:
    with pytest.raises(InvalidInput, match="is for streams"):
        read(False, "", **{name: "1"})


def test_a_batch_read_may_end_at_what_a_group_has_committed() -> None:
    options = read(streaming=False, endingOffsets="committed", group="g", assigner="a:1")
    assert options.ending.of(TopicPartition("orders", 0)) == COMMITTED
    with pytest.raises(InvalidInput, match="option group is missing"):
        read(streaming=False, endingOffsets="committed")
    with pytest.raises(InvalidInput, match="option startingOffsets is neither earliest, latest nor JSON"):
        read(startingOffsets="committed")


def test_options_travel_to_executors() -> None:
    options = read(startingOffsets='{"orders": {"0": 23}}', tls="true")
    assert pickle.loads(pickle.dumps(options)) == options


# --- columns -----------------------------------------------------------------------------------------------------


def test_columns_are_those_of_sparks_own_source_and_more_on_request() -> None:
    plain = AssignedKafka(dict(STREAM)).schema()
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert plain.fieldNames() == names
    full = AssignedKafka({**STREAM, "includeHeaders": "true", "includeEpoch": "true"}).schema()
    assert full.fieldNames() == [*names, "headers", "epoch"]
    assert arrow_schema(full).names == full.fieldNames()


def test_another_schema_is_refused() -> None:
    with pytest.raises(InvalidInput, match="columns of assigned_kafka are fixed"):
        AssignedKafka(dict(STREAM)).streamReader(row_schema(headers=True, epoch=False))


# --- what must be installed --------------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "pyarrow" else object())
    with pytest.raises(MissingRequirement, match=r"needs pyarrow; install the extra, .*: pip install '\.\[spark\]'"):
        require_extra()


def test_a_spark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "version", lambda name: "4.1.3")
    with pytest.raises(MissingRequirement, match=r"needs pyspark 4\.2 or later; 4\.1 is installed"):
        require_extra()


def test_pandas_that_spark_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "version", lambda name: {"pandas": "3.1.1"}.get(name, "4.3.0"))
    with pytest.raises(MissingRequirement, match=r"needs pandas below 3\.0.*; 3\.1 is installed"):
        require_extra()


def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("assigner.spark.requirements.shutil.which", lambda name: None)
    with pytest.raises(MissingRequirement, match="Spark needs Java 17 and there is none: install it"):
        require_java()


def test_java_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told:
        stderr = 'openjdk version "11.0.2" 2019-01-15'

    monkeypatch.setattr(requirements, "_java", lambda: "/usr/bin/java")
    monkeypatch.setattr("assigner.spark.requirements.subprocess.run", lambda *args, **more: Told)
    with pytest.raises(MissingRequirement, match="Java 17 or later, /usr/bin/java is 11"):
        require_java()
