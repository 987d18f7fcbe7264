"""The etcd store's translation, without a server: ranges, refusals, and responses put together to whole revisions."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from typing import Any, NamedTuple

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assigner.backends.etcd import rpc
from assigner.backends.etcd.convert import from_key, prefix_end, prefix_range, to_compare, to_key, to_operation
from assigner.backends.etcd.errors import Final, NoEffect, TokenStale, TooMuchToRead, Unknown, classify
from assigner.backends.etcd.member import parse_version
from assigner.backends.etcd.watch import Buffer, EtcdWatch
from assigner.backends.etcd.watches import orders_progress
from assigner.errors import (
    Compacted,
    InvalidInput,
    LeaseNotFound,
    StoreReadOnly,
    StoreRefused,
    TransactionTooLarge,
    WatchEnded,
)
from assigner.store import Absent, Batch, Delete, Exists, Progress, Put, PutEvent, ValueIs


class Failure(NamedTuple):
    """What grpc raises, as far as it is looked at."""

    status: Any
    text: str

    def code(self) -> Any:
        return self.status

    def details(self) -> str:
        return self.text


# -- keys -------------------------------------------------------------------------------------------------------------


@given(st.binary(min_size=1, max_size=6), st.binary(max_size=4), st.binary(max_size=6))
def test_a_prefix_range_holds_exactly_the_keys_with_the_prefix(prefix: bytes, rest: bytes, other: bytes) -> None:
    start, end = prefix_range(from_key(prefix))

    def holds(key: bytes) -> bool:
        return start <= key and (key < end or end == b"\0")

    assert holds(prefix + rest)
    if other:
        assert holds(other) == other.startswith(prefix)


def test_the_end_of_a_prefix_of_all_ones_is_the_end_of_everything() -> None:
    assert prefix_end(b"a\xff") == b"b"
    assert prefix_end(b"\xff\xff") == b"\0"
    assert prefix_range("") == (b"\0", b"\0")


@given(st.binary(min_size=1, max_size=20))
def test_any_key_survives_as_text(key: bytes) -> None:
    assert to_key(from_key(key)) == key


def test_a_page_starts_past_the_key_it_follows_and_never_before_its_prefix() -> None:
    assert prefix_range("/b/", "/b/1")[0] == b"/b/1\0"
    assert prefix_range("/b/", "/a")[0] == b"/b/"


def test_compares_and_operations_are_converted_to_those_of_etcd() -> None:
    exists, absent, value = (to_compare(compare) for compare in (Exists("k"), Absent("k"), ValueIs("k", b"v")))
    assert (exists.target, exists.result, exists.version) == (rpc.Compare.VERSION, rpc.Compare.GREATER, 0)
    assert (absent.target, absent.result, absent.version) == (rpc.Compare.VERSION, rpc.Compare.EQUAL, 0)
    assert (value.target, value.value) == (rpc.Compare.VALUE, b"v")
    # Set even where they are 0, or etcd would compare with nothing.
    assert exists.WhichOneof("target_union") == absent.WhichOneof("target_union") == "version"
    assert to_operation(Put("k", b"v", 7)).request_put.lease == 7
    assert to_operation(Delete("k")).request_delete_range.key == b"k"


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (rpc.Code.NOT_FOUND, "etcdserver: requested lease not found", LeaseNotFound),
        (rpc.Code.INVALID_ARGUMENT, "etcdserver: too many operations in txn request", TransactionTooLarge),
        (rpc.Code.INVALID_ARGUMENT, "etcdserver: request is too large", TransactionTooLarge),
        (rpc.Code.RESOURCE_EXHAUSTED, "grpc: received message larger than max (2 vs. 1)", TransactionTooLarge),
        (rpc.Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", InvalidInput),
        (rpc.Code.INVALID_ARGUMENT, "etcdserver: something new", InvalidInput),
        (rpc.Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Compacted),
        (rpc.Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", InvalidInput),
        (rpc.Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", StoreReadOnly),
        (rpc.Code.DATA_LOSS, "etcdserver: corrupt cluster", StoreReadOnly),
        (rpc.Code.PERMISSION_DENIED, "etcdserver: permission denied", StoreRefused),
        (rpc.Code.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password", StoreRefused),
        (rpc.Code.UNIMPLEMENTED, "unknown service etcdserverpb.KV", StoreRefused),
    ],
)
def test_what_etcd_refuses_for_good_has_a_name(code: Any, text: str, kind: type[Exception]) -> None:
    verdict = classify(Failure(code, text), answered_meanwhile=False)
    assert isinstance(verdict, Final)
    assert type(verdict.error) is kind


@pytest.mark.parametrize(
    ("code", "text", "member_failed"),
    [
        (rpc.Code.UNAVAILABLE, "etcdserver: no leader", True),
        (rpc.Code.UNAVAILABLE, "etcdserver: rpc not supported for learner", True),
        (rpc.Code.UNAVAILABLE, "failed to connect to all addresses; last error: refused", True),
        (rpc.Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", False),
    ],
)
def test_what_was_never_done_may_be_tried_again(code: Any, text: str, member_failed: bool) -> None:
    assert classify(Failure(code, text), answered_meanwhile=False) == NoEffect(text, member_failed)


@pytest.mark.parametrize(
    ("code", "text", "member_failed"),
    [
        (rpc.Code.UNAVAILABLE, "Socket closed", True),
        (rpc.Code.UNAVAILABLE, "etcdserver: request timed out", True),
        (rpc.Code.UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure", False),
        (rpc.Code.UNAVAILABLE, "etcdserver: leader changed", False),
        (rpc.Code.UNAVAILABLE, "etcdserver: server stopped", True),
        (rpc.Code.UNKNOWN, "context canceled", True),
        (rpc.Code.INTERNAL, "whatever comes next", True),
    ],
)
def test_whatever_is_not_certain_is_unknown(code: Any, text: str, member_failed: bool) -> None:
    verdict = classify(Failure(code, text), answered_meanwhile=False)
    assert isinstance(verdict, Unknown)
    assert verdict.member_failed is member_failed


def test_a_slow_request_is_the_members_fault_only_if_it_answered_nobody() -> None:
    late = Failure(rpc.Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert classify(late, answered_meanwhile=True) == Unknown("no answer in time", member_failed=False)
    assert classify(late, answered_meanwhile=False) == Unknown("no answer in time", member_failed=True)


def test_refused_tokens_and_responses_too_large_are_distinguished() -> None:
    for text in ("etcdserver: invalid auth token", "etcdserver: revision of auth store is old"):
        assert classify(Failure(rpc.Code.INVALID_ARGUMENT, text), answered_meanwhile=False) == TokenStale(text)
    text = "CLIENT: Received message larger than max (5 vs. 4)"
    verdict = classify(Failure(rpc.Code.RESOURCE_EXHAUSTED, text), answered_meanwhile=False)
    assert verdict == TooMuchToRead(text)


def test_only_releases_that_keep_the_order_are_asked_for_progress() -> None:
    told = ("3.4.25", "3.5.8", "3.6.0", "3.6.16", "3.7.0-rc.1")
    assert all(orders_progress(parse_version(version)) for version in told)
    assert not any(orders_progress(parse_version(version)) for version in ("3.4.23", "3.5.1", "3.5.7", "", "3.3.10"))


# -- putting responses together ---------------------------------------------------------------------------------------


def response(revisions: list[int], *, fragment: bool = False, header: int = 0) -> Any:
    events = [
        rpc.Event(kv=rpc.KeyValue(key=b"/%d" % index, mod_revision=revision))
        for index, revision in enumerate(revisions)
    ]
    return rpc.WatchResponse(events=events, fragment=fragment, header=rpc.ResponseHeader(revision=header))


async def everything(watch: EtcdWatch) -> list[Batch | Progress]:
    """All items until the watch's end, which must be there."""
    items: list[Batch | Progress] = []
    with suppress(WatchEnded):
        while True:
            items.append(await anext(watch))
    return items


def revisions_in(batch: Batch) -> list[int]:
    return [event.entry.mod_revision for event in batch.events if isinstance(event, PutEvent)]


def new_watch(start: int = 1, buffer: Buffer | None = None) -> EtcdWatch:
    return EtcdWatch("/", start, buffer or Buffer(), lambda watch: None)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=8),
    st.sets(st.integers(1, 30)),
    st.sets(st.integers(0, 7)),
)
def test_however_responses_are_cut_a_reader_sees_whole_revisions_once(
    shape: list[tuple[int, int]], cuts: set[int], lost: set[int]
) -> None:
    """`shape`: per revision its distance to the one before and its events. `lost`: fragments before which the stream
    breaks, so that etcd starts again where the watch says it stands."""
    revisions: list[int] = []
    for distance, count in shape:
        revisions += [(revisions[-1] if revisions else 0) + distance] * count

    async def feed() -> list[Batch | Progress]:
        watch = new_watch()
        position, number = 0, 0
        while position < len(revisions):
            if number in lost:
                lost.discard(number)
                watch.create_request(number + 1, fragment=True)
                position = bisect_left(revisions, watch.next_revision)
                continue
            stop = min((cut for cut in cuts if position < cut < len(revisions)), default=len(revisions))
            watch.accept(response(revisions[position:stop], fragment=stop < len(revisions)))
            position, number = stop, number + 1
        watch.end(WatchEnded("done"))
        return await everything(watch)

    batches = [item for item in anyio.run(feed) if isinstance(item, Batch)]
    assert [revision for batch in batches for revision in revisions_in(batch)] == revisions
    for batch in batches:
        assert batch.revision == revisions_in(batch)[-1]
        assert all(revisions_in(batch).count(revision) == revisions.count(revision) for revision in revisions_in(batch))


async def test_events_that_were_seen_already_are_left_out() -> None:
    watch = new_watch(start=5)
    watch.accept(response([3, 4, 5, 6]))
    watch.accept(response([5, 6, 7]))
    watch.end(WatchEnded("done"))
    batches = await everything(watch)
    assert [item.revision for item in batches] == [6, 7]
    assert [len(item.events) for item in batches if isinstance(item, Batch)] == [2, 1]


async def test_progress_is_reported_once_and_never_backwards() -> None:
    watch = new_watch(start=5)
    for revision in (3, 4, 4, 9, 8, 9):
        watch.accept(response([], header=revision))
    watch.accept(response([10]))
    watch.accept(response([], header=10))
    watch.end(WatchEnded("done"))
    assert [type(item) for item in await everything(watch)] == [Progress, Batch, Progress]
    assert watch.next_revision == 11


async def test_a_long_response_is_handed_out_in_parts_that_keep_revisions_whole() -> None:
    watch = new_watch()
    watch.accept(response([number // 7 + 1 for number in range(7 * 1000)]))
    watch.end(WatchEnded("done"))
    batches = [item for item in await everything(watch) if isinstance(item, Batch)]
    assert len(batches) == 7
    assert all(len(batch.events) % 7 == 0 for batch in batches)
    assert sum(len(batch.events) for batch in batches) == 7000


async def test_room_is_made_known_when_a_paused_reader_has_caught_up() -> None:
    rooms: list[EtcdWatch] = []
    watch = EtcdWatch("/", 1, Buffer(events=10), rooms.append)
    for revision in range(1, 12):
        watch.accept(response([revision]))
    assert watch.is_full
    watch.paused = True
    for _ in range(5):
        await anext(watch)
    assert rooms == []
    await anext(watch)
    assert rooms == [watch]
