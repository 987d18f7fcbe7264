"""What supervised loops of a running service do to its probes, over a real socket."""

from __future__ import annotations

from typing import NoReturn

import pytest
from aiohttp import ClientSession

from assigner.aio import supervision
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, Settings
from assigner.testing.waiting import eventually


async def livez(service: Service) -> tuple[int, str]:
    url = f"http://127.0.0.1:{service.web.port}/livez"
    async with ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_livez_fails_while_a_loop_can_not_go_on_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "HOPELESS", 2)
    monkeypatch.setattr(supervision, "STEADY", 1.0)

    def broken() -> NoReturn:
        raise KeyError("a bug")

    async with Service(Settings(grpc=ServerSettings(port=0), http=HttpSettings(port=0))) as service:
        await service.wait_ready()
        leadership = service.instance.leadership
        assert leadership is not None
        assert await livez(service) == (200, "ok\n")
        with monkeypatch.context() as patch:
            patch.setattr(leadership, "_hand_over", broken)
            leadership._changed.notify()
            await eventually(lambda: bool(service.liveness.problems()), within=30)
            status, said = await livez(service)
            assert status == 503
            assert said.startswith("leadership failed 2 times in a row: KeyError: 'a bug'")
        await eventually(lambda: not service.liveness.problems(), within=30)
        assert await livez(service) == (200, "ok\n")


async def test_a_store_that_has_ended_by_itself_fails_livez(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Service(Settings(grpc=ServerSettings(port=0), http=HttpSettings(port=0))) as service:
        monkeypatch.setattr(service.instance.store, "problems", lambda: ["the store has ended by itself"])
        assert await livez(service) == (503, "the store has ended by itself\n")
