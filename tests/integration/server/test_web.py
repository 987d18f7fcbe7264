"""The HTTP side, over a real socket: probes that fail for the right reasons, and scrapes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
from aiohttp import ClientSession, web

from assigner.clock import SystemClock
from assigner.errors import InvalidInput
from assigner.observability.metrics import GroupSnapshot, Metrics
from assigner.settings import HttpSettings
from assigner.web import ProcessLiveness, Route, WebServer, server


class SteppedClock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 0.0


class Site:
    """A running server with everything a test turns."""

    def __init__(self, clock: SteppedClock, routes: tuple[Route, ...] = ()) -> None:
        self.clock = clock
        self.reasons: list[str] = []
        self.groups: list[GroupSnapshot] = []
        self.metrics = Metrics(lambda: self.groups)
        # A tick that never comes by itself: the test beats, or does not.
        self.liveness = ProcessLiveness(clock, stall=5, tick=3600)
        settings = HttpSettings(port=0)
        self.server = WebServer(settings, lambda: self.reasons, self.liveness, self.metrics, clock, routes)

    async def get(self, path: str) -> tuple[int, str]:
        return await self.ask("GET", path)

    async def ask(self, method: str, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.server.port}{path}"
        async with ClientSession() as session, session.request(method, url) as response:
            return response.status, await response.text()


@asynccontextmanager
async def running(routes: tuple[Route, ...] = ()) -> AsyncIterator[Site]:
    site = Site(SteppedClock(), routes)
    await site.server.start()
    try:
        yield site
    finally:
        await site.server.close()


async def test_a_working_instance_is_alive_and_ready() -> None:
    async with running() as site:
        assert await site.get("/livez") == (200, "ok\n")
        assert await site.get("/readyz") == (200, "ok\n")


async def test_an_instance_that_is_not_ready_says_why_and_is_still_alive() -> None:
    async with running() as site:
        site.reasons = ["store unreachable", "draining"]
        assert await site.get("/readyz") == (503, "store unreachable\ndraining\n")
        assert (await site.get("/livez"))[0] == 200


async def test_a_loop_without_ticks_is_not_alive() -> None:
    async with running() as site:
        site.clock.time += 6
        status, said = await site.get("/livez")
        assert status == 503
        assert "event loop made no progress for 6.0 s" in said


async def test_a_stalled_task_is_found_and_its_next_beat_heals() -> None:
    async with running() as site:
        with site.liveness.essential("relay", silence=2) as pulse:
            site.clock.time += 3
            assert await site.get("/livez") == (503, "relay made no progress for 3.0 s\n")
            pulse.beat()
            assert (await site.get("/livez"))[0] == 200


async def test_a_task_that_may_be_silent_is_never_stalled() -> None:
    async with running() as site:
        with site.liveness.essential("elector"):
            site.clock.time += 4
            assert (await site.get("/livez"))[0] == 200


async def test_a_task_that_died_is_the_end_of_liveness() -> None:
    async with running() as site:
        with pytest.raises(RuntimeError), site.liveness.essential("coordinator"):
            raise RuntimeError("boom")
        assert await site.get("/livez") == (503, "coordinator ended: RuntimeError: boom\n")


async def test_a_task_that_was_stopped_is_not_a_death() -> None:
    async with running() as site:
        with anyio.CancelScope() as scope, site.liveness.essential("coordinator", silence=1):
            scope.cancel()
            site.clock.time += 2
            await anyio.sleep_forever()
        with site.liveness.essential("relay"):
            pass
        assert site.liveness.problems() == []


async def test_a_dead_ticker_is_not_alive() -> None:
    async with running() as site:
        ticker = next(task for task in asyncio.all_tasks() if task.get_name() == "liveness-ticker")
        ticker.cancel()
        await asyncio.wait([ticker])
        status, said = await site.get("/livez")
        assert (status, said) == (503, "event loop ticker is not running\n")


@pytest.mark.virtual_time
async def test_the_ticker_reports_how_late_it_was() -> None:
    lags: list[float] = []

    class Lagging(SteppedClock):
        def now(self) -> float:
            return asyncio.get_running_loop().time() * 1.5

    liveness = ProcessLiveness(Lagging(), tick=1.0)
    with anyio.move_on_after(3.5):
        await liveness.run(lags.append)
    assert lags == pytest.approx([0.5, 0.5, 0.5])


async def test_a_lag_callback_that_fails_is_a_death_not_a_silence() -> None:
    liveness = ProcessLiveness(SystemClock(), tick=0.001)

    def broken(_seconds: float) -> None:
        raise RuntimeError("no metrics")

    with pytest.raises(RuntimeError):
        await liveness.run(broken)
    assert liveness.problems() == ["event loop ended: RuntimeError: no metrics"]


async def test_metrics_are_scraped() -> None:
    async with running() as site:
        site.groups = [GroupSnapshot(group="g", is_leader=True, partitions=12)]
        status, text = await site.get("/metrics")
        assert status == 200
        assert 'assigner_group_partitions{group="g"} 12.0' in text


async def test_many_scrapes_at_once_are_all_answered() -> None:
    async with running() as site:
        answers = await asyncio.gather(*(site.get("/metrics") for _ in range(20)))
        assert {status for status, _ in answers} == {200}


async def test_those_who_connect_and_say_nothing_keep_no_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 10)
    async with running() as site, AsyncExitStack() as mutes:
        streams = [
            await mutes.enter_async_context(await anyio.connect_tcp("127.0.0.1", site.server.port)) for _ in range(25)
        ]
        assert await site.get("/livez") == (200, "ok\n")
        for stream in streams[:15]:
            with anyio.fail_after(30), pytest.raises(anyio.EndOfStream):
                await stream.receive()
        await streams[-1].send(b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"200 OK" in await streams[-1].receive()
        assert 'assigner_refusals_total{reason="http_connections"} 16.0' in (await site.metrics.render()).decode()


async def test_further_routes_are_served_and_listed() -> None:
    async def hello(_request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async with running((Route("/hello", hello),)) as site:
        assert await site.get("/hello") == (200, "hello")
        assert "/hello" in (await site.get("/"))[1]
        assert (await site.get("/unknown"))[0] == 404


async def test_a_head_request_is_answered_like_a_get() -> None:
    async with running() as site:
        assert (await site.ask("HEAD", "/livez"))[0] == 200


async def test_a_body_nobody_wants_is_refused() -> None:
    async with running() as site:
        assert (await site.ask("POST", "/livez"))[0] == 405


async def test_a_taken_port_is_refused_with_the_remedy() -> None:
    async with running() as site:
        second = WebServer(
            HttpSettings(port=site.server.port), list, ProcessLiveness(SystemClock()), Metrics(), SystemClock()
        )
        with pytest.raises(InvalidInput, match="choose another --http-port"):
            await second.start()
        await second.close()


async def test_it_listens_on_loopback_by_default() -> None:
    assert HttpSettings().host == "127.0.0.1"
