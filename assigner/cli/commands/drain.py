"""`assigner drain`: move everything off a consumer and, if told to, watch until nothing is left."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import click
from grpclib.exceptions import StreamTerminatedError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assigner.cli.connection import Admin, ServiceTarget, ask, reaches_service, takes_group
from assigner.cli.exit_codes import TIMED_OUT, Failure
from assigner.cli.output import console, print_json
from assigner.proto.kafka_assigner.v1 import DrainProgress, DrainRequest


@click.command()
@takes_group
@click.argument("consumer")
@click.option("--wait", is_flag=True, help="Return only when nothing is left.")
@click.option(
    "--wait-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Give up waiting after this long; the drain goes on. Exit code 4.",
)
@reaches_service
def drain(target: ServiceTarget, group: str, consumer: str, wait: bool, wait_timeout: float | None) -> None:
    """Move everything off CONSUMER of GROUP."""
    request = DrainRequest(group=group, consumer=consumer, wait=wait)
    shown = _Shown(f"{group}/{consumer}", visible=wait and not target.as_json)
    with shown.progress:
        last = ask(target, lambda admin: _follow(admin, request, wait_timeout, shown), group=group)
    if target.as_json:
        print_json({"group": group, "consumer": consumer, "remaining": last.remaining, "done": last.done})
    elif last.done:
        console().print(f"{consumer} is drained", markup=False)
    elif not wait:
        console().print(f"{consumer} is draining, {last.remaining} partitions to go; --wait follows it", markup=False)
    if wait and not last.done:
        message = f"{consumer} still holds {last.remaining} partitions after {wait_timeout:g} s; the drain goes on"
        raise Failure(TIMED_OUT, message, kind="wait_timed_out", as_json=target.as_json)


async def _follow(admin: Admin, request: DrainRequest, patience: float | None, shown: _Shown) -> DrainProgress:
    """The last progress seen; not `done` when patience ran out first."""
    last = DrainProgress()
    # Without --wait the server answers once, so the ordinary deadline holds.
    limit = patience if request.wait else admin.timeout
    heard = False
    with anyio.move_on_after(limit) as scope:
        async for last in _progress(admin, request):
            heard = True
            shown.update(last.remaining)
    if scope.cancelled_caught and not heard:
        raise TimeoutError
    if heard and request.wait and not last.done and not scope.cancelled_caught:
        raise StreamTerminatedError("the server stopped before the drain was done")
    return last


async def _progress(admin: Admin, request: DrainRequest) -> AsyncIterator[DrainProgress]:
    async for progress in admin.stub.drain(request):
        yield progress


class _Shown:
    """A bar on stderr, so that stdout stays for the result."""

    def __init__(self, what: str, *, visible: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=console(stderr=True), disable=not visible)
        self._task = self.progress.add_task(f"draining {what}", total=None)
        self._most = 0

    def update(self, remaining: int) -> None:
        # More may come to light while it drains: handoffs towards it are counted too.
        self._most = max(self._most, remaining)
        self.progress.update(self._task, total=self._most, completed=self._most - remaining)
