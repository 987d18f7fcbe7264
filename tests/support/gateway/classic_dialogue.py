"""Kafka's group requests one by one, over sockets of their own, to a broker or to a gateway, and what is answered.

An actor is a client without a will: a test says which request it sends next, whether it waits for the answer, and in
which version. Answers are noted in words that do not depend on who gave them: member ids are replaced by the actors
that were given them."""

from __future__ import annotations

import io
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

from kio.serial import entity_writer

from assigner.core.kafka_groups.classic.consumer_protocol import Subscription, encode_subscription
from assigner.gateway.codec import decode_response, make, milliseconds, nested, request_class
from assigner.model.kafka_groups import KafkaError

JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, DESCRIBE, DELETE, FORGET, FIND = 11, 14, 12, 13, 8, 15, 42, 47, 10
PATIENCE = 60.0
SUBSCRIPTION = encode_subscription(Subscription(topics=("orders",), version=0))
NOT_READY = frozenset({14, 15, 16})
Note = tuple[Any, ...]


class Front:
    """A broker or a gateway, and the names of those who were given ids there."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.address = (host, int(port))
        self.group = group
        self.topic = topic
        self.notes: list[Note] = []
        self._ids: dict[str, str] = {"": ""}
        self._sockets: list[socket.socket] = []

    def actor(self, name: str, instance_id: str | None = None) -> Actor:
        connection = socket.create_connection(self.address, timeout=PATIENCE)
        self._sockets.append(connection)
        return Actor(self, name, instance_id, connection)

    def until_ready(self) -> None:
        """Wait until the front coordinates groups."""
        actor = self.actor("scout")
        deadline = time.monotonic() + PATIENCE
        # A broker makes its topic of offsets when the first client looks for a coordinator.
        while actor.finds_nothing() or actor.ask_heartbeat(3).error_code.value in NOT_READY:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()

    def called(self, member_id: str, name: str = "?") -> str:
        """The name of the one that was given this id."""
        if member_id not in self._ids and name != "?":
            count = sum(known.startswith(f"{name}/") for known in self._ids.values())
            self._ids[member_id] = f"{name}/{count + 1}"
        return self._ids.get(member_id, "?")


class Actor:
    def __init__(self, front: Front, name: str, instance_id: str | None, connection: socket.socket) -> None:
        self.front = front
        self.name = name
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.protocols: Sequence[tuple[str, bytes]] = (("range", SUBSCRIPTION),)
        self._connection = connection
        self._sent: list[tuple[int, int, bytes]] = []

    # --- the wire --------------------------------------------------------------------------------------------------

    def send(self, api: int, version: int, **fields: Any) -> None:
        request = make(request_class(api, version), **fields)
        buffer = bytearray(struct.pack(">hhi", api, version, len(self._sent)))
        buffer += struct.pack(">h", 3) + b"app"
        if request.__flexible__:
            buffer += b"\0"
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        frame = struct.pack(">i", len(buffer) + len(body.getvalue())) + bytes(buffer) + body.getvalue()
        self._connection.sendall(frame)
        self._sent.append((api, version, frame))

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet. While the group has no coordinator, the request is made
        again, as every client does: how long that lasts says how busy the machine is."""
        deadline = time.monotonic() + PATIENCE
        while True:
            api, version, request = self._sent.pop(0)
            [size] = struct.unpack(">i", self._read(4))
            frame = self._read(size)
            flexible = request_class(api, version).__flexible__
            answer = decode_response(api, version, frame[5 if flexible else 4 :])
            if self._sent or time.monotonic() > deadline or not any(map(_is_not_ready, _parts(answer))):
                return answer
            time.sleep(0.1)
            self._connection.sendall(request)
            self._sent.append((api, version, request))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            assert part, "the connection was closed"
            data += part
        return data

    def is_waiting(self, seconds: float = 0.4) -> bool:
        """Whether no answer comes for that long."""
        self._connection.settimeout(seconds)
        try:
            return not self._connection.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self._connection.settimeout(PATIENCE)

    def note(self, what: str, answer: Any, *details: Any) -> None:
        self.front.notes.append((self.name, what, KafkaError(answer.error_code.value).name, *details))

    def note_waiting(self) -> None:
        self.front.notes.append((self.name, "waits", self.is_waiting()))

    # --- requests --------------------------------------------------------------------------------------------------

    def send_join(
        self, version: int = 9, session: int = 30_000, rebalance: int = 60_000, kind: str = "consumer"
    ) -> None:
        schema = request_class(JOIN, version)
        protocol = nested(schema, "JoinGroupRequestProtocol")
        self.send(
            JOIN,
            version,
            group_id=self.front.group,
            session_timeout=milliseconds(session),
            rebalance_timeout=milliseconds(rebalance),
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=kind,
            protocols=tuple(protocol(name=name, metadata=metadata) for name, metadata in self.protocols),
        )

    def joined(self) -> None:
        """Note the answer to a JoinGroup, and take it over."""
        answer = self.receive()
        name = self.front.called(answer.member_id, self.name)
        if answer.error_code.value in (0, 79):
            self.member_id = answer.member_id
        if not answer.error_code.value:
            self.generation = answer.generation_id
        self.note(
            "join",
            answer,
            name,
            answer.generation_id,
            getattr(answer, "protocol_type", None),
            answer.protocol_name or None,
            self.front.called(answer.leader),
            sorted(
                (self.front.called(one.member_id), getattr(one, "group_instance_id", None)) for one in answer.members
            ),
            getattr(answer, "skip_assignment", None),
        )

    def join(self, version: int = 9, **changes: Any) -> None:
        self.send_join(version, **changes)
        self.joined()

    def enter(self, **changes: Any) -> None:
        """Get an id, and send the JoinGroup that may wait."""
        self.join(**changes)
        self.send_join(**changes)

    def send_sync(
        self, *given: tuple[Actor, bytes], version: int = 5, generation: int | None = None, **named: Any
    ) -> None:
        assignment = nested(request_class(SYNC, version), "SyncGroupRequestAssignment")
        self.send(
            SYNC,
            version,
            group_id=self.front.group,
            generation_id=self.generation if generation is None else generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=named.get("protocol_type", "consumer"),
            protocol_name=named.get("protocol_name", "range"),
            assignments=tuple(assignment(member_id=one.member_id, assignment=data) for one, data in given),
        )

    def synced(self) -> None:
        answer = self.receive()
        named = [getattr(answer, name, None) for name in ("protocol_type", "protocol_name")]
        self.note("sync", answer, answer.assignment, *named)

    def sync(self, *given: tuple[Actor, bytes], **changes: Any) -> None:
        self.send_sync(*given, **changes)
        self.synced()

    def finds_nothing(self) -> bool:
        """Whether nobody coordinates the group yet."""
        self.send(FIND, 2, key=self.front.group, key_type=0)
        return bool(self.receive().error_code.value)

    def ask_heartbeat(self, version: int = 4, generation: int | None = None) -> Any:
        self.send(
            HEARTBEAT,
            version,
            group_id=self.front.group,
            generation_id=self.generation if generation is None else generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        return self.receive()

    def heartbeat(self, version: int = 4, generation: int | None = None) -> None:
        self.note("heartbeat", self.ask_heartbeat(version, generation))

    def leave(self, *members: tuple[str, str | None], version: int = 5) -> None:
        members = members or ((self.member_id, self.instance_id),)
        schema = request_class(LEAVE, version)
        fields: dict[str, Any] = {"member_id": members[0][0]}
        if version >= 3:
            identity = nested(schema, "MemberIdentity")
            fields = {
                "members": tuple(
                    make(identity, member_id=member_id, group_instance_id=instance, reason="test")
                    for member_id, instance in members
                )
            }
        self.send(LEAVE, version, group_id=self.front.group, **fields)
        answer = self.receive()
        each = [
            (self.front.called(one.member_id), one.group_instance_id, KafkaError(one.error_code.value).name)
            for one in getattr(answer, "members", ())
        ]
        self.note("leave", answer, each)

    def commit(self, version: int = 8, generation: int | None = None, metadata: str = "", partition: int = 0) -> None:
        schema = request_class(COMMIT, version)
        entry = make(
            nested(schema, "OffsetCommitRequestPartition"),
            partition_index=partition,
            committed_offset=7,
            committed_metadata=metadata,
        )
        self.send(
            COMMIT,
            version,
            group_id=self.front.group,
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=(nested(schema, "OffsetCommitRequestTopic")(name=self.front.topic, partitions=(entry,)),),
        )
        [[one]] = [topic.partitions for topic in self.receive().topics]
        self.note("commit", one)

    def describe(self, version: int = 6) -> None:
        self.send(DESCRIBE, version, groups=(self.front.group,), include_authorized_operations=False)
        [group] = self.receive().groups
        members = sorted(
            (self.front.called(one.member_id), one.group_instance_id, one.client_id, one.member_assignment)
            for one in group.members
        )
        # A member's metadata is that of the group's protocol, and there while it has one.
        known = [bool(one.member_metadata) for one in group.members]
        self.note("describe", group, group.group_state, group.protocol_type, group.protocol_data, members, known)

    def delete(self) -> None:
        self.send(DELETE, 2, groups_names=(self.front.group,))
        [result] = self.receive().results
        self.note("delete", result)

    def forget(self) -> None:
        """Delete the offset of partition 0."""
        schema = request_class(FORGET, 0)
        partition = nested(schema, "OffsetDeleteRequestPartition")(partition_index=0)
        topic = nested(schema, "OffsetDeleteRequestTopic")(name=self.front.topic, partitions=(partition,))
        self.send(FORGET, 0, group_id=self.front.group, topics=(topic,))
        answer = self.receive()
        each = [KafkaError(one.error_code.value).name for found in answer.topics for one in found.partitions]
        self.note("forget", answer, each)


def _parts(answer: Any) -> Iterator[Any]:
    """The answer, and those about each group or partition in it."""
    yield answer
    yield from getattr(answer, "groups", ())
    for topic in getattr(answer, "topics", ()):
        yield from topic.partitions


def _is_not_ready(answer: Any) -> bool:
    code = getattr(answer, "error_code", None)
    return code is not None and code.value in NOT_READY
