"""What `assigner plan` says of cold starts, and of plans that nobody proved to be the best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assigner.strategies.exact import solver
from tests.unit.cli.test_cli_plan import GROUP, plan, planned


def written(path: Path, group: object) -> str:
    path.write_text(json.dumps(group))
    return str(path)


def test_moves_between_members_do_not_start_cold(tmp_path: Path) -> None:
    file = written(tmp_path / "group.json", GROUP)
    out = plan("--file", file, "--join", "D").stdout
    assert "2 of 10 partitions move" in out
    assert "cold" not in out
    assert planned("--file", file, "--join", "D")["cold_starts"] == 0


def test_an_orphan_whose_copy_is_at_another_member_starts_cold(tmp_path: Path) -> None:
    first, *others = json.loads(json.dumps(GROUP["members"]))
    group = {**GROUP, "members": [{**first, "standbys": {"orders": [7, 8, 9]}}, *others], "standby_count": 1}
    file = written(tmp_path / "group.json", group)
    found = planned("--file", file, "--leave", "C")
    assert found["cold_starts"] == sum(not move["warm"] for move in found["planned"]) == 2
    assert "2 start cold, though somebody else has a copy" in plan("--file", file, "--leave", "C").stdout


def test_a_plan_that_is_not_proved_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = {
        "topics": [{"name": "bills", "partitions": 7}, {"name": "orders", "partitions": 10}],
        "members": [
            {"name": "A", "topics": ["bills"], "owned": {"bills": [0, 1, 2, 3, 4, 5, 6]}},
            {"name": "B", "topics": ["bills", "orders"]},
            {"name": "C", "topics": ["orders"]},
        ],
    }
    file = written(tmp_path / "group.json", group)
    assert not planned("--file", file)["unproved"]
    assert "unproved" not in plan("--file", file).stdout
    monkeypatch.setattr(solver, "BUDGET", 1)
    assert planned("--file", file)["unproved"]
    assert "unproved: the group is too large" in plan("--file", file).stdout
