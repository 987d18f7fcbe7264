"""What is logged of callers: each denial, each change of an operator, and no token."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from assigner.client import AdminClient
from assigner.proto.kafka_assigner import v1
from tests.support.fakes.grpc_serving import status_of
from tests.support.fakes.guarded_serving import GROUP, Guarded, renewal


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    found = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    return [line for line in found if line["event"] == event]


async def test_a_denied_call_is_logged_with_who_what_and_which_group(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded.serving() as service:
        token = guarded.shows(groups=["payments"])
        await status_of(service.consumer().renew(renewal(), metadata=token))
    (line,) = lines(caplog, "call_denied")
    facts = {name: line[name] for name in ("principal", "action", "group", "name", "kind", "claim", "peer")}
    assert facts == {
        "principal": "acme/worker-1",
        "action": "renew",
        "group": GROUP,
        "name": "worker-1",
        "kind": "denied",
        "claim": "groups",
        "peer": "127.0.0.1",
    }
    assert token["authorization"].removeprefix("Bearer ") not in caplog.text


async def test_a_call_that_is_denied_before_its_request_is_read_is_logged_too(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded.serving() as service:
        await status_of(service.consumer().renew(renewal()))
        await status_of(service.consumer().renew(renewal(), metadata=guarded.shows(roles=["reader"])))
    facts = ("principal", "action", "kind", "claim", "peer")
    assert [tuple(line[fact] for fact in facts) for line in lines(caplog, "call_denied")] == [
        ("", "renew", "unauthenticated", "", "127.0.0.1"),
        ("acme/worker-1", "renew", "denied", "roles", "127.0.0.1"),
    ]


async def test_each_change_of_an_operator_is_logged_with_its_outcome(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with guarded.serving() as service:
        admin, metadata = service.admin(), guarded.shows(sub="alice", roles=["operator"])
        await admin.pause(v1.PauseRequest(group=GROUP), metadata=metadata)
        await admin.list_topics(v1.ListTopicsRequest(group=GROUP), metadata=metadata)
        await status_of(admin.drain(v1.DrainRequest(group="payments", consumer="c"), metadata=metadata).__anext__())
    facts = ("principal", "action", "group", "outcome")
    calls = [tuple(line[fact] for fact in facts) for line in lines(caplog, "operator_call")]
    assert calls == [
        ("acme/alice", "pause", GROUP, "done"),
        ("acme/alice", "drain", "payments", "PermissionDenied"),
    ]


async def test_no_line_of_any_library_has_a_token_at_any_level(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("hpack.hpack", "hpack.table"):
        # As in a new process: a test before may have used a token already.
        logging.getLogger(name).filters.clear()
    caplog.set_level(logging.DEBUG)
    async with guarded.serving() as service:
        token = guarded.signer.token(guarded.clock.wall(), roles=["reader"])
        async with AdminClient(f"127.0.0.1:{service.server.port}", token=token) as admin:
            await admin.list_groups()
    assert caplog.records
    assert not [part for part in token.split(".") if part in caplog.text]
    # What is shown as Huffman codes can be decoded.
    assert not [record for record in caplog.records if str(record.msg).startswith(("Encoded header", "Decoding"))]
