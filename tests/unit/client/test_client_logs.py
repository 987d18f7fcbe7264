"""What the client library says to a program that has the standard library's logging, or none at all."""

from __future__ import annotations

import socket
import subprocess
import sys

import anyio
import pytest

from assigner import client, logs
from assigner.client import AssignerConsumer, Handler, Ownership
from assigner.errors import InvalidInput
from assigner.testing.waiting import eventually
from tests.support.clients.recording_handler import QUICK, consuming, owns
from tests.support.fakes.scripted_assigner import ScriptedAssigner

SAYING = """
import logging
from assigner.logs import get_logger
{setup}
try:
    raise ValueError("no such thing")
except ValueError:
    get_logger("assigner.client.x").exception("handler_failed", partition="orders/3@1", reason="it said \\"no\\" twice")
"""


@pytest.mark.parametrize(
    ("setup", "begins"),
    [
        ("", "handler_failed "),
        ("logging.basicConfig()", "ERROR:assigner.client.x:handler_failed "),
        ("logging.basicConfig(format='%(message)s')", "handler_failed "),
    ],
)
def test_a_program_with_plain_logging_or_none_sees_readable_lines(setup: str, begins: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", SAYING.format(setup=setup)], capture_output=True, text=True, check=True
    ).stderr.splitlines()
    assert said[0] == begins + r'partition=orders/3@1 reason="it said \"no\" twice"'
    assert said[1].startswith("Traceback")
    assert said[-1] == "ValueError: no such thing"


def test_fields_stay_fields_for_a_formatter_that_wants_them(caplog: pytest.LogCaptureFixture) -> None:
    logs.get_logger("assigner.x").warning("moved", group="a b", epoch=3)
    (record,) = caplog.records
    assert record.getMessage() == 'moved group="a b" epoch=3'
    assert isinstance(record.msg, dict)
    assert (record.msg["event"], record.msg["epoch"]) == ("moved", 3)


def test_text_of_others_makes_no_second_line(caplog: pytest.LogCaptureFixture) -> None:
    logs.get_logger("assigner.x").warning("moved", group="a\nERROR: forged\x1b[2J")
    assert caplog.records[0].getMessage() == r'moved group="a\nERROR: forged\u001b[2J"'


class Failing(Handler):
    async def assigned(self, partition: Ownership) -> None:
        raise LookupError(f"no state for {partition.partition}")


async def test_a_handler_that_fails_is_one_line_each_time_with_the_traceback_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    owned = {f"p{number}": 1 for number in range(20)}
    async with ScriptedAssigner(owned=owned) as service, consuming(service, Failing()) as consumer:
        await consumer.wait_for(lambda one: one.statistics().handler_failures >= 40)
    told = [record for record in caplog.records if record.getMessage().startswith("handler_failed")]
    assert len(told) >= 40
    assert sum(record.exc_info is not None for record in told) == 1
    assert told[0].exc_info is not None
    first = told[0].getMessage()
    assert "call=assigned" in first
    assert "partition=orders/" in first
    assert "LookupError: no state for" in first


def unknown(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


async def test_a_service_that_never_answered_is_not_called_lost_and_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At once: a real resolver may think about it for as long as it likes.
    monkeypatch.setattr(socket, "getaddrinfo", unknown)

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "assigner.client.session"]

    async def enter() -> None:
        async with AssignerConsumer(["nowhere.invalid:50051"], "g", "c", ["t"], Handler(), timing=QUICK):
            pytest.fail("there is nobody to answer")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(enter)
        await eventually(lambda: len(lines()) >= 2)
        tasks.cancel_scope.cancel()
    told = lines()
    assert not any("contact_lost" in line for line in told)
    assert "contact_failed" in told[0]
    assert "nowhere.invalid:50051" in told[0]


async def test_a_service_that_stays_away_is_logged_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedAssigner(owned={"p0": 1}) as service, consuming(service, Handler()) as consumer:
        await owns(consumer, p0=1)
        await service.stop()
        tries = consumer.statistics
        with anyio.fail_after(30):
            await consumer.wait_for(lambda one: tries().failed_tries >= 40)
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("contact_lost")]
    assert 1 <= len(told) <= 8
    assert "tries=" in told[-1]


async def test_topics_given_as_one_text_are_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match=r"topics is the text 'orders'; give a list, \['orders'\]"):
        AssignerConsumer("127.0.0.1:1", "g", "c", "orders", Handler())


class Misspelt(Handler):
    async def asigned(self, partition: Ownership) -> None:
        """Nobody calls it."""

    async def fetch(self, partition: Ownership) -> None:
        """The program's own, and like nothing of ours."""


async def test_a_method_that_is_spelt_almost_like_one_of_ours_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    AssignerConsumer("127.0.0.1:1", "g", "c", ["orders"], Misspelt())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "asigned" in line
    assert "assigned" in line.replace("asigned", "")
    assert "fetch" not in line


def test_errors_that_joining_raises_can_be_imported_from_the_client() -> None:
    assert {"InvalidInput", "InvalidName", "UnknownTopic"} <= set(client.__all__)
