"""The pages for operators do what they show: every `assigner` command on them is run as typed there, on a group like
theirs, and each error is the one that the page shows."""

from __future__ import annotations

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from tests.support.service_processes import UP_WITHIN, until
from tests.support.typed_page import TypedPage
from tests.unit.project.test_docs import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class Group(msgspec.Struct, frozen=True):
    """The group of a page."""

    topics: str
    workers: int = 2
    consume: str = ""
    """Options of its workers."""


_HEADING = re.compile(r"(name|partition|at|topic|consumer|group|member) {2,}")
PAGES = {
    "balance-by-load": Group("--topic billing/orders=4 --topic billing/clicks=2"),
    "choose-a-strategy": Group("--topic billing/orders=10"),
    # A drain takes as long as on the page.
    "operate": Group("--topic billing/orders=8", consume="--release-seconds 6"),
    "roll-out": Group("--topic billing/orders=12"),
    "what-if": Group("--topic billing/orders=10", workers=3),
}


class Operator:
    """Types what a page shows, one command after the other."""

    def __init__(self, page: TypedPage, group: Group, workers: ExitStack) -> None:
        self._page = page
        self._group = group
        self._workers = workers
        self.names: set[str] = set()

    def start_workers(self) -> None:
        for number in range(1, self._group.workers + 1):
            name = f"worker-{number}"
            command = f"assigner consume billing --name {name} --drain {self._group.consume}"
            self._workers.enter_context(self._page.running(command))
            self.names.add(name)
            self.wait_until_settled()

    def wait_until_settled(self) -> None:
        """Wait until all workers are there, share everything, and nothing moves."""

        def settled() -> bool:
            described = self._page.run("assigner describe billing").stdout
            summary = re.search(r"^billing +\S+ +(\d+) +\d+ +\d+ +(\d+) +(\d+) ", described, re.MULTILINE)
            owned = re.findall(r"^(\S+) +Ready +\d+ s ago +([1-9]\d*) ", described, re.MULTILINE)
            at_rest = summary is not None and summary.groups() == (str(len(self.names)), "0", "0")
            return at_rest and {name for name, _ in owned} == self.names

        until(settled, 2 * UP_WITHIN, f"{sorted(self.names)} share the partitions", every=0.2)

    def type(self, command: str, shown: list[str]) -> None:
        if found := re.match(r"cat (\S+)$", command):
            (self._page.folder / found[1]).write_text("\n".join(shown))
        done = self._page.run(command, typed="y\n")
        errors = [line for line in shown if line.startswith("Error: ")]
        assert (done.returncode != 0) == bool(errors), f"{command}: {done.stdout}{done.stderr}"
        for error in errors:
            assert error in said(done), command
        if len(shown) == 1 and not errors:
            assert shown[0] in done.stdout + done.stderr, command
        self._check_headings(shown, done.stdout)
        if "--explain" in command:
            assert [line.rstrip() for line in done.stdout.splitlines()] == shown
        if command.endswith("worker-1 --wait"):
            self._workers.close()  # all that were started; those that drained have ended by themselves
            self.names.clear()

    def _check_headings(self, shown: list[str], printed: str) -> None:
        """Check that a table that both the page and the program have has the same columns in both."""
        for heading in (line.split() for line in shown if _HEADING.match(line)):
            for line in (line.split() for line in printed.splitlines()):
                assert line[:2] != heading[:2] or line == heading, f"the page shows {heading}, and it is {line}"


def said(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split())


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_commands_of_the_page_do_what_it_shows(name: str, tmp_path: Path) -> None:
    page = TypedPage(ROOT / "docs" / "how-to" / f"{name}.md", tmp_path)
    with page.running(f"assigner serve {PAGES[name].topics}"), ExitStack() as workers:
        until(lambda: page.prints("assigner groups", "billing"), UP_WITHIN, "the service answers")
        operator = Operator(page, PAGES[name], workers)
        for command, shown in page.shown():
            if not operator.names:
                operator.start_workers()
            operator.type(command, shown)
