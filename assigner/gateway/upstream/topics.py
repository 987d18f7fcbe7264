"""Asks the brokers for all topics, for whoever resolves patterns and ids."""

from __future__ import annotations

from typing import Any

import anyio.to_thread

from assigner.errors import SourceUnavailable
from assigner.gateway.checks import Malformed
from assigner.gateway.codec import decode_response, encode, make, request_class
from assigner.gateway.topics import KafkaTopic
from assigner.gateway.upstream.brokers import METADATA, NEWEST_METADATA, Brokers

_AT_ONCE = 256 * 1024
"""Bytes of an answer that is decoded on the event loop; a larger one is decoded on a thread."""


async def list_topics(brokers: Brokers) -> list[KafkaTopic]:
    """Return every topic that the brokers describe without an error. Raises `SourceUnavailable`."""

    def request(version: int) -> Any:
        return make(
            request_class(METADATA, version),
            topics=None,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    version, body = await brokers.ask_bytes(METADATA, NEWEST_METADATA, lambda newest: encode(request(newest)))
    try:
        if len(body) <= _AT_ONCE:
            return _read(version, body)
        return await anyio.to_thread.run_sync(_read, version, body)
    except Malformed as error:
        raise SourceUnavailable(f"the brokers' list of topics can't be read: {error}") from error


def _read(version: int, body: bytes) -> list[KafkaTopic]:
    found = decode_response(METADATA, version, body).topics
    return [
        KafkaTopic(name=str(topic.name), topic_id=getattr(topic, "topic_id", None), partitions=len(topic.partitions))
        for topic in found
        if not int(topic.error_code) and topic.name is not None
    ]
