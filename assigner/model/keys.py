"""Builds and parses the keys of the store. No other module knows their layout.

Name segments are percent-encoded, so a name may hold a slash. `~` starts our own branches and is always encoded in
names, so no group can collide with them. One group, the default one, may live at a prefix of its own: that is how an
upstream deployment, which knows no groups, is taken over in place.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec

from assigner.errors import InvalidName
from assigner.model.names import check_name, org_and_group, qualified_group, session_digest

DEFAULT_ROOT = "/kafka-assigner/"
INCARNATION = "~incarnation"
NODES = "~nodes"
"""Where the loads of a group's nodes are, beside its topics'."""
RESERVED_GROUPS = frozenset(
    {
        "consumers",
        "assignments",
        "handoffs",
        "standbys",
        "config",
        "plan",
        "assigner",
        "routers",
        "handoff_acks",
    }
)


@lru_cache(maxsize=65_536)
def encode_segment(name: str) -> str:
    return quote(name, safe="").replace("~", "%7E")


@lru_cache(maxsize=65_536)
def decode_segment(segment: str) -> str:
    return unquote(segment)


def group_at(prefix: str, root: str) -> str:
    """Parse the group whose keys are under the prefix, by its own name; empty: there is none."""
    if not prefix.startswith(root) or not prefix.endswith("/"):
        return ""
    segment = prefix[len(root) : -1]
    return "" if "/" in segment else decode_segment(segment)


class TopicPartition(msgspec.Struct, frozen=True, order=True, gc=False):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


# --- what a key under a group's prefix is about ------------------------------------------------------------------


class ConsumerKey(msgspec.Struct, frozen=True, gc=False):
    name: str


class AssignmentKey(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition


class HandoffKey(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition


class StandbyKey(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition


class TopicKey(msgspec.Struct, frozen=True, gc=False):
    topic: str


class OptionsKey(msgspec.Struct, frozen=True):
    pass


class PlanKey(msgspec.Struct, frozen=True):
    pass


class LeaderKey(msgspec.Struct, frozen=True):
    pass


class RouterKey(msgspec.Struct, frozen=True, gc=False):
    name: str
    displaced: str = ""
    """The digest of the session, if it lost the name to another one and its lease may not have ended yet."""


class AckKey(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    router: str


GroupKey = (
    ConsumerKey
    | AssignmentKey
    | HandoffKey
    | StandbyKey
    | TopicKey
    | OptionsKey
    | PlanKey
    | LeaderKey
    | RouterKey
    | AckKey
)

_K = TypeVar("_K", AssignmentKey, HandoffKey, StandbyKey)

_OPTIONS, _PLAN, _LEADER = OptionsKey(), PlanKey(), LeaderKey()


class GroupKeys:
    """The keys of one group."""

    def __init__(self, group: str, prefix: str) -> None:
        self.group = group
        self.prefix = prefix
        self.consumers = prefix + "consumers/"
        self.assignments = prefix + "assignments/"
        self.handoffs = prefix + "handoffs/"
        self.options = prefix + "config/group"
        self.plan = prefix + "plan"
        self.leader = prefix + "assigner/leader"
        self.routers = prefix + "routers/"
        owned = ("handoff_acks/", "handoffs/", "standbys/", "assignments/")
        self.ownership = tuple(prefix + branch for branch in owned)
        """Prefixes of the records about partitions."""
        self.branches = (*self.ownership, prefix + "config/", prefix + "assigner/")
        """Prefixes of all of a group's records but registrations and the plan; assignments first."""

    def consumer(self, name: str) -> str:
        return self.consumers + encode_segment(name)

    def assignment(self, tp: TopicPartition) -> str:
        return f"{self.assignments}{encode_segment(tp.topic)}/{tp.partition}"

    def handoff(self, tp: TopicPartition) -> str:
        return f"{self.handoffs}{encode_segment(tp.topic)}/{tp.partition}"

    def standby(self, tp: TopicPartition) -> str:
        return f"{self.prefix}standbys/{encode_segment(tp.topic)}/{tp.partition}"

    def topic(self, topic: str) -> str:
        return f"{self.prefix}config/topics/{encode_segment(topic)}"

    def of_topic(self, topic: str) -> tuple[str, ...]:
        """The prefixes of a topic's records by partition; its assignments first."""
        branches = ("assignments/", "handoffs/", "handoff_acks/", "standbys/")
        return tuple(f"{self.prefix}{branch}{encode_segment(topic)}/" for branch in branches)

    def router(self, name: str) -> str:
        return self.routers + encode_segment(name)

    def displaced_router(self, name: str, session: str) -> str:
        """The key of a router's session that lost the name; it lives as long as the session's lease does."""
        return f"{self.router(name)}/{session_digest(session)}"

    def ack(self, tp: TopicPartition, router: str) -> str:
        return f"{self.prefix}handoff_acks/{encode_segment(tp.topic)}/{tp.partition}/{encode_segment(router)}"

    def parse(self, key: str) -> GroupKey | None:
        """Parse the subject of a key; None for a key of an unknown form."""
        if not key.startswith(self.prefix):
            return None
        branch, *rest = key[len(self.prefix) :].split("/")
        match branch, rest:
            case "assignments", [topic, partition]:
                return _partitioned(AssignmentKey, topic, partition)
            case "handoffs", [topic, partition]:
                return _partitioned(HandoffKey, topic, partition)
            case "standbys", [topic, partition]:
                return _partitioned(StandbyKey, topic, partition)
            case "consumers", [name] if name:
                return ConsumerKey(decode_segment(name))
            case "config", ["topics", topic] if topic:
                return TopicKey(decode_segment(topic))
            case "handoff_acks", [topic, partition, router] if router:
                tp = _topic_partition(topic, partition)
                return AckKey(tp, decode_segment(router)) if tp else None
            case "routers", [name] if name:
                return RouterKey(decode_segment(name))
            case "routers", [name, session] if name and session:
                return RouterKey(decode_segment(name), session)
            case "config", ["group"]:
                return _OPTIONS
            case "plan", []:
                return _PLAN
            case "assigner", ["leader"]:
                return _LEADER
        return None


def _partitioned(kind: type[_K], topic: str, partition: str) -> _K | None:
    tp = _topic_partition(topic, partition)
    return kind(tp) if tp else None


def _topic_partition(topic: str, partition: str) -> TopicPartition | None:
    # isdecimal alone would admit other scripts' digits, and a padded number is a second spelling of one partition.
    if not topic or not (partition.isascii() and partition.isdecimal()) or len(partition) > 9:
        return None
    if partition != "0" and partition[0] == "0":
        return None
    return TopicPartition(decode_segment(topic), int(partition))


class Keys:
    """Builds the keys of all groups under one root."""

    def __init__(
        self,
        root: str = DEFAULT_ROOT,
        *,
        default_group: str = "default",
        default_prefix: str = "",
    ) -> None:
        """`default_prefix`: the prefix of the default group's keys, if not its own name."""
        if not root.endswith("/"):
            raise InvalidName(f"store root {root!r} must end with '/'")
        self.root = root
        self.default_group = default_group
        self._default_prefix = default_prefix
        self.instances = root + "~instances/"
        self.groups = root + "~groups/"
        self.summaries = root + "~summaries/"
        self.epochs = root + "~epochs"
        """The floor above which the epochs of a new group begin."""
        self.incarnation = root + INCARNATION

    def group(self, group: str) -> GroupKeys:
        if group == self.default_group and self._default_prefix:
            return GroupKeys(group, self._default_prefix)
        return GroupKeys(group, f"{self.root}{encode_segment(group)}/")

    def special_prefix(self, group: str) -> str:
        """The prefix of a group whose keys are not under its own name; empty for all others."""
        return self._default_prefix if group == self.default_group else ""

    def check_group(self, group: str) -> str:
        check_name("group", group)
        if group in RESERVED_GROUPS:
            raise InvalidName(f"group {group!r} is the name of a branch of the store; choose another name")
        return group

    def instance(self, name: str) -> str:
        return self.instances + encode_segment(name)

    def own_root(self, group: str) -> str:
        """A key that exists if the group's prefix is the root of a deployment of its own."""
        return self.group(group).prefix + INCARNATION

    def group_index(self, group: str) -> str:
        """A key per known group, so that an instance learns of a group by one watch over all."""
        return self.groups + encode_segment(group)

    def summary(self, group: str) -> str:
        """The key of a group's summary, from which the list of groups is made."""
        return self.summaries + encode_segment(group)

    def probe(self, instance: str) -> str:
        """The key that an instance writes to check whether the store accepts writes."""
        return f"{self.root}~probes/{encode_segment(instance)}"

    def deleting(self, group: str) -> str:
        """The key that replaces a group's index entry while its records are deleted."""
        return f"{self.root}~deleting/{encode_segment(group)}"

    def offsets(self, group: str, topic: str = "") -> str:
        """Prefix of the committed offsets of a group, or of one of its topics."""
        prefix = f"{self.root}~offsets/{encode_segment(group)}/"
        return f"{prefix}{encode_segment(topic)}/" if topic else prefix

    def offset(self, group: str, tp: TopicPartition) -> str:
        return f"{self.offsets(group, tp.topic)}{tp.partition}"

    def parse_offset(self, group: str, key: str) -> TopicPartition | None:
        """Parse the partition of an offset's key; None for a key of an unknown form."""
        topic, slash, partition = key.removeprefix(self.offsets(group)).partition("/")
        return _topic_partition(topic, partition) if slash else None

    def kafka_groups(self, org: str = "") -> str:
        """Prefix of the records of an organization's classic Kafka groups."""
        # `~` alone is no name's segment, because a name's own `~` is encoded. An empty segment would do as well for the
        # store, but not for people: tools that clean up paths make one slash of two.
        return f"{self.root}~kafka/{encode_segment(org) if org else '~'}/"

    def kafka_group(self, group: str) -> str:
        """Prefix of the records of a classic Kafka group."""
        org, name = org_and_group(group)
        return f"{self.kafka_groups(org)}{encode_segment(name)}/"

    def kafka_state(self, group: str) -> str:
        """The key of the record that says which generation of a classic Kafka group counts."""
        return self.kafka_group(group) + "state"

    def kafka_members(self, group: str, block: int | None = None) -> str:
        """The key of a block of a large classic Kafka group's members; without a number the prefix of all."""
        return f"{self.kafka_group(group)}members/{'' if block is None else block}"

    def parse_kafka_state(self, key: str) -> str | None:
        """Parse the group of a classic Kafka group's record; None for any other key."""
        match key.removeprefix(f"{self.root}~kafka/").split("/"):
            case [org, group, "state"] if org and group:
                return qualified_group("" if org == "~" else decode_segment(org), decode_segment(group))
        return None

    def history(self, group: str) -> str:
        return f"{self.root}~history/{encode_segment(group)}"

    def loads(self, group: str) -> str:
        """Prefix of a group's load records."""
        return f"{self.root}~loads/{encode_segment(group)}/"

    def topic_loads(self, group: str, topic: str, block: int = 0) -> str:
        """The key of a block of a topic's loads: a large topic has several; the first has the topic's own key."""
        key = self.loads(group) + encode_segment(topic)
        return f"{key}/{block}" if block else key

    def node_loads(self, group: str) -> str:
        """The key of the nodes' loads. No topic can have it, because a name's `~` is encoded."""
        return self.loads(group) + NODES
