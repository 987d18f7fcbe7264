"""What etcd itself holds and has ever held, read over its JSON gateway: no code of ours stands between.

Tests of the running service compare what it says and does with this. The whole history is there, because the tests'
servers do not compact.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from assigner.model.keys import AssignmentKey, HandoffKey, Keys, TopicPartition, decode_segment
from assigner.model.records import Assignment, Consumer, Handoff, LeaderRecord, Plan, decode

R = TypeVar("R", bound=msgspec.Struct)
_LEADER = "/assigner/leader"


@dataclass(frozen=True)
class Change:
    """A write to a key; without a value: its deletion."""

    revision: int
    key: str
    value: bytes | None
    created: int = 0


@dataclass(frozen=True)
class Leader:
    name: str
    term: int


@dataclass(frozen=True)
class Owned:
    """An assignment with the revision of its last write: equal means that nobody wrote it again."""

    owner: str
    session: str
    epoch: int
    revision: int


class EtcdTruth:
    def __init__(self, endpoint: str, root: str) -> None:
        self.keys = Keys(root)
        self._url = f"http://{endpoint}/v3/"

    # --- now -------------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        return int(self._ask("kv/range", {"key": _text64("~")})["header"]["revision"])

    def read(self, prefix: str) -> dict[str, Change]:
        """Everything under the prefix."""
        answer = self._ask("kv/range", _under(prefix))
        return {one.key: one for one in map(_entry, answer.get("kvs", ()))}

    def leader(self, group: str) -> Leader | None:
        found = self.read(self.keys.group(group).leader)
        return next((_leader(one) for one in found.values()), None)

    def leaders(self) -> dict[str, str]:
        """Of every group that has one."""
        found = self.read(self.keys.root)
        return {
            decode_segment(key.removeprefix(self.keys.root).split("/")[0]): _leader(one).name
            for key, one in found.items()
            if key.endswith(_LEADER)
        }

    def groups(self) -> list[str]:
        """Every group that is known."""
        return [decode_segment(key.removeprefix(self.keys.groups)) for key in self.read(self.keys.groups)]

    def assignments(self, group: str) -> dict[TopicPartition, Owned]:
        return {tp: _owned(one) for tp, one in self._assignment_writes(group, self.read(self._prefix(group)).values())}

    def handoffs(self, group: str) -> list[Handoff]:
        return [_record(Handoff, one) for one in self.read(self.keys.group(group).handoffs).values()]

    def generation(self, group: str) -> int:
        """Of the plan that was published last."""
        found = self.read(self.keys.group(group).plan)
        return max((_record(Plan, one).generation for one in found.values()), default=0)

    def consumers(self, group: str) -> dict[str, Consumer]:
        found = (_record(Consumer, one) for one in self.read(self.keys.group(group).consumers).values())
        return {consumer.consumer_name: consumer for consumer in found}

    def leases(self) -> list[int]:
        """Every lease that has not ended, whoever granted it."""
        return [int(one["ID"]) for one in self._ask("lease/leases", {}).get("leases", ())]

    # --- ever ------------------------------------------------------------------------------------------------------

    def history(self, group: str, since: int = 1) -> list[Change]:
        """Every change to the group's keys from that revision up to now, in order."""
        return self.changes(self._prefix(group), since)

    def changes(self, prefix: str, since: int = 1) -> list[Change]:
        """Every change under the prefix from that revision up to now, in order."""
        # A key of our own, written last, tells where the history so far ends.
        end = prefix + "~end-of-history"
        written = self._ask("kv/put", {"key": _text64(end), "value": ""})["header"]["revision"]
        found: list[Change] = []
        for change in self._watch(prefix, since):
            if change.revision >= int(written):
                break
            if change.key != end:
                found.append(change)
        return found

    def moves(self, group: str, since: int = 1) -> list[tuple[TopicPartition, Owned]]:
        """Every write of an assignment, in order."""
        return [(tp, _owned(one)) for tp, one in self._assignment_writes(group, self.history(group, since))]

    def handoff_steps(self, group: str, since: int = 1) -> dict[TopicPartition, list[str]]:
        """Through which steps each partition's handoffs went."""
        keys, steps = self.keys.group(group), dict[TopicPartition, list[str]]()
        for change in self.history(group, since):
            match keys.parse(change.key):
                case HandoffKey(tp=tp):
                    step = _record(Handoff, change).at.value if change.value is not None else "deleted"
                    steps.setdefault(tp, []).append(step)
        return steps

    # --- inner workings --------------------------------------------------------------------------------------------

    def _prefix(self, group: str) -> str:
        return self.keys.group(group).prefix

    def _assignment_writes(self, group: str, changes: Any) -> Iterator[tuple[TopicPartition, Change]]:
        keys = self.keys.group(group)
        for change in changes:
            match keys.parse(change.key):
                case AssignmentKey(tp=tp) if change.value is not None:
                    yield tp, change

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        with urllib.request.urlopen(self._request(path, body), timeout=5) as answer:
            return json.load(answer)

    def _watch(self, prefix: str, since: int) -> Iterator[Change]:
        body = {"create_request": {**_under(prefix), "start_revision": str(since)}}
        with urllib.request.urlopen(self._request("watch", body), timeout=5) as lines:
            for line in lines:
                for event in json.loads(line)["result"].get("events", ()):
                    one = _entry(event["kv"])
                    yield Change(one.revision, one.key, None) if event.get("type") == "DELETE" else one

    def _request(self, path: str, body: dict[str, Any]) -> urllib.request.Request:
        return urllib.request.Request(self._url + path, data=json.dumps(body).encode(), method="POST")


def _leader(change: Change) -> Leader:
    return Leader(_record(LeaderRecord, change).holder, change.created)


def _owned(change: Change) -> Owned:
    record = _record(Assignment, change)
    return Owned(record.owner, record.session, record.epoch, change.revision)


def _record(kind: type[R], change: Change) -> R:
    assert change.value is not None
    return decode(kind, change.value)[0]


def _entry(kv: dict[str, str]) -> Change:
    value = base64.b64decode(kv.get("value", ""))
    key = base64.b64decode(kv["key"]).decode()
    return Change(int(kv["mod_revision"]), key, value, int(kv.get("create_revision", 0)))


def _under(prefix: str) -> dict[str, str]:
    end = prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])
    return {"key": _text64(prefix), "range_end": base64.b64encode(end).decode()}


def _text64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
