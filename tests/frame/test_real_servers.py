"""The servers that the tests start do what the tests build on."""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from tests.conftest import StartEtcd, StartEtcdCluster
from tests.support.servers.etcd import EtcdBinary, EtcdServer, EtcdTls, RunningEtcd
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED


def call(etcd: RunningEtcd, path: str, **request: Any) -> dict[str, Any]:
    """Call etcd over its JSON gateway."""
    data = json.dumps(request).encode()
    with urllib.request.urlopen(f"http://{etcd.endpoint}/v3/{path}", data=data, timeout=5) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def put(etcd: RunningEtcd, key: str, value: str, lease: str = "0") -> None:
    call(etcd, "kv/put", key=encoded(key), value=encoded(value), lease=lease)


def get(etcd: RunningEtcd, key: str) -> str | None:
    found = call(etcd, "kv/range", key=encoded(key)).get("kvs", [])
    return base64.b64decode(found[0]["value"]).decode() if found else None


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_the_shared_etcd_keeps_each_test_to_its_own_root(etcd_server: RunningEtcd, etcd_prefix: str) -> None:
    put(etcd_server, f"{etcd_prefix}name", "value")
    assert get(etcd_server, f"{etcd_prefix}name") == "value"


def test_a_killed_etcd_restarts_with_its_data(start_etcd: StartEtcd) -> None:
    etcd = start_etcd(killed=True)
    put(etcd, "/kept", "yes")
    endpoint = etcd.endpoint
    etcd.kill()
    assert not etcd.is_healthy()
    etcd.restart()
    assert etcd.endpoint == endpoint
    assert get(etcd, "/kept") == "yes"


def test_a_frozen_etcd_is_silent_until_it_is_thawed(start_etcd: StartEtcd) -> None:
    etcd = start_etcd()
    etcd.freeze()
    assert not etcd.is_healthy()
    etcd.thaw()
    etcd.wait_until_ready()


def test_a_lease_of_one_second_ends_after_about_one_second(start_etcd: StartEtcd) -> None:
    etcd = start_etcd()
    asked = time.monotonic()
    lease = call(etcd, "lease/grant", TTL=1)
    assert lease["TTL"] == "1"
    put(etcd, "/leased", "yes", lease["ID"])
    while get(etcd, "/leased") is not None:
        assert time.monotonic() - asked < 30
        time.sleep(0.05)
    assert time.monotonic() - asked > 0.7


def test_an_etcd_can_demand_client_certificates(start_etcd: StartEtcd, tmp_path: Path) -> None:
    authority = trustme.CA()
    own, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client")
    certificate, key, ca = tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem"
    own.cert_chain_pems[0].write_to_path(certificate)
    own.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    etcd = start_etcd(tls=EtcdTls(certificate, key, client_ca=ca))

    context = ssl.create_default_context()
    authority.configure_trust(context)
    with pytest.raises(OSError, match=r"certificate|closed|reset"):
        urllib.request.urlopen(f"{etcd.url}/version", context=context, timeout=5)
    client.configure_cert(context)
    with urllib.request.urlopen(f"{etcd.url}/version", context=context, timeout=5) as response:
        assert response.status == 200


def test_a_cluster_elects_anew_when_its_leader_is_killed(start_etcd_cluster: StartEtcdCluster) -> None:
    cluster = start_etcd_cluster(3, killed=True)
    leader = cluster.leader()
    follower = cluster.followers()[0]
    put(leader, "/kept", "yes")
    leader.kill()
    follower.wait_until_ready()
    assert get(follower, "/kept") == "yes"
    leader.restart()


@pytest.mark.parametrize(("version", "fit"), [((3, 4, 23), True), ((3, 5, 1), False), ((3, 6, 16), True)])
def test_etcd_releases_that_lose_writes_are_known(version: tuple[int, ...], fit: bool) -> None:
    assert EtcdBinary(Path("etcd"), version).fit_for_kill_tests is fit


def test_a_server_that_cannot_start_says_why(tmp_path: Path, etcd_server: RunningEtcd) -> None:
    if not isinstance(etcd_server, EtcdServer):
        pytest.skip("there is no etcd program here that could fail to start")
    with pytest.raises(RuntimeError, match="-no-such-flag"):
        EtcdServer(tmp_path, extra_flags=["--no-such-flag"]).start()


def test_kafka_returns_topic_ids_and_racks(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("frame-orders", 6)
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap, **LOGGED})
    described = admin.describe_topics(TopicCollection(["frame-orders"]))["frame-orders"].result(timeout=10)
    assert len(described.partitions) == 6
    assert str(described.topic_id)
    assert described.partitions[0].leader.rack == "rack-1"
