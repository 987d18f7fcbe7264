"""Logs: JSON by default, text at a terminal, one pipeline for everyone, and never in the loop's way."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from assigner import logs
from assigner.logs import LogFormat, LogLevel, LogSettings, QueuedWriter


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    logs.close()
    root.setLevel(level)
    root.handlers[:] = handlers


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    logs.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_change_is_one_line_of_json_with_the_telling_fields_first() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), stream)
    logs.get_logger("assigner.x").info("moved", old="a", cause="left", epoch=3, generation=2, group="g", name="c")
    (line,) = lines(stream)
    assert list(line)[1:8] == ["level", "logger", "event", "group", "generation", "epoch", "cause"]
    assert line["name"] == "c"


def test_the_standard_librarys_loggers_come_through_the_same_way() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), stream)
    logging.getLogger("some.library").warning("said %s", "this")
    assert lines(stream)[0]["event"] == "said this"


def test_a_context_is_on_every_line_until_it_is_left() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), stream)
    log = logs.get_logger("assigner.x")
    with logs.context(group="g"):
        log.info("one")
    log.info("two")
    one, two = lines(stream)
    assert one["group"] == "g"
    assert "group" not in two


def test_a_context_is_also_on_the_lines_of_other_libraries() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), stream)
    with logs.context(group="g"):
        logging.getLogger("some.library").warning("said")
        structlog.get_logger("some.plugin").warning("said", epoch=1)
    library, plugin = lines(stream)
    assert (library["group"], library["logger"]) == ("g", "some.library")
    assert (plugin["group"], plugin["logger"], plugin["epoch"]) == ("g", "some.plugin", 1)


def test_a_bound_logger_adds_its_fields_and_a_call_may_override_them(caplog: pytest.LogCaptureFixture) -> None:
    log = logs.get_logger("assigner.x").bind(group="g", term=1)
    log.warning("one", term=2)
    log.warning("two")
    assert [record.getMessage() for record in caplog.records] == ["one group=g term=2", "two group=g term=1"]


def test_a_record_names_the_line_that_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = logs.get_logger("assigner.x")
    log.warning("one")
    log.bind(group="g").error("two", exc_info=ValueError("broken"))
    assert {(record.pathname, record.funcName) for record in caplog.records} == {
        (__file__, "test_a_record_names_the_line_that_logged")
    }


def test_an_exception_is_inside_its_line() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logs.get_logger("assigner.x").exception("failed")
    (line,) = lines(stream)
    assert "ValueError: broken" in line["exception"]


def test_what_cannot_be_encoded_is_shown_as_text() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), stream)
    logs.get_logger("assigner.x").info("odd", thing={1, 2} and object)
    assert "object" in lines(stream)[0]["thing"]


def test_levels_are_kept() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(level=LogLevel.WARNING), stream)
    logs.get_logger("assigner.x").info("quiet")
    logs.get_logger("assigner.x").warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_text_is_for_a_terminal_and_json_for_the_rest() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert logs.wants_json(LogFormat.AUTO, io.StringIO())
    assert not logs.wants_json(LogFormat.AUTO, Terminal())
    assert logs.wants_json(LogFormat.JSON, Terminal())
    assert not logs.wants_json(LogFormat.TEXT, io.StringIO())


def test_text_is_readable() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(format=LogFormat.TEXT), stream)
    logs.get_logger("assigner.x").info("moved", group="g")
    logs.close()
    assert "moved" in stream.getvalue()
    assert "group=g" in stream.getvalue()


def test_configuring_twice_does_not_double_the_lines() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), io.StringIO())
    logs.configure(LogSettings(), stream)
    logs.get_logger("assigner.x").info("once")
    assert len(lines(stream)) == 1


def test_without_configuring_the_embedding_programs_handlers_get_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logs.get_logger("assigner.x").info("moved", group="g")
    assert "moved group=g" in caplog.text


class Stuck(io.StringIO):
    """A pipe whose reader does not read until told to."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.released.wait(10)
        return super().write(text)


def test_a_reader_that_does_not_read_costs_lines_and_never_a_wait() -> None:
    stream = Stuck()
    writer = QueuedWriter(stream, lambda dropped: f"dropped {dropped}", capacity=2)
    writer.write("first")
    assert stream.entered.wait(10)
    for number in range(5):
        writer.write(f"line {number}")
    stream.released.set()
    writer.close()
    assert stream.getvalue().splitlines() == ["first", "line 0", "dropped 3", "line 1"]


def test_a_reader_that_is_gone_ends_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    writer = QueuedWriter(Gone(), str)
    writer.write("x")
    writer.close()
    writer.close()


def test_closing_gives_loggers_the_levels_they_had() -> None:
    before = [logging.getLogger(name).level for name in (None, "grpclib")]
    logs.configure(LogSettings(level=LogLevel.ERROR), io.StringIO())
    assert [logging.getLogger(name).level for name in (None, "grpclib")] == [logging.ERROR, logging.ERROR]
    logs.configure(LogSettings(level=LogLevel.DEBUG), io.StringIO())
    logs.close()
    assert [logging.getLogger(name).level for name in (None, "grpclib")] == before
