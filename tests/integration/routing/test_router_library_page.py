"""The programs and commands of docs/how-to/route-requests.md run as they stand there, and a move loses no request."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.servers.ports import free_port
from tests.support.service_processes import until
from tests.support.typed_page import TypedPage
from tests.unit.project.test_docs import ROOT

PAGE = ROOT / "docs/how-to/route-requests.md"
PATIENCE = 60.0
pytestmark = pytest.mark.processes


class Client:
    """Asks the page's router, over one connection, by many keys."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rwb")
        self._asked = 0

    def ask(self) -> str:
        """Make a request, and return the name of the owner that did it."""
        self._asked += 1
        line = f"key-{self._asked} do {self._asked}"
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        answer = self._file.readline().decode()
        assert answer.endswith(f" has done {line}\n"), answer
        return answer.split()[0]

    def owners(self, requests: int = 50) -> set[str]:
        return {self.ask() for _ in range(requests)}


@contextmanager
def client(port: int) -> Iterator[Client]:
    with closing(socket.create_connection(("127.0.0.1", port), PATIENCE)) as connection:
        yield Client(connection)


def test_the_page_does_what_it_says_and_carries_requests_through_moves(tmp_path: Path) -> None:
    page = TypedPage(PAGE, tmp_path, 9000, 9001)
    page.save(0, "owner.py")
    page.save(1, "router.py")
    serve, owner, router, ask = page.typed()
    second = re.sub(r"worker-1 \d+", f"worker-2 {free_port()}", owner)
    assert second != owner
    with page.running(serve), page.running(owner), page.running(router):
        until(lambda: page.prints(ask, "worker-1 has done cart-7 add tea"), PATIENCE, "the owner answers")
        with client(page.ports[9000]) as asking:
            assert asking.owners() == {"worker-1"}
            with page.running(second):
                until(lambda: asking.owners() == {"worker-1", "worker-2"}, PATIENCE, "both do requests")
            # The second one has ended with 0, after it had handed its partitions over.
            assert asking.owners() == {"worker-1"}
