"""A short run of the chaos with real processes; `make chaos-processes MINUTES=10` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from tests.chaos.processes import ProcessChaos
from tests.support.servers.etcd import EtcdServer, EtcdUnavailableError

pytestmark = [pytest.mark.processes, pytest.mark.etcd, pytest.mark.xdist_group("processes-chaos")]
SECONDS = 20.0


def test_a_short_chaos_of_processes_breaks_nothing_and_leaves_no_zombie(tmp_path: Path) -> None:
    try:
        server = EtcdServer(tmp_path)
    except EtcdUnavailableError as failure:
        pytest.skip(str(failure))
    if not server.fit_for_kill_tests:
        pytest.skip("this etcd release can lose writes when it is killed; run `make etcd` for a current one")
    with server, start_blocking_portal() as portal:
        chaos = ProcessChaos(server, tmp_path, portal, seed=1)
        try:
            chaos.start()
            chaos.run(SECONDS)
            assert not chaos.heal(), chaos.fleet.logs()
            assert not chaos.violations()
            assert all(chaos.answered(group) for group in chaos.groups.values()), "nothing was committed"
        finally:
            chaos.close()
