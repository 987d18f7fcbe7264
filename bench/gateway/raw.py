"""Speaks Kafka's protocol by hand: more requests at a time than a client sends, and groups of hundreds of members."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from assigner.core.kafka_groups.classic.consumer_protocol import (
    ConsumerAssignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from assigner.gateway.codec import (
    decode_response,
    encode,
    has_tagged_header,
    make,
    milliseconds,
    nested,
    request_class,
)

METADATA, COMMIT, FIND, JOIN, HEARTBEAT, SYNC, MODERN = 3, 8, 10, 11, 12, 14, 68
VERSIONS = {METADATA: 12, COMMIT: 9, FIND: 3, JOIN: 9, HEARTBEAT: 4, SYNC: 5, MODERN: 1}
MEMBER_ID_REQUIRED = 79
NOT_YET = (14, 15, 16)
"""The coordinator is on its way: clients try again."""
_PAUSE = 0.1
_HEAD = struct.Struct(">ihhih")


class Refused(Exception):
    """A request was answered with an error."""


class Connection:
    """One connection; answers come in the order of the requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id.encode()
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._sent = 0
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, address: tuple[str, int], client_id: str = "bench") -> Self:
        return cls(*await asyncio.open_connection(*address, limit=2**22), client_id)

    def send(self, api: int, body: bytes) -> asyncio.Future[bytes]:
        """Send a request; the future is its answer's body."""
        self._sent += 1
        version = VERSIONS[api]
        tags = b"\0" if request_class(api, version).__flexible__ else b""
        size = _HEAD.size - 4 + len(self._client_id) + len(tags) + len(body)
        head = _HEAD.pack(size, api, version, self._sent, len(self._client_id))
        self._writer.write(head + self._client_id + tags + body)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((api, answer))
        return answer

    async def call(self, api: int, **fields: Any) -> Any:
        body = await self.send(api, encoded(api, **fields))
        return decode_response(api, VERSIONS[api], body)

    async def _read(self) -> None:
        try:
            await self._read_answers()
        except (asyncio.IncompleteReadError, OSError) as error:
            for _, answer in self._waiting:
                if not answer.done():
                    answer.set_exception(ConnectionError(f"the connection was closed: {error}"))

    async def _read_answers(self) -> None:
        while True:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            frame = await self._reader.readexactly(size)
            api, answer = self._waiting.popleft()
            if not answer.cancelled():
                answer.set_result(frame[5 if has_tagged_header(api, VERSIONS[api]) else 4 :])

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


def encoded(api: int, **fields: Any) -> bytes:
    return encode(make(request_class(api, VERSIONS[api]), **fields))


async def coordinator(bootstrap: str, group: str) -> tuple[str, int]:
    """Find the group's coordinator; a broker makes its internal topic first, and a gateway looks for its broker."""
    host, _, port = bootstrap.rpartition(":")
    while True:
        connection = await Connection.open((host, int(port)))
        try:
            found = await connection.call(FIND, key=group, key_type=0)
            if not int(found.error_code):
                return str(found.host), int(found.port)
        except ConnectionError:
            pass
        finally:
            await connection.close()
        await asyncio.sleep(_PAUSE)


# --- a Kafka 4 member --------------------------------------------------------------------------------------------


class Member:
    """A member of Kafka 4's protocol that takes whatever it is given."""

    def __init__(self, connection: Connection, group: str, topic: str) -> None:
        self.connection = connection
        self.group = group
        self.topic = topic
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: tuple[Any, ...] = ()

    async def heartbeat(self, **fields: Any) -> Any:
        usual: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": milliseconds(-1),
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
        }
        while True:
            answer = await self.connection.call(MODERN, **{**usual, **fields})
            if int(answer.error_code) not in NOT_YET:
                break
            await asyncio.sleep(_PAUSE)
        if int(answer.error_code):
            raise Refused(f"heartbeat: {answer.error_code!r} {answer.error_message}")
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = tuple(answer.assignment.topic_partitions)
        return answer

    async def join(self) -> None:
        await self.heartbeat(
            rebalance_timeout=milliseconds(60_000), subscribed_topic_names=(self.topic,), topic_partitions=()
        )

    async def acknowledge(self) -> Any:
        kind = nested(request_class(MODERN, VERSIONS[MODERN]), "TopicPartitions")
        owned = tuple(make(kind, topic_id=one.topic_id, partitions=one.partitions) for one in self.owned)
        return await self.heartbeat(topic_partitions=owned)

    @property
    def partitions(self) -> list[int]:
        return sorted(number for one in self.owned for number in one.partitions)

    def partial(self) -> bytes:
        """The heartbeat of a member that has nothing to say."""
        return encoded(
            MODERN,
            group_id=self.group,
            member_id=self.id,
            member_epoch=self.epoch,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=milliseconds(-1),
            subscribed_topic_names=None,
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=None,
        )

    def commit(self, partition: int, offset: int) -> bytes:
        return commit(self.group, self.id, self.epoch, self.topic, partition, offset)


async def joined(address: tuple[str, int], group: str, topic: str, partitions: int, members: int) -> list[Member]:
    """Members on a connection each, once every partition has its owner and nobody is told anything new."""
    found = [Member(await Connection.open(address, f"m{number}"), group, topic) for number in range(members)]
    await asyncio.gather(*(member.join() for member in found))

    async def settle(member: Member) -> None:
        while not settled.is_set():
            await member.acknowledge()
            if sum(len(one.partitions) for one in found) == partitions and all(one.partitions for one in found):
                settled.set()
            await asyncio.sleep(0.2)

    settled = asyncio.Event()
    await asyncio.gather(*map(settle, found))
    # A gateway holds the answer to a member with nothing to say: all at a time.
    await asyncio.gather(*(member.acknowledge() for member in found))
    return found


# --- a classic group ---------------------------------------------------------------------------------------------


class Classic:
    """A classic member, with what it was told."""

    def __init__(self, connection: Connection, group: str, topic: str) -> None:
        self.connection = connection
        self.group = group
        self.topic = topic
        self.id = ""
        self.generation = -1

    async def join(self) -> Any:
        protocol = nested(request_class(JOIN, VERSIONS[JOIN]), "JoinGroupRequestProtocol")
        metadata = encode_subscription(Subscription(topics=(self.topic,)))
        while True:
            answer = await self.connection.call(
                JOIN,
                group_id=self.group,
                session_timeout=milliseconds(60_000),
                rebalance_timeout=milliseconds(120_000),
                member_id=self.id,
                group_instance_id=None,
                protocol_type="consumer",
                protocols=(make(protocol, name="range", metadata=metadata),),
                reason=None,
            )
            self.id = str(answer.member_id)
            if int(answer.error_code) == MEMBER_ID_REQUIRED:
                continue
            if int(answer.error_code) in NOT_YET:
                await asyncio.sleep(_PAUSE)
                continue
            if int(answer.error_code):
                raise Refused(f"join: {answer.error_code!r}")
            self.generation = answer.generation_id
            return answer

    async def sync(self, assignments: Sequence[tuple[str, bytes]] = ()) -> None:
        kind = nested(request_class(SYNC, VERSIONS[SYNC]), "SyncGroupRequestAssignment")
        answer = await self.connection.call(
            SYNC,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=tuple(make(kind, member_id=one, assignment=data) for one, data in assignments),
        )
        if int(answer.error_code):
            raise Refused(f"sync: {answer.error_code!r}")

    def heartbeat(self) -> bytes:
        return encoded(
            HEARTBEAT,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=None,
        )

    def commit(self, partition: int, offset: int) -> bytes:
        return commit(self.group, self.id, self.generation, self.topic, partition, offset)


async def classic_group(address: tuple[str, int], group: str, topic: str, members: int) -> list[Classic]:
    """A group whose members all joined at once, when each has its assignment."""
    found = [Classic(await Connection.open(address, f"m{number}"), group, topic) for number in range(members)]

    async def take_part(member: Classic) -> None:
        while True:
            answer = await member.join()
            leads = answer.leader == member.id
            each = [
                (str(one.member_id), encode_assignment(ConsumerAssignment(partitions=((topic, (number,)),))))
                for number, one in enumerate(answer.members)
            ]
            try:
                await member.sync(each if leads else ())
            except Refused:
                continue
            return

    await asyncio.gather(*map(take_part, found))
    return found


def commit(group: str, member: str, generation: int, topic: str, partition: int, offset: int) -> bytes:
    schema = request_class(COMMIT, VERSIONS[COMMIT])
    one = make(
        nested(schema, "OffsetCommitRequestPartition"),
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    topics = (make(nested(schema, "OffsetCommitRequestTopic"), name=topic, partitions=(one,)),)
    return encoded(
        COMMIT,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=None,
        topics=topics,
    )
