"""Whatever others wrote into names, failures and metadata, a terminal shows it and never obeys it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from assigner import logs
from assigner.api import FoundOffsets, GroupDescription
from assigner.cli import main, output
from assigner.cli.exit_codes import REFUSED, Failure
from assigner.errors import FailedPrecondition, InvalidInput, InvalidName
from assigner.logs import LogFormat, LogSettings
from assigner.logs.printable import as_json, one_line, shown
from assigner.model.keys import Keys, TopicPartition
from assigner.model.names import check_name
from assigner.model.records import Consumer, Offset, Quarantined
from assigner.proto.kafka_assigner import v1
from assigner.server.services.offsets import commits
from assigner.server.services.requests import Requests, option_changes
from tests.support.fakes import cli_service
from tests.support.fakes.cli_service import ScriptedAdministration, description, serving
from tests.support.fakes.fake_service import FakeOffsets

TITLE = "\x1b]0;owned\x07"
CLEAR = "\x1b[2J"
LINK = "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\"
C1 = "\x9b31m"
RLO = "\u202egnp.exe"
HOSTILE = f"disk full{TITLE}{CLEAR}{LINK}{C1}{RLO}\x7f\nforged row"
Run = Callable[..., Result]


def hostile_description(group: str = "orders") -> GroupDescription:
    told = description(group)
    return msgspec.structs.replace(
        told,
        summary=msgspec.structs.replace(told.summary, leader=HOSTILE, paused=True),
        leader_address=HOSTILE,
        members=tuple(
            msgspec.structs.replace(
                member, consumer=Consumer(consumer_name=member.consumer.consumer_name, evicted=HOSTILE, rack=HOSTILE)
            )
            for member in told.members
        ),
        quarantined=(Quarantined(topic="t", partition=3, failed=(HOSTILE,), reason=HOSTILE),),
        unreadable=(HOSTILE,),
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(cli_service, "description", hostile_description)
    offsets = FakeOffsets()
    offsets.found = FoundOffsets(((TopicPartition("t", 0), Offset(offset=1, epoch=1, metadata=HOSTILE)),))
    service = ScriptedAdministration()
    with serving(service, offsets=offsets) as address:

        def invoke(*arguments: str) -> Result:
            if "refused" in arguments:
                service.error = FailedPrecondition(HOSTILE)
            environment = {"ASSIGNER_ADDRESS": address, "COLUMNS": "200"}
            return CliRunner(env=environment).invoke(main, arguments)

        yield invoke


def obeys_nothing(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize(
    "command",
    [("groups",), ("describe", "orders"), ("offsets", "orders"), ("topics", "list", "orders"), ("pause", "refused")],
)
@pytest.mark.parametrize("form", [(), ("-o", "json")])
def test_no_command_hands_a_terminal_what_others_wrote_as_it_is(run: Run, command: Any, form: Any) -> None:
    result = run(*command, *form)
    assert obeys_nothing(result.output), repr(result.output)


def test_what_was_escaped_is_still_shown(run: Run) -> None:
    text = run("describe", "orders").output
    assert "disk full\\x1b]0;owned\\x07" in text.replace("\n", "")


def test_a_cell_stays_one_row(run: Run) -> None:
    lines = run("describe", "orders").output.splitlines()
    assert not any(line.startswith("forged row") for line in lines)


def test_json_means_the_same_to_a_program(run: Run) -> None:
    plain = json.loads(run("describe", "orders", "-o", "json").stdout)
    assert plain["quarantined"][0]["reason"] == HOSTILE


def test_a_failure_is_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    for as_plain_json in (False, True):
        Failure(REFUSED, HOSTILE, kind="refused", as_json=as_plain_json).show()
    assert obeys_nothing(capsys.readouterr().err)


def test_whatever_else_is_printed_passes_the_same_door(capsys: pytest.CaptureFixture[str]) -> None:
    output.console().print(HOSTILE, markup=False)
    assert obeys_nothing(capsys.readouterr().out)


@given(st.text())
def test_any_text_becomes_printable_and_printable_text_stays(text: str) -> None:
    assert one_line(text).isprintable()
    assert obeys_nothing(shown(text))
    if text.isprintable():
        assert one_line(text) == text


@given(st.text())
def test_any_text_as_json_is_printable_and_means_the_same(text: str) -> None:
    written = as_json({"text": text})
    assert obeys_nothing(written)
    assert json.loads(written) == {"text": text}


def test_a_line_of_the_log_is_printable_in_both_forms() -> None:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        for form in (LogFormat.JSON, LogFormat.TEXT):
            stream = io.StringIO()
            logs.configure(LogSettings(format=form), stream)
            logs.get_logger("assigner.x").warning("warm_failed", reason=HOSTILE)
            logs.close()
            assert obeys_nothing(stream.getvalue()), form
            assert stream.getvalue().count("\n") == 1, form
    finally:
        logs.close()
        root.setLevel(level)
        root.handlers[:] = handlers


# --- at the door -------------------------------------------------------------------------------------------------


def test_a_failure_is_kept_without_what_a_terminal_would_obey() -> None:
    request = v1.PartitionReadyRequest(consumer_name="c", partition=v1.TopicPartition("t", 0))
    kept = Requests("default", Keys().check_group).acks(request, HOSTILE).acks[0].failure
    assert kept.isprintable()
    assert kept.startswith("disk full")


@pytest.mark.parametrize("text", [TITLE, C1, RLO, "a\x00b", "\x7f"])
def test_metadata_that_a_terminal_would_obey_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"metadata\[0\] holds"):
        commits(commit_with(text))


@pytest.mark.parametrize("text", ['{\n\t"at": 1\r\n}', "Größe 水", "👩\u200d🚀"])
def test_metadata_of_ordinary_text_is_kept_as_it_is(text: str) -> None:
    assert commits(commit_with(text))[0].metadata == text


def commit_with(metadata: str) -> v1.CommitOffsetsRequest:
    topic = v1.TopicOffsets(topic="t", partitions=[0], epochs=[1], offsets=[5], metadata=[metadata])
    return v1.CommitOffsetsRequest(consumer_name="c", topics=[topic])


@pytest.mark.parametrize("name", [" ", "   ", " a", "a "])
def test_a_name_of_blanks_or_with_blanks_around_it_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="blank"):
        check_name("group", name)


@pytest.mark.parametrize("depth", [40, 2_000, 2_700])
def test_options_nested_too_deep_are_refused_as_such(depth: int) -> None:
    with pytest.raises(InvalidInput, match="nested"):
        option_changes(v1.GroupOptions(strategy_options='{"a":' * depth + "1" + "}" * depth))


def test_options_longer_than_a_record_should_be_are_refused() -> None:
    with pytest.raises(InvalidInput, match="bytes"):
        option_changes(v1.GroupOptions(strategy_options='{"a": "' + "x" * 20_000 + '"}'))
