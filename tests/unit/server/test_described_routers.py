"""How routers, and acks that are missing, are encoded in a group's description."""

from __future__ import annotations

from assigner.api import GroupDescription, GroupSummary, RouterMember
from assigner.model.records import Cause, GroupOptions, Handoff, Move, Step
from assigner.proto.kafka_assigner import v1
from assigner.server.services.group_description import described

SUMMARY = GroupSummary(
    group="g", leader="", consumers=0, topics=0, partitions=0, unowned=0, handoffs=1, generation=1, paused=False
)
FROZEN = Handoff(
    topic="t", partition=0, old_owner="a", new_owner="b", step=Step.FREEZING, phase=Step.FREEZING.phase, unacked=("r1",)
)
MOVE = Move(
    at=1, topic="t", partition=1, old="a", new="b", cause=Cause.JOINED, generation=1, epoch=2, unacked=("r1", "r2")
)


async def test_routers_and_missing_acks_are_described() -> None:
    group = GroupDescription(
        summary=SUMMARY,
        leader_address="",
        epoch_floor=0,
        options=GroupOptions(),
        members=(),
        topics=(),
        ownership=(),
        handoffs=(FROZEN,),
        quarantined=(),
        unreadable=(),
        history=(MOVE,),
        routers=(
            RouterMember(name="r1", session="digest", unacked=1, silent_for=2.5),
            RouterMember(name="r2", session="", unacked=0),
        ),
    )
    reply = v1.DescribeGroupResponse().parse(await described(group))
    assert [(one.name, one.session, one.unacked, one.silent_for) for one in reply.routers] == [
        ("r1", "digest", 1, 2.5),
        ("r2", "", 0, None),
    ]
    assert reply.handoffs[0].unacked == ["r1"]
    assert reply.history[0].unacked == ["r1", "r2"]
    assert reply.options is not None
    assert reply.options.freeze_overdue == "abandon"
