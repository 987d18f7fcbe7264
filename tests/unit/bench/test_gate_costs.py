"""The benchmark of the gate measures ways that admit a request by its epoch and by the lease, beside an empty block."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import pytest

from assigner.core.client.gate import GateClosed, Shut, StaleEpoch
from bench import gate

ADMISSIONS = {name: way for name, way in gate.WAYS.items() if name != gate.PEER}


def test_the_command_prints_a_row_for_each_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["bench.gate", "--runs", "2", "--times", "10"])
    gate.main()
    printed = capsys.readouterr().out
    assert all(f" {name} " in printed for name in gate.WAYS)
    assert "2 runs of 10" in printed


def test_costs_are_compared_with_those_of_the_empty_block() -> None:
    costs = {gate.PEER: gate.Cost(0.2, 0.25), "x": gate.Cost(1.0, 1.5)}
    columns = [list(column.cells) for column in gate.table(costs, runs=1, times=1).columns]
    assert [column[-1] for column in columns] == ["x", "1.00", "1.50", "+1.25"]


@pytest.mark.parametrize("way", ADMISSIONS.values(), ids=ADMISSIONS)
async def test_what_is_measured_refuses_what_a_gate_has_to_refuse(
    way: Callable[[gate.Owner, int], Awaitable[None]],
) -> None:
    owner = gate.Owner()
    await way(owner, 3)
    assert owner.gate.inside == 0

    owner.state.open(gate.EPOCH + 1)
    with pytest.raises(StaleEpoch):
        await way(owner, 1)

    owner.state.open(gate.EPOCH)
    owner.lease.end()
    with pytest.raises(GateClosed) as refused:
        await way(owner, 1)
    assert refused.value.reason is Shut.LEASE_OVER
