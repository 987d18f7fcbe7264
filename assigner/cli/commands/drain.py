"""`assigner drain`: moves every partition off a consumer; with `--wait` it shows the progress until none is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import click
from grpclib.exceptions import StreamTerminatedError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assigner.cli.connection import AdminClient, ServiceTarget, call_service, connects_to_service, takes_group
from assigner.cli.exit_codes import TIMED_OUT, Failure
from assigner.cli.output import console, print_json
from assigner.proto.kafka_assigner.v1 import DrainProgress, DrainRequest


@click.command()
@takes_group
@click.argument("consumer")
@click.option("--wait", is_flag=True, help="Return only when no partition is left.")
@click.option(
    "--wait-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Give up waiting after this long; the drain goes on. Exit code 4.",
)
@connects_to_service
def drain(target: ServiceTarget, group: str, consumer: str, wait: bool, wait_timeout: float | None) -> None:
    """Move every partition off CONSUMER of GROUP."""
    request = DrainRequest(group=group, consumer=consumer, wait=wait)
    progress = _ProgressBar(f"{group}/{consumer}", visible=wait and not target.as_json)
    with progress.bar:
        last = call_service(target, lambda admin: _follow(admin, request, wait_timeout, progress), group=group)
    if target.as_json:
        print_json({"group": group, "consumer": consumer, "remaining": last.remaining, "done": last.done})
    elif last.done:
        console().print(f"{consumer} is drained", markup=False)
    elif not wait:
        console().print(f"{consumer} is draining, {last.remaining} partitions to go; --wait follows it", markup=False)
    if wait and not last.done:
        message = f"{consumer} still holds {last.remaining} partitions after {wait_timeout:g} s; the drain goes on"
        raise Failure(TIMED_OUT, message, kind="wait_timed_out", as_json=target.as_json)


async def _follow(
    admin: AdminClient, request: DrainRequest, wait_timeout: float | None, progress: _ProgressBar
) -> DrainProgress:
    """Return the last progress received, which is not `done` if the timeout came first."""
    last = DrainProgress()
    # Without --wait the server answers once, so the ordinary deadline holds.
    limit = wait_timeout if request.wait else admin.timeout
    received = False
    with anyio.move_on_after(limit) as scope:
        async for last in _progress(admin, request):
            received = True
            progress.update(last.remaining)
    if scope.cancelled_caught and not received:
        raise TimeoutError
    if received and request.wait and not last.done and not scope.cancelled_caught:
        raise StreamTerminatedError("the server stopped before the drain was done")
    return last


async def _progress(admin: AdminClient, request: DrainRequest) -> AsyncIterator[DrainProgress]:
    if not request.wait:
        yield await admin.drain(request.group, request.consumer)
        return
    async with aclosing(admin.drain_progress(request.group, request.consumer)) as stream:
        async for progress in stream:
            yield progress


class _ProgressBar:
    """Shows a progress bar on stderr, so that stdout has the result only."""

    def __init__(self, what: str, *, visible: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console(stderr=True), disable=not visible)
        self._task = self.bar.add_task(f"draining {what}", total=None)
        self._most = 0

    def update(self, remaining: int) -> None:
        # The number may rise during the drain: handoffs to the consumer count too.
        self._most = max(self._most, remaining)
        self.bar.update(self._task, total=self._most, completed=self._most - remaining)
