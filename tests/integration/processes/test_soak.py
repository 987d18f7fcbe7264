"""The soak runs, in small, and finds a zombie."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from bench.soak import churn
from bench.soak.__main__ import main
from bench.soak.churn import INSTANCES, Served, Soak, soak
from tests.support.servers.etcd import EtcdUnavailableError, find_binary

pytestmark = [pytest.mark.processes, pytest.mark.etcd]


@pytest.fixture(autouse=True)
def _etcd() -> None:
    try:
        find_binary()
    except EtcdUnavailableError as missing:
        pytest.skip(str(missing))


def test_a_small_soak_is_flat_and_settles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--minutes", "0.2", "--seed", "1", "--logs", str(tmp_path)])
    said = capsys.readouterr().out
    assert status == 0, said
    assert "flat, settled, nobody a zombie" in said
    assert all(name in said for name in (*INSTANCES, "leases", "rss_mb", "tasks", "joins", "cuts"))


async def test_an_instance_that_answers_nobody_any_more_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From within the run: the second instance is frozen while everything settles."""
    monkeypatch.setattr(churn, "SETTLE_WITHIN", 15.0)
    monkeypatch.setattr(churn, "LIFE", (1.0, 2.0))
    frozen: list[Served] = []
    whole = Soak.unsettled

    async def unsettled(self: Soak, http: aiohttp.ClientSession) -> list[str]:
        if not frozen:
            frozen.append(self._served[1])
            frozen[0].process.freeze()
        return await whole(self, http)

    monkeypatch.setattr(Soak, "unsettled", unsettled)
    monkeypatch.setattr(Served, "measure", _nothing)
    try:
        _, problems = await soak(0.02, tmp_path, 1, lambda _: None)
    finally:
        frozen[0].process.kill()
    assert any(f"{INSTANCES[1]} /livez: 0 no answer" in problem for problem in problems)
    assert any("too few samples" in problem for problem in problems)


async def _nothing(_served: Served, _http: aiohttp.ClientSession) -> dict[str, float]:
    return {}
