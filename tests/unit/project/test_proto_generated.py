"""The committed protocol code is what `make proto` writes, and can be imported next to other stubs of the protocol."""

from __future__ import annotations

from pathlib import Path

import betterproto2
import pytest
from google.protobuf import descriptor_pool

import assigner.server.transport.standard_services
from assigner.proto.kafka_assigner import v1
from assigner.proto.runtime import DESCRIPTORS, message_class
from tools import generate_proto


def test_the_committed_code_is_what_the_protos_generate() -> None:
    assert generate_proto.differences() == [], "run `make proto` and commit the result"


def test_a_changed_or_superfluous_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_proto, "OUTPUT", tmp_path)
    generate_proto.write()
    assert generate_proto.differences() == []

    (tmp_path / "message_pool.py").write_text("# edited by hand\n")
    (tmp_path / "old.py").write_text("")
    assert generate_proto.differences() == ["message_pool.py", "old.py"]

    generate_proto.write()
    assert generate_proto.differences() == []


def test_the_descriptors_hold_every_service() -> None:
    services = {f"{file.package}.{service.name}" for file in DESCRIPTORS for service in file.service}
    assert services == {f"kafka_assigner.v1.{name}" for name in ("KafkaAssigner", "Admin", "Router", "KafkaGroups")}


def test_our_messages_stay_out_of_the_process_wide_pool() -> None:
    assert assigner.server.transport.standard_services is not None
    message_class("TopicPartition")
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("kafka_assigner.v1.TopicPartition")


def test_every_message_says_in_the_proto_what_it_is() -> None:
    """Where one does not, `dataclass` writes its signature out instead, at each import of the client."""
    kinds = [kind for kind in vars(v1).values() if isinstance(kind, type) and issubclass(kind, betterproto2.Message)]
    assert len(kinds) > 60
    assert [kind.__name__ for kind in kinds if (kind.__doc__ or "").startswith(f"{kind.__name__}(")] == []
