"""Names the action of every call of every service, and the roles that may do it.

A call whose path is not here is denied, so a new one can't be forgotten: it works for nobody until it has a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from assigner.auth.identity import Role

_CONSUMERS = "kafka_assigner.v1.KafkaAssigner"
_ROUTERS = "kafka_assigner.v1.Router"
_ADMIN = "kafka_assigner.v1.Admin"
_KAFKA_GROUPS = "kafka_assigner.v1.KafkaGroups"


class Action(str, Enum):
    """What a call does, in the words of a denial."""

    REGISTER = "register"
    RENEW = "renew"
    ACK = "ack"
    DEREGISTER = "deregister"
    REPORT_LOAD = "report-load"
    COMMIT_OFFSETS = "commit-offsets"
    FETCH_OFFSETS = "fetch-offsets"

    REGISTER_ROUTER = "register-router"
    RENEW_ROUTER = "renew-router"
    ACK_CUTOVER = "ack-cutover"
    DEREGISTER_ROUTER = "deregister-router"

    LIST_GROUPS = "list-groups"
    DESCRIBE_GROUP = "describe-group"
    LIST_TOPICS = "list-topics"
    DESCRIBE_LOADS = "describe-loads"

    DRAIN = "drain"
    PAUSE = "pause"
    RESUME = "resume"
    REBALANCE = "rebalance"
    SET_LOADS = "set-loads"

    SET_TOPIC = "set-topic"
    DELETE_TOPIC = "delete-topic"
    SET_GROUP_OPTIONS = "set-group-options"
    SET_OFFSETS = "set-offsets"
    DELETE_GROUP = "delete-group"

    JOIN_KAFKA_GROUP = "join-kafka-group"
    """Join, sync, send a heartbeat, leave: what members do."""
    COMMIT_KAFKA_OFFSETS = "commit-kafka-offsets"
    FETCH_KAFKA_OFFSETS = "fetch-kafka-offsets"
    LIST_KAFKA_GROUPS = "list-kafka-groups"
    DESCRIBE_KAFKA_GROUP = "describe-kafka-group"
    DELETE_KAFKA_GROUP = "delete-kafka-group"
    """And to delete its offsets."""

    READ_RECORDS = "read-records"
    WRITE_RECORDS = "write-records"
    CHANGE_CLUSTER = "change-cluster"

    CHECK_HEALTH = "check-health"
    REFLECT = "reflect"


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """What an action asks of its caller."""

    roles: frozenset[Role] = frozenset()
    """Any one of them is enough; empty: everybody may, also without an identity."""
    group: bool = True
    """It concerns one group, which the caller's `groups` must match."""
    name: bool = False
    """The caller acts as a consumer or a router, whose name its `names` must match."""
    changes: bool = False
    """An operator's change, which is worth a line in the audit log."""

    @property
    def is_open(self) -> bool:
        return not self.roles


_AS_CONSUMER = Requirement(roles=frozenset({Role.CONSUMER}), name=True)
_AS_ROUTER = Requirement(roles=frozenset({Role.ROUTER}), name=True)
_READS = Requirement(roles=frozenset({Role.READER, Role.OPERATOR, Role.ADMIN}))
_OPERATES = Requirement(roles=frozenset({Role.OPERATOR, Role.ADMIN}), changes=True)
_ADMINISTERS = Requirement(roles=frozenset({Role.ADMIN}), changes=True)
_PASSES_ON = Requirement(roles=frozenset({Role.GATEWAY}))
_OPEN = Requirement(group=False)

REQUIREMENTS: Mapping[Action, Requirement] = {
    Action.REGISTER: _AS_CONSUMER,
    Action.RENEW: _AS_CONSUMER,
    Action.ACK: _AS_CONSUMER,
    Action.DEREGISTER: _AS_CONSUMER,
    Action.REPORT_LOAD: _AS_CONSUMER,
    Action.COMMIT_OFFSETS: _AS_CONSUMER,
    # A consumer reads the offsets of partitions that were another one's, hence no name.
    Action.FETCH_OFFSETS: Requirement(roles=_READS.roles | {Role.CONSUMER}),
    Action.REGISTER_ROUTER: _AS_ROUTER,
    Action.RENEW_ROUTER: _AS_ROUTER,
    Action.ACK_CUTOVER: _AS_ROUTER,
    Action.DEREGISTER_ROUTER: _AS_ROUTER,
    # The groups that the caller may not see are left out of the answer.
    Action.LIST_GROUPS: Requirement(roles=_READS.roles, group=False),
    Action.DESCRIBE_GROUP: _READS,
    Action.LIST_TOPICS: _READS,
    Action.DESCRIBE_LOADS: _READS,
    Action.DRAIN: _OPERATES,
    Action.PAUSE: _OPERATES,
    Action.RESUME: _OPERATES,
    Action.REBALANCE: _OPERATES,
    Action.SET_LOADS: _OPERATES,
    Action.SET_TOPIC: _ADMINISTERS,
    Action.DELETE_TOPIC: _ADMINISTERS,
    Action.SET_GROUP_OPTIONS: _ADMINISTERS,
    Action.SET_OFFSETS: _ADMINISTERS,
    Action.DELETE_GROUP: _ADMINISTERS,
    Action.JOIN_KAFKA_GROUP: _PASSES_ON,
    Action.COMMIT_KAFKA_OFFSETS: _PASSES_ON,
    Action.FETCH_KAFKA_OFFSETS: _PASSES_ON,
    # The groups that the gateway may not see are left out of the answer.
    Action.LIST_KAFKA_GROUPS: Requirement(roles=_PASSES_ON.roles, group=False),
    Action.DESCRIBE_KAFKA_GROUP: _PASSES_ON,
    Action.DELETE_KAFKA_GROUP: _PASSES_ON,
    # What the brokers behind a gateway are asked to do, under the gateway's own identity there.
    Action.READ_RECORDS: Requirement(roles=_READS.roles | {Role.CONSUMER}, group=False),
    Action.WRITE_RECORDS: Requirement(roles=_OPERATES.roles | {Role.CONSUMER}, group=False),
    Action.CHANGE_CLUSTER: Requirement(roles=_ADMINISTERS.roles, group=False, changes=True),
    Action.CHECK_HEALTH: _OPEN,
    Action.REFLECT: _OPEN,
}

OF_KAFKA_CLIENTS = frozenset({Action.READ_RECORDS, Action.WRITE_RECORDS, Action.CHANGE_CLUSTER})
"""Actions that only a gateway asks about: no gRPC call does them."""

ACTIONS: Mapping[str, Action] = {
    f"/{_CONSUMERS}/Register": Action.REGISTER,
    f"/{_CONSUMERS}/Renew": Action.RENEW,
    f"/{_CONSUMERS}/PartitionReady": Action.ACK,
    f"/{_CONSUMERS}/PartitionReleased": Action.ACK,
    f"/{_CONSUMERS}/Deregister": Action.DEREGISTER,
    f"/{_CONSUMERS}/ReportLoad": Action.REPORT_LOAD,
    f"/{_CONSUMERS}/CommitOffsets": Action.COMMIT_OFFSETS,
    f"/{_CONSUMERS}/FetchOffsets": Action.FETCH_OFFSETS,
    f"/{_ROUTERS}/RegisterRouter": Action.REGISTER_ROUTER,
    f"/{_ROUTERS}/RenewRouter": Action.RENEW_ROUTER,
    f"/{_ROUTERS}/CutoverAck": Action.ACK_CUTOVER,
    f"/{_ROUTERS}/DeregisterRouter": Action.DEREGISTER_ROUTER,
    f"/{_ADMIN}/ListGroups": Action.LIST_GROUPS,
    f"/{_ADMIN}/DescribeGroup": Action.DESCRIBE_GROUP,
    f"/{_ADMIN}/ListTopics": Action.LIST_TOPICS,
    f"/{_ADMIN}/DescribeLoads": Action.DESCRIBE_LOADS,
    f"/{_ADMIN}/Drain": Action.DRAIN,
    f"/{_ADMIN}/Pause": Action.PAUSE,
    f"/{_ADMIN}/Resume": Action.RESUME,
    f"/{_ADMIN}/Rebalance": Action.REBALANCE,
    f"/{_ADMIN}/SetLoads": Action.SET_LOADS,
    f"/{_ADMIN}/SetTopic": Action.SET_TOPIC,
    f"/{_ADMIN}/DeleteTopic": Action.DELETE_TOPIC,
    f"/{_ADMIN}/SetGroupOptions": Action.SET_GROUP_OPTIONS,
    f"/{_ADMIN}/SetOffsets": Action.SET_OFFSETS,
    f"/{_ADMIN}/DeleteGroup": Action.DELETE_GROUP,
    f"/{_KAFKA_GROUPS}/JoinGroup": Action.JOIN_KAFKA_GROUP,
    f"/{_KAFKA_GROUPS}/SyncGroup": Action.JOIN_KAFKA_GROUP,
    f"/{_KAFKA_GROUPS}/Heartbeat": Action.JOIN_KAFKA_GROUP,
    f"/{_KAFKA_GROUPS}/LeaveGroup": Action.JOIN_KAFKA_GROUP,
    f"/{_KAFKA_GROUPS}/OffsetCommit": Action.COMMIT_KAFKA_OFFSETS,
    f"/{_KAFKA_GROUPS}/OffsetFetch": Action.FETCH_KAFKA_OFFSETS,
    f"/{_KAFKA_GROUPS}/ListGroups": Action.LIST_KAFKA_GROUPS,
    f"/{_KAFKA_GROUPS}/DescribeGroups": Action.DESCRIBE_KAFKA_GROUP,
    f"/{_KAFKA_GROUPS}/DeleteGroups": Action.DELETE_KAFKA_GROUP,
    f"/{_KAFKA_GROUPS}/OffsetDelete": Action.DELETE_KAFKA_GROUP,
    "/grpc.health.v1.Health/Check": Action.CHECK_HEALTH,
    "/grpc.health.v1.Health/Watch": Action.CHECK_HEALTH,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Action.REFLECT,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Action.REFLECT,
}


def action_of(path: str) -> Action | None:
    """Return the action of a call's path; None: there is none, and the call is denied."""
    return ACTIONS.get(path)
