"""Requests that no client would send, in any order: each has an answer or waits, and nothing breaks."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.core.kafka_groups.classic.actions import Limits
from assigner.model.kafka_groups import ClassicState, KafkaError, LeavingMember
from tests.support.core.classic_scene import ClassicScene

MINTED = [f"app-{number:04}" for number in range(1, 9)] + [f"i-{number:04}" for number in range(1, 9)]
ids = st.sampled_from(["", "stranger", *MINTED])
instances = st.sampled_from([None, None, "", "i", "j"])
generations = st.sampled_from([-(2**31), -1, 0, 1, 2, 3, 2**31 - 1])
timeouts = st.sampled_from([-1, 0, 1, 6_000, 10_000, 1_800_000, 2**31 - 1])
names = st.sampled_from(["range", "range", "sticky", "", "é"])
protocols = st.lists(st.tuples(names, st.sampled_from([b"", b"?", bytes(6)])), max_size=3).map(tuple)
assignments = st.lists(st.tuples(ids, st.binary(max_size=3)), max_size=3).map(tuple)

joins = st.fixed_dictionaries(
    {
        "member_id": ids,
        "instance_id": instances,
        "session_timeout": timeouts,
        "rebalance_timeout": timeouts,
        "protocol_type": st.sampled_from(["consumer", "consumer", "connect", ""]),
        "protocols": protocols,
        "requires_known_member": st.booleans(),
        "can_skip_assignment": st.booleans(),
    }
)
syncs = st.fixed_dictionaries(
    {
        "member_id": ids,
        "generation": st.none() | generations,
        "instance_id": instances,
        "protocol_type": st.sampled_from([None, "consumer", "connect"]),
        "protocol": st.sampled_from([None, "range", ""]),
        "assignments": assignments,
    }
)
leavings = st.lists(st.builds(LeavingMember, ids, instances, st.sampled_from(["", "because"])), max_size=4)
steps = st.one_of(
    st.tuples(st.just("join"), joins),
    st.tuples(st.just("sync"), syncs),
    st.tuples(st.just("heartbeat"), st.tuples(ids, st.none() | generations, instances)),
    st.tuples(st.just("commit"), st.tuples(ids, generations, instances)),
    st.tuples(st.just("leave"), leavings),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 3.0, 11.0, 400.0])),
    st.tuples(st.just("write"), st.booleans()),
    st.tuples(st.just("rebalance"), st.none()),
    st.tuples(st.just("reload"), st.none()),
)


def take(scene: ClassicScene, what: str, value: Any) -> ClassicScene:
    match what:
        case "join":
            scene.join(**value)
        case "sync":
            scene.sync(**value)
        case "heartbeat":
            scene.heartbeat(*value)
        case "commit":
            scene.commit(*value)
        case "leave":
            assert len(scene.leave(*value).members) == len(value)
        case "wait":
            scene.wait(value)
        case "write" if scene.write is not None:
            scene.let_write() if value else scene.fail_write(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
        case "rebalance":
            scene.rebalance()
        case "reload":
            scene.write = None
            scene.unload()
            assert scene.unanswered == []
            scene = scene.reloaded()
            scene.holds_writes = True
    return scene


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=40), st.booleans())
def test_any_course_of_requests_ends_with_everybody_answered(
    course: list[tuple[str, Any]], server_assigns: bool
) -> None:
    scene = ClassicScene(Limits(initial_delay=500, max_members=3, server_assigns=server_assigns))
    scene.holds_writes = True
    for what, value in course:
        scene = take(scene, what, value)
        description = scene.group.describe()
        assert len({member.member_id for member in description.members}) == len(description.members)
        static = [member.instance_id for member in description.members if member.instance_id is not None]
        assert len(set(static)) == len(static)

    scene.holds_writes = False
    if scene.write is not None:
        scene.let_write()
    # Longer than any rebalance timeout and any session that is accepted; nobody sends anything.
    scene.wait(20_000)

    assert scene.unanswered == []
    assert scene.group.state is ClassicState.EMPTY
    assert scene.group.wake_at is None
