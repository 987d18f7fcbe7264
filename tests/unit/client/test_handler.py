"""A handler's methods: one whose name is almost one of ours is reported, because nobody would ever call it."""

from __future__ import annotations

import pytest

from assigner.client.handler import Handler, warn_of_misspelt


class Whole(Handler):
    async def warm(self, partition: object, order: object) -> None: ...


class Misspelt(Handler):
    async def asigned(self, partition: object) -> None: ...

    async def flush_everything(self) -> None: ...

    async def _released(self) -> None: ...

    def relase(self) -> None:
        """No coroutine, so no method of a handler."""


def test_a_method_whose_name_is_almost_ours_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_misspelt(Misspelt())
    assert [record.getMessage() for record in caplog.records] == [
        "handler_method_unknown method=Misspelt.asigned suggestion=assigned"
    ]


def test_nothing_is_said_of_a_handler_that_overrides_what_there_is(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_misspelt(Whole())
    assert not caplog.records
