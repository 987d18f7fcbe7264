"""`assigner loads`: what it shows, what it publishes, and which files it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from assigner.api import Weights
from assigner.cli import main
from assigner.cli.commands.loads import MAX_PER_CALL, MAX_PER_LIST, batches
from assigner.proto.kafka_assigner.v1 import TopicWeights
from tests.support.fakes.cli_service import ScriptedAdministration, serving

Run = Callable[..., Result]


@pytest.fixture
def service() -> ScriptedAdministration:
    return ScriptedAdministration()


@pytest.fixture
def run(service: ScriptedAdministration) -> Iterator[Run]:
    with serving(service) as address:

        def invoke(*arguments: str) -> Result:
            environment = {"ASSIGNER_ADDRESS": address, "COLUMNS": "160"}
            return CliRunner(env=environment).invoke(main, ["loads", "orders", *arguments])

        yield invoke


def a_file(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "weights.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_the_heaviest_partitions_and_the_consumers_are_shown(run: Run, service: ScriptedAdministration) -> None:
    result = run("--limit", "7")
    assert result.exit_code == 0, result.output
    assert service.calls == [("loads", "orders", 7)]
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["t/3", "10", "50.0%", "a"] in lines
    assert ["a", "75.0%", "3", "0.25"] in lines
    assert ["b", "[red]", "25.0%", "2"] in lines
    assert "loads of 5 of 6 partitions are known, last written 2023-11-14 22:13:20Z; plans go by load" in result.stdout
    assert "u: not JSON" in result.stdout


def test_loads_as_json_leave_out_what_is_not_known(run: Run) -> None:
    plain = json.loads(run("-o", "json").stdout)
    assert plain["heaviest"] == [{"topic": "t", "partition": 3, "weight": 10.0, "share": 0.5, "owner": "a"}]
    assert plain["busiest"][0] == {"consumer": "a", "busy": 0.25, "partitions": 3, "share": 0.75}
    assert "busy" not in plain["busiest"][1]
    assert (plain["group"], plain["known"], plain["partitions"], plain["fallback"]) == ("orders", 5, 6, "")


def test_weights_are_published_from_a_file(run: Run, service: ScriptedAdministration, tmp_path: Path) -> None:
    file = a_file(tmp_path, {"t": [1, 2.5, 0], "u": {"17": 40, "18": 41, "3": 1}})
    result = run("--set", file, "--valid-for", "60", "-o", "json")
    assert json.loads(result.stdout) == {"group": "orders", "partitions": 6, "valid_for": 60.0}
    runs = (Weights("t", 0, (1.0, 2.5, 0.0)), Weights("u", 3, (1.0,)), Weights("u", 17, (40.0, 41.0)))
    assert service.calls == [("set_loads", "orders", runs, 60.0, False)]


def test_a_topic_that_takes_several_calls_is_replaced_by_the_first_and_added_to_by_the_rest(
    run: Run, service: ScriptedAdministration, tmp_path: Path
) -> None:
    count = 2 * MAX_PER_CALL + 1
    result = run("--set", a_file(tmp_path, {"t": [1] * count, "u": [2]}))
    assert f"weights of {count + 1} partitions are published" in result.stdout
    told = [(keep, [run.topic for run in runs]) for _, _, runs, _, keep in service.calls]
    assert [(keep, sorted(set(topics))) for keep, topics in told] == [
        (False, ["t"]),
        (True, ["t"]),
        (True, ["t"]),
        (False, ["u"]),
    ]


def test_small_topics_share_a_call_and_no_call_is_too_long() -> None:
    runs = [TopicWeights(topic=f"t{number}", first=0, weights=[1.0]) for number in range(2 * MAX_PER_LIST + 1)]
    parts = list(batches(runs))
    assert [len(part) for part, _ in parts] == [MAX_PER_LIST, MAX_PER_LIST, 1]
    assert not any(continues for _, continues in parts)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "can't be read as JSON"),
        ([1], "must hold a JSON object"),
        ({}, "must hold a JSON object"),
        ({"t": []}, "topic 't' must have a list of weights"),
        ({"t": 1}, "topic 't' must have a list of weights"),
        ({"t": {"x": 1}}, "'x' is not a partition's number"),
        ({"t": {"-1": 1}}, "'-1' is not a partition's number"),
        ({"t": [1, -1]}, "the weight of partition 1 is -1"),
        ({"t": [None]}, "the weight of partition 0 is None"),
        ({"t": [True]}, "the weight of partition 0 is True"),
        ('{"t": [NaN]}', "the weight of partition 0 is nan"),
        ('{"t": [Infinity]}', "the weight of partition 0 is inf"),
    ],
)
def test_a_file_that_makes_no_sense_is_a_usage_error(
    run: Run, service: ScriptedAdministration, tmp_path: Path, content: Any, says: str
) -> None:
    result = run("--set", a_file(tmp_path, content))
    assert result.exit_code == 2
    assert says in result.stderr
    assert not service.calls


def test_a_huge_file_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assigner.cli.commands.loads.MAX_FILE_BYTES", 5)
    result = run("--set", a_file(tmp_path, {"t": [1]}))
    assert result.exit_code == 2
    assert "publish it in parts" in result.stderr
