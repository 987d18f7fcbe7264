"""Every error has a status, and none shows the inside."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from assigner import errors
from assigner.server.transport import status
from assigner.server.transport.status import MAX_TEXT, STATUSES, status_of


def all_errors(kind: type[errors.AssignerError] = errors.AssignerError) -> Iterator[type[errors.AssignerError]]:
    yield kind
    for subclass in kind.__subclasses__():
        if subclass.__module__ == errors.__name__:
            yield from all_errors(subclass)


EXPECTED = {
    errors.InvalidName: Status.INVALID_ARGUMENT,
    errors.InvalidInput: Status.INVALID_ARGUMENT,
    errors.NotRegistered: Status.NOT_FOUND,
    errors.NotTheTarget: Status.NOT_FOUND,
    errors.UnknownTopic: Status.NOT_FOUND,
    errors.UnknownGroup: Status.NOT_FOUND,
    errors.FailedPrecondition: Status.FAILED_PRECONDITION,
    errors.Superseded: Status.ABORTED,
    errors.Evicted: Status.ABORTED,
    errors.TooSlow: Status.RESOURCE_EXHAUSTED,
    errors.LimitReached: Status.RESOURCE_EXHAUSTED,
    errors.StoreUnavailable: Status.UNAVAILABLE,
    errors.StoreReadOnly: Status.UNAVAILABLE,
    errors.OutcomeUnknown: Status.UNAVAILABLE,
    errors.StoreRefused: Status.FAILED_PRECONDITION,
}


@pytest.mark.parametrize("kind", list(all_errors()), ids=lambda kind: kind.__name__)
def test_every_error_of_the_service_has_a_status_of_its_own_line(kind: type[errors.AssignerError]) -> None:
    assert kind in STATUSES, f"give {kind.__name__} a status in assigner/server/transport/status.py"


@pytest.mark.parametrize(("kind", "status"), EXPECTED.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_the_text_and_the_class_of_a_deliberate_error_are_passed_on(
    kind: type[errors.AssignerError], status: Status
) -> None:
    sent = status_of(kind("what, which rule, what to do"), "/s/m")
    assert (sent.status, sent.message, sent.error) == (status, "what, which rule, what to do", kind.__name__)


def test_an_error_that_only_a_plugin_knows_gets_its_bases_status() -> None:
    class Own(errors.StoreUnavailable):
        pass

    assert status_of(Own("down"), "/s/m").status is Status.UNAVAILABLE


def test_an_unexpected_error_is_logged_under_the_id_that_the_caller_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = Mock()
    monkeypatch.setattr(status, "_log", logged)
    sent = status_of(KeyError("password"), "/s/m")
    assert sent.status is Status.INTERNAL
    assert "password" not in (sent.message or "")
    entry = logged.error.call_args.kwargs
    assert entry["defect_id"] in (sent.message or "")
    assert isinstance(entry["exc_info"], KeyError)


def test_a_long_text_is_cut() -> None:
    sent = status_of(errors.FailedPrecondition("x" * 100_000), "/s/m")
    assert len(sent.message or "") == MAX_TEXT


def test_a_status_that_was_chosen_is_kept() -> None:
    assert status_of(GRPCError(Status.DATA_LOSS, "gone"), "/s/m").status is Status.DATA_LOSS
