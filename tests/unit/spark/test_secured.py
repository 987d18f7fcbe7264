"""Queries that speak TLS with the assigner, or show it a token: they read, are drained, or are not let in. Without a
JVM."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from assigner.embedded import EmbeddedAssigner
from assigner.errors import AssignerError
from assigner.model.records import GroupOptions, HandoffMode
from assigner.server import ServerSettings
from assigner.server.settings import AuthSettings
from assigner.settings import HttpSettings, Settings
from assigner.spark import drain
from assigner.spark.options import Tls
from tests.support.servers.mock_kafka import PARTITIONS, MockKafka
from tests.support.signed_tokens import Signer
from tests.support.spark.fake_query import GROUP, ActedQuery, Sink, run_until

pytestmark = pytest.mark.slow

TOPIC = "secrets"


class Authority:
    """Files of a server, and of a client that it lets in."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        authority.cert_pem.write_to_path(self.ca)
        self.server = self._issue(authority.issue_cert("127.0.0.1"), folder / "server")
        self.client = self._issue(authority.issue_cert("etl"), folder / "client")

    def _issue(self, leaf: trustme.LeafCert, stem: Path) -> tuple[str, str]:
        certificate, key = f"{stem}.pem", f"{stem}.key"
        Path(certificate).write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(key)
        return certificate, key

    @property
    def options(self) -> dict[str, str]:
        return {"tlsCa": self.ca, "tlsCert": self.client[0], "tlsKey": self.client[1]}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """Sockets that outlive their loop are warned of when they are collected."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def kafka() -> MockKafka:
    kafka = MockKafka()
    kafka.produce(TOPIC, 10)
    return kafka


def secured(authority: Authority, *, mutual: bool) -> EmbeddedAssigner:
    certificate, key = authority.server
    grpc = ServerSettings(
        port=0, tls_certificate=certificate, tls_key=key, tls_client_ca=authority.ca if mutual else ""
    )
    group = GroupOptions(handoff_mode=HandoffMode.EXCLUSIVE, debounce=0.05)
    settings = Settings(grpc=grpc, http=HttpSettings(port=0), group=group)
    return EmbeddedAssigner(settings, topics={GROUP: {TOPIC: PARTITIONS}})


@pytest.fixture
def assigner(authority: Authority) -> Iterator[EmbeddedAssigner]:
    with secured(authority, mutual=True) as running:
        yield running


# --- what works --------------------------------------------------------------------------------------------------


def test_with_the_servers_authority_a_query_is_let_in(authority: Authority, kafka: MockKafka) -> None:
    sink = Sink()
    with secured(authority, mutual=False) as assigner:
        query = ActedQuery(assigner, kafka, "m", TOPIC, sink, tlsCa=authority.ca)
        run_until(lambda: not sink.missing(kafka, TOPIC), query)
        query.stop()
    assert not sink.repeated


def test_with_a_certificate_of_its_own_a_query_is_let_in_where_one_is_asked_for(
    authority: Authority, kafka: MockKafka, assigner: EmbeddedAssigner
) -> None:
    sink = Sink()
    query = ActedQuery(assigner, kafka, "m", TOPIC, sink, None, **authority.options)
    run_until(lambda: not sink.missing(kafka, TOPIC), query)
    query.stop()
    assert not sink.repeated


class AsSparkTellsIt:
    """What `drain` asks a query of Spark's, answered by an acted one that runs batches meanwhile."""

    id = "acted"

    def __init__(self, query: ActedQuery) -> None:
        self._query = query
        self.isActive = True

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        told = {"latestOffset": self._query.reader.reportLatestOffset(), "endOffset": self._query.checkpoint.end}
        return SimpleNamespace(json=json.dumps({"sources": [told]}))

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.isActive = False


@contextmanager
def running(*queries: ActedQuery) -> Iterator[None]:
    """Batches of the queries, beside the test."""
    over = threading.Event()

    def batches() -> None:
        while not over.wait(0.01):
            for query in queries:
                query.batch()

    thread = threading.Thread(target=batches)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_query_is_drained_over_tls(authority: Authority, kafka: MockKafka, assigner: EmbeddedAssigner) -> None:
    """From elsewhere than the driver's machine, as with Spark Connect: by asking the assigner."""
    first, second = (
        ActedQuery(assigner, kafka, name, TOPIC, Sink(), None, **authority.options) for name in ("m1", "m2")
    )
    run_until(lambda: len(first.held) == len(second.held) == 2, first, second)
    with running(first, second):
        drain(AsSparkTellsIt(first), 30, tls=Tls(authority.ca, *authority.client))  # type: ignore[arg-type]
        assert not first.held
        described = assigner.call(lambda service: service.instance.operations.describe(GROUP))
        assert {one.owner for one in described.ownership} == {"m2"}
    first.stop()
    second.stop()
    gc.collect()


# --- tokens ------------------------------------------------------------------------------------------------------


class Tokens:
    """A service that asks for tokens, and a file with one."""

    def __init__(self, folder: Path) -> None:
        self.signer = Signer()
        self.file = folder / "token"
        auth = AuthSettings(required=True, keys=(self.signer.publish(folder / "key.pem"),))
        group = GroupOptions(handoff_mode=HandoffMode.EXCLUSIVE, debounce=0.05)
        self.settings = Settings(grpc=ServerSettings(port=0), http=HttpSettings(port=0), group=group, auth=auth)

    def issue(self, *roles: str) -> str:
        token = self.signer.token(time.time(), groups=[GROUP], names=["m*"], roles=list(roles))
        self.file.write_text(token)
        return str(self.file)

    def serving(self) -> EmbeddedAssigner:
        return EmbeddedAssigner(self.settings, topics={GROUP: {TOPIC: PARTITIONS}})


def test_a_query_shows_its_token_and_is_drained_with_one(kafka: MockKafka, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    file = tokens.issue("consumer", "reader", "operator")
    with tokens.serving() as assigner:
        first, second = (
            ActedQuery(assigner, kafka, name, TOPIC, Sink(), None, tokenFile=file) for name in ("m1", "m2")
        )
        run_until(lambda: len(first.held) == len(second.held) == 2, first, second)
        described = assigner.call(lambda service: service.instance.operations.describe(GROUP))
        assert {one.consumer.principal for one in described.members} == {"acme/worker-1"}
        with running(first, second):
            drain(AsSparkTellsIt(first), 30, token_file=file)  # type: ignore[arg-type]
            assert not first.held
        first.stop()
        second.stop()
    gc.collect()


@pytest.mark.parametrize(
    ("roles", "complaint"),
    [(None, "needs an identity"), (["reader"], "`roles`"), (["consumer"], r"`roles` \[consumer\].*describe-group")],
)
def test_a_query_without_a_token_or_without_a_role_says_what_is_missing(
    kafka: MockKafka, tmp_path: Path, roles: list[str] | None, complaint: str
) -> None:
    tokens = Tokens(tmp_path)
    options = {} if roles is None else {"tokenFile": tokens.issue(*roles)}
    with tokens.serving() as assigner:
        query = ActedQuery(assigner, kafka, "m", TOPIC, Sink(), None, **options)
        with pytest.raises(AssignerError, match=complaint):
            run_until(lambda: False, query)
        query.stop()


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "complaint"),
    [
        ("nothing", "the assigner at .* is not reached: .*check option assigner"),
        ("no certificate", "the assigner at .* is not reached: .*check option assigner"),
        ("certificates of another authority", "the service's certificate was not accepted: .*check `tls`"),
    ],
)
def test_a_query_that_is_not_let_in_fails_in_time(
    authority: Authority, kafka: MockKafka, assigner: EmbeddedAssigner, tmp_path: Path, shown: str, complaint: str
) -> None:
    options = {"no certificate": {"tlsCa": authority.ca}, "nothing": {}}.get(shown, Authority(tmp_path).options)
    query = ActedQuery(assigner, kafka, "m", TOPIC, Sink(), None, assignerTimeout="0.5", **options)
    with pytest.raises(AssignerError, match=complaint):
        query.batch()
    query.stop()
