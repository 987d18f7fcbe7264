"""`assigner serve` and `assigner gateway`: run a process until a signal arrives, then shut it down in order."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import anyio
import click
from anyio.abc import TaskStatus
from rich.panel import Panel
from rich.text import Text

from assigner import logs
from assigner.cli.commands.config import takes_settings
from assigner.cli.exit_codes import UNREACHABLE, USAGE, Failure
from assigner.cli.gc_tuning import collect_closed, freeze
from assigner.cli.output import console
from assigner.errors import AssignerError, StoreError
from assigner.server.transport.open_files import raise_limit
from assigner.service import GatewayProcess, Process, Service
from assigner.settings import Loaded, Settings

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SECOND_SIGNAL = 130


@click.command()
@takes_settings
def serve(loaded: Loaded) -> None:
    """Serve until SIGTERM or SIGINT; then hand over leadership, end the streams and exit with 0."""
    _run(loaded, Service, "; choose another --grpc-port or --grpc-host")


@click.command()
@takes_settings
def gateway(loaded: Loaded) -> None:
    """Serve Kafka clients in a process of its own, beside `assigner serve` on the same store.

    It takes the settings of `serve`, leads no group, and answers probes and metrics on HTTP. On SIGTERM or SIGINT its
    clients go elsewhere, and it exits with 0. To serve them within the service: `assigner serve --gateway`.
    """
    _run(loaded, GatewayProcess, "; choose another --gateway-port or --gateway-host")


def _run(loaded: Loaded, process: Callable[[Settings], Process], remedy: str) -> None:
    logs.configure(loaded.settings.log)
    log = logs.get_logger("assigner.cli")
    for note in loaded.notes:
        log.warning("setting_flagged", note=note)
    try:
        anyio.run(_serve, loaded.settings, process)
    except* StoreError as errors:
        raise _failure(UNREACHABLE, errors, "store_unreachable") from None
    except* AssignerError as errors:
        raise _failure(USAGE, errors, "invalid_settings") from None
    except* OSError as errors:
        raise _failure(USAGE, errors, "cannot_listen", remedy) from None
    finally:
        logs.close()


def _failure(code: int, errors: BaseExceptionGroup[Any], kind: str, remedy: str = "") -> Failure:
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return Failure(code, f"{first}{remedy}", kind=kind)


async def _serve(settings: Settings, process: Callable[[Settings], Process]) -> None:
    raise_limit()
    async with anyio.create_task_group() as tasks:
        signals = _Signals(tasks.cancel_scope.cancel)
        await tasks.start(signals.listen)
        async with process(settings) as running:
            signals.act = running.stop
            freeze()
            if isinstance(running, Service):
                server = running.server
                tasks.start_soon(collect_closed, lambda: server.closed_connections, lambda: server.open_connections)
            announce(settings, running)
            await running.run_until_stopped()
        tasks.cancel_scope.cancel()


class _Signals:
    """Runs `act` at the first signal: cancel while the service starts, stop in order once it runs."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    async def listen(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*_SIGNALS) as received:
            task_status.started()
            number = await anext(received)
        # A second signal exits at once.
        for each in _SIGNALS:
            signal.signal(each, _exit_at_once)
        logs.get_logger("assigner.cli").info("shutdown_requested", signal=number.name)
        self.act()


def _exit_at_once(_number: int, _frame: Any) -> None:
    os._exit(_SECOND_SIGNAL)


def announce(settings: Settings, process: Process) -> None:
    """Show the addresses of the process: a panel at a terminal, and a log line."""
    facts = {"instance": settings.instance.name, "store": settings.store.backend}
    if isinstance(process, Service):
        facts["grpc"] = f"{settings.grpc.host}:{process.server.port}"
    if process.gateway is not None:
        facts["kafka"] = f"{settings.gateway.host}:{process.gateway.port}"
    facts["http"] = f"http://{settings.http.host}:{process.web.port}"
    if sys.stderr.isatty():
        body = Text("\n").join(Text.assemble((f"{name:9}", "bold"), value) for name, value in facts.items())
        console(stderr=True).print(Panel(body, title="assigner", expand=False, border_style="green"))
    logs.get_logger("assigner.cli").info("service_started", **facts)
