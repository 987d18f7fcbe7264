"""Reads many keys at one revision, by a transaction whose compares never hold and whose else-branch reads them.

The transaction writes nothing and its reads are linearizable. It costs one round trip where single reads cost one each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import anyio

from assigner.errors import StoreUnavailable, TransactionTooLarge, UnknownTopic
from assigner.model.keys import GroupKeys
from assigner.model.records import TopicConfig, decode
from assigner.store import Absent, Conflict, Exists, Found, GetResult, Store

IN_FLIGHT = 4
"""Transactions in flight."""


async def multi_get(store: Store, keys: Sequence[str]) -> list[GetResult]:
    """Read the keys, one result per key. Keys beyond the limit of a transaction are read at another revision."""
    size = store.limits.operations
    parts = [keys[start : start + size] for start in range(0, len(keys), size)]
    if len(parts) == 1:
        return await _read(store, parts[0])
    found: list[list[GetResult]] = [[] for _ in parts]
    limiter = anyio.CapacityLimiter(IN_FLIGHT)
    errors: list[Exception] = []

    async def read(number: int) -> None:
        async with limiter:
            try:
                found[number] = await _read(store, parts[number])
            except Exception as error:  # noqa: BLE001 - raised below, by itself instead of in a group
                errors.append(error)
                tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for number in range(len(parts)):
            tasks.start_soon(read, number)
    if errors:
        raise errors[0]
    return [result for part in found for result in part]


async def read_topics(store: Store, keys: GroupKeys, names: Iterable[str]) -> dict[str, TopicConfig]:
    """Read the topics' configurations from the store, because a mirror may lag. Raises `UnknownTopic`,
    `UnreadableRecord`."""
    wanted = sorted(set(names))
    found = await multi_get(store, [keys.topic(name) for name in wanted]) if wanted else []
    topics: dict[str, TopicConfig] = {}
    for name, result in zip(wanted, found, strict=True):
        if not isinstance(result, Found):
            raise UnknownTopic(f"group {keys.group!r} has no topic {name!r}; set it first")
        topics[name] = decode(TopicConfig, result.entry.value)[0]
    return topics


async def _read(store: Store, keys: Sequence[str]) -> list[GetResult]:
    # The key exists or is absent, so one of the two compares always fails.
    try:
        result = await store.transact([Exists(keys[0]), Absent(keys[0])], [], otherwise=keys)
    except TransactionTooLarge:
        # A store may accept less than its limits say.
        middle = len(keys) // 2
        if not middle:
            raise
        return [*await _read(store, keys[:middle]), *await _read(store, keys[middle:])]
    if not isinstance(result, Conflict):
        raise StoreUnavailable(f"the store says that {keys[0]} is both there and not there; it can't be relied upon")
    return list(result.reads)
