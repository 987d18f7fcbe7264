"""`assigner offsets`: what it shows, what it sets, and which files it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from assigner.api import FoundOffsets, NewOffset, WantedOffsets
from assigner.cli import main
from assigner.cli.commands.offsets import MAX_FILE_BYTES, MAX_PER_LIST, MAX_SET, read_offsets
from assigner.errors import FailedPrecondition
from assigner.model.keys import TopicPartition
from assigner.model.records import Offset
from tests.support.fakes.cli_service import ScriptedAdministration, serving
from tests.support.fakes.fake_service import FakeOffsets

Run = Callable[..., Result]


@pytest.fixture
def service() -> ScriptedAdministration:
    return ScriptedAdministration()


@pytest.fixture
def offsets() -> FakeOffsets:
    fake = FakeOffsets()
    fake.found = FoundOffsets(
        (
            (tp(10), Offset(offset=7, epoch=3, metadata="[red]", committed_at=1_700_000_000)),
            (tp(2), Offset(offset=42, committed_at=1_700_000_000)),
            (tp(3), None),
        ),
        unreadable=(tp(5),),
    )
    return fake


@pytest.fixture
def run(service: ScriptedAdministration, offsets: FakeOffsets) -> Iterator[Run]:
    with serving(service, offsets=offsets) as address:

        def invoke(*arguments: str) -> Result:
            environment = {"ASSIGNER_ADDRESS": address, "COLUMNS": "160"}
            return CliRunner(env=environment).invoke(main, ["offsets", "orders", *arguments])

        yield invoke


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


def a_file(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "offsets.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_committed_offsets_are_shown_in_order_and_void_ones_are_not(run: Run, offsets: FakeOffsets) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert offsets.asked == [("orders", WantedOffsets())]
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[1] == ["t/2", "42", "operator", "2023-11-14", "22:13:20Z"]
    assert lines[2] == ["t/10", "7", "3", "2023-11-14", "22:13:20Z", "[red]"]
    assert "t/3" not in result.stdout
    assert "unreadable records, left alone: t/5" in result.stdout


def test_offsets_as_json(run: Run) -> None:
    plain = json.loads(run("-o", "json").stdout)
    assert plain["group"] == "orders"
    assert plain["unreadable"] == ["t/5"]
    assert [line["partition"] for line in plain["offsets"]] == [2, 10]
    assert plain["offsets"][1] == {
        "topic": "t",
        "partition": 10,
        "offset": 7,
        "epoch": 3,
        "leader_epoch": -1,
        "metadata": "[red]",
        "committed_at": 1_700_000_000,
    }


def test_only_the_topics_asked_for(run: Run, offsets: FakeOffsets) -> None:
    run("--topic", "t", "--topic", "u")
    assert offsets.asked == [("orders", WantedOffsets(topics=("t", "u")))]


def test_a_group_without_offsets_says_so(run: Run, offsets: FakeOffsets) -> None:
    offsets.found = FoundOffsets(())
    assert "nothing is committed" in run().stdout


def test_an_answer_in_parts_is_read_to_its_end(run: Run, offsets: FakeOffsets) -> None:
    pages = [
        FoundOffsets(((tp(1), Offset(offset=1, epoch=1)),), last=tp(1)),
        FoundOffsets(((tp(2), Offset(offset=2, epoch=1)),)),
    ]

    async def fetch(group: str, wanted: WantedOffsets) -> FoundOffsets:
        offsets.asked.append((group, wanted))
        return pages[len(offsets.asked) - 1]

    offsets.fetch = fetch  # type: ignore[method-assign]
    plain = json.loads(run("-o", "json").stdout)
    assert [line["partition"] for line in plain["offsets"]] == [1, 2]
    assert [wanted.after for _, wanted in offsets.asked] == [None, tp(1)]


def test_offsets_are_set_from_a_file(run: Run, service: ScriptedAdministration, tmp_path: Path) -> None:
    result = run("--set", a_file(tmp_path, {"t": {"1": 17, "2": None}, "u": {"0": 0}}))
    assert result.exit_code == 0, result.output
    assert service.calls == [
        ("set_offsets", "orders", {tp(1): NewOffset(17), tp(2): None, tp(0, "u"): NewOffset(0)}, False)
    ]
    assert "offsets of 3 partitions of orders set" in result.stdout
    forced = run("--set", a_file(tmp_path, {"t": {"1": 17}}), "--force", "-o", "json")
    assert json.loads(forced.stdout) == {"group": "orders", "partitions": 1}
    assert service.calls[-1] == ("set_offsets", "orders", {tp(1): NewOffset(17)}, True)


def test_a_file_may_hold_leader_epochs_and_metadata(run: Run, service: ScriptedAdministration, tmp_path: Path) -> None:
    wanted = {"1": {"offset": 17, "leader_epoch": 3}, "2": 4, "3": {"offset": 5, "metadata": "m"}, "4": None}
    result = run("--set", a_file(tmp_path, {"t": wanted}))
    assert result.exit_code == 0, result.output
    offsets = {tp(1): NewOffset(17, 3), tp(2): NewOffset(4), tp(3): NewOffset(5, metadata="m"), tp(4): None}
    assert service.calls == [("set_offsets", "orders", offsets, False)]


def test_a_refusal_is_printed(run: Run, service: ScriptedAdministration, tmp_path: Path) -> None:
    service.error = FailedPrecondition("t/1 of group 'orders' have owners; nothing was set")
    result = run("--set", a_file(tmp_path, {"t": {"1": 17}}))
    assert result.exit_code == 1
    assert "have owners" in result.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("nonsense", "can't be read as JSON"),
        ([], "must hold a JSON object of topics"),
        ({}, "must hold a JSON object of topics"),
        ({"t": []}, "topic 't' must have an object of partitions"),
        ({"t": {}}, "topic 't' must have an object of partitions"),
        ({"t": {"x": 1}}, "'x' is not a partition's number"),
        ({"t": {"1": -1}}, "the offset of partition 1 is -1"),
        ({"t": {"1": True}}, "the offset of partition 1 is True"),
        ({"t": {"1": 1.5}}, "the offset of partition 1 is 1.5"),
        ({"t": {"1": 2**63}}, "give a number from 0, or null"),
        ({"t": {"1": {"leader_epoch": 1}}}, "the offset of partition 1 is {'leader_epoch': 1}"),
        ({"t": {"1": {"offset": 1, "epoch": 1}}}, 'or an object such as {"offset": 17'),
        ({"t": {"1": {"offset": 1, "leader_epoch": 2**31}}}, "the offset of partition 1 is"),
        ({"t": {str(number): 1 for number in range(MAX_SET + 1)}}, f"set at most {MAX_SET} at a time"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(
    run: Run, service: ScriptedAdministration, tmp_path: Path, content: Any, says: str
) -> None:
    result = run("--set", a_file(tmp_path, content))
    assert result.exit_code == 2
    assert says in result.stderr
    assert service.calls == []


def test_a_huge_file_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("--set", a_file(tmp_path, " " * (MAX_FILE_BYTES + 1)))
    assert result.exit_code == 2
    assert "set its offsets in parts" in result.stderr


@pytest.mark.parametrize("arguments", [("--force",), ("--topic", "t", "--set", "FILE")])
def test_options_that_do_not_go_together_are_refused(run: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    file = a_file(tmp_path, {"t": {"1": 1}})
    assert run(*(file if one == "FILE" else one for one in arguments)).exit_code == 2


def test_many_partitions_fit_into_short_lists(tmp_path: Path) -> None:
    file = a_file(tmp_path, {"t": {str(number): number for number in range(2 * MAX_PER_LIST + 1)}})
    assert [len(run.partitions) for run in read_offsets(Path(file))] == [MAX_PER_LIST, MAX_PER_LIST, 1]
