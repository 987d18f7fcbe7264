"""A group in names becomes numbers, whatever the file says."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from assigner.core.whatif import changes
from assigner.core.whatif.group_spec import MAX_PARTITIONS, GroupSpec, MemberSpec, TopicSpec, intern, read
from assigner.core.whatif.report import build_report, solve, spec_after
from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.strategies.sticky_balanced import strategy
from assigner.strategy import NONE


def member(name: str, /, **fields: Any) -> MemberSpec:
    return MemberSpec(name=name, **fields)


def topic(name: str, partitions: int, **fields: Any) -> TopicSpec:
    return TopicSpec(name=name, partitions=partitions, **fields)


SEED = GroupSpec(
    topics=(topic("t", 10),),
    members=(
        member("C", owned={"t": (7, 8, 9)}),
        member("A", owned={"t": (0, 1, 2, 3)}),
        member("B", owned={"t": (4, 5, 6)}),
    ),
)


# --- names to numbers ---


def test_members_and_topics_come_in_name_order() -> None:
    spec = GroupSpec(topics=(topic("z", 1), topic("a", 2)), members=(member("n", owned={"z": (0,)}), member("m")))
    interned = intern(spec)
    assert interned.members == ("m", "n")
    assert [str(tp) for tp in interned.partitions] == ["a/0", "a/1", "z/0"]
    assert interned.problem.owner.tolist() == [NONE, NONE, 1]


def test_the_higher_generation_has_what_two_claim() -> None:
    spec = GroupSpec(
        topics=(topic("t", 2),),
        members=(member("a", generation=9, owned={"t": (0,)}), member("b", generation=10, owned={"t": (0, 1)})),
    )
    assert intern(spec).problem.owner.tolist() == [1, 1]
    assert intern(spec).dropped == ()


def test_of_two_equal_claims_neither_is_kept_and_both_are_listed() -> None:
    spec = GroupSpec(
        topics=(topic("t", 3),), members=(member("a", owned={"t": (0, 1)}), member("b", owned={"t": (0, 2)}))
    )
    interned = intern(spec)
    assert interned.problem.owner.tolist() == [NONE, 0, 1]
    assert interned.dropped == ("t/0 is claimed by a and by b; it counts as unowned",)


def test_a_third_claim_of_the_same_generation_does_not_win() -> None:
    claims = tuple(member(name, owned={"t": (0,)}) for name in "abc")
    assert intern(GroupSpec(topics=(topic("t", 1),), members=claims)).problem.owner.tolist() == [NONE]


def test_claims_of_what_does_not_exist_are_dropped_and_listed() -> None:
    spec = GroupSpec(
        topics=(topic("t", 1),), members=(member("a", owned={"gone": (0,), "t": (0, 1)}, topics=("t", "x")),)
    )
    interned = intern(spec)
    assert interned.problem.owner.tolist() == [0]
    assert set(interned.dropped) == {
        "a subscribes to x, which does not exist",
        "a owns gone, which does not exist",
        "a owns t/1, which has 1 partitions only",
    }


def test_racks_weights_caps_pins_and_standbys_arrive() -> None:
    spec = GroupSpec(
        topics=(topic("t", 2, weights=(1.0, 4.0), replica_racks=(("r2", "r1"),)), topic("u", 1)),
        members=(
            member("a", rack="r2", cap=3, hold=True, load=0.5, standbys={"t": (1,)}),
            member("b", rack="r9", owned={"u": (0,)}, topics=("u",)),
        ),
        pinned=("u/0",),
        standby_count=1,
        copartitioned=(("t", "u"),),
        strategy_options={"x": 1},
    )
    problem = intern(spec).problem
    assert problem.topics.weight is not None
    assert problem.topics.weight.tolist() == [1.0, 4.0, 1.0]
    assert problem.topics.replica_racks is not None
    assert [array.tolist() for array in problem.topics.replica_racks] == [[0, 2, 2, 2], [1, 0]]
    assert problem.members.rack.tolist() == [1, 2]
    assert problem.members.cap.tolist() == [3, NONE]
    assert problem.members.hold.tolist() == [True, False]
    assert problem.members.load is not None
    assert problem.members.load[0] == 0.5
    assert np.isnan(problem.members.load[1])
    assert problem.members.subscription.tolist() == [[True, True], [False, True]]
    assert problem.pinned.tolist() == [False, False, True]
    assert problem.standbys.tolist() == [[NONE], [0], [NONE]]
    assert problem.topics.copartition is not None
    assert problem.topics.copartition.tolist() == [0, 0]
    assert problem.standby_count == 1
    assert problem.options == {"x": 1}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (GroupSpec(members=(member("a"), member("a"))), "member a is there twice"),
        (GroupSpec(topics=(topic("t", 1), topic("t", 2))), "topic t is there twice"),
        (GroupSpec(topics=(topic("t", -1),)), "topic t has -1 partitions; it must be 0 or more"),
        (GroupSpec(topics=(topic("t", MAX_PARTITIONS + 1),)), "more than 1000000 partitions; split the group"),
        (GroupSpec(topics=(topic("t", 2, weights=(1.0,)),)), "topic t has 2 partitions and 1 weights"),
        (GroupSpec(members=(member("a", cap=-2),)), "the cap of a is -2; it must be 0 or more"),
        (GroupSpec(pinned=("t",)), "pinned 't' is not TOPIC/PARTITION"),
    ],
)
def test_nonsense_is_refused(spec: GroupSpec, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        intern(spec)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{", "not a group's description"),
        (b"[]", "Expected `object`"),
        (b'{"member": []}', "unknown field `member`"),
        (b'{"topics": [{"name": "t", "partitions": "ten"}]}', r"Expected `int`, got `str` - at `\$.topics"),
        (b"\xff", "not a group's description"),
    ],
)
def test_a_file_that_is_no_group_is_refused_by_field(text: bytes, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        read(text)


# --- what if ---


def test_the_worked_example_comes_out_to_the_letter() -> None:
    after = changes.leave(SEED, "C")
    found = build_report(SEED, solve(after, strategy))
    assert [(move.partition, move.old, move.new) for move in found.planned] == [
        ("t/7", "C", "A"),
        ("t/8", "C", "B"),
        ("t/9", "C", "B"),
    ]
    assert {move.why for move in found.planned} == {"its owner C is gone"}
    assert (found.moves, found.placed, found.imbalance) == (0, 3, 0)
    assert [(share.member, share.before, share.after) for share in found.shares] == [
        ("A", 4, 5),
        ("B", 3, 5),
        ("C", 3, 0),
    ]


def test_a_plan_that_was_carried_out_moves_nothing_more() -> None:
    after = changes.join(SEED, member("D"))
    solved = solve(after, strategy)
    assert build_report(SEED, solved).moves == 2
    later = spec_after(after, solved)
    assert build_report(later, solve(later, strategy)).planned == ()


def test_a_topic_keeps_its_weights_when_it_grows() -> None:
    spec = changes.weigh(SEED, {TopicPartition("t", 9): 3.0})
    grown = changes.resize(spec, "t", 12)
    assert grown.topics[0].weights[9:] == (3.0, 1.0, 1.0)
    assert changes.resize(grown, "new", 4).topics[1] == topic("new", 4)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda: changes.join(SEED, member("A")), "member A is in the group already"),
        (lambda: changes.leave(SEED, "X"), "no member X; members: A, B, C"),
        (lambda: changes.weigh(SEED, {TopicPartition("t", 10): 1.0}), "there is no partition t/10"),
    ],
)
def test_an_edit_that_can_not_be_is_refused(edit: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        edit()


def test_a_spec_survives_its_file() -> None:
    text = msgspec.json.encode(SEED)
    assert read(text) == SEED
    assert set(json.loads(text)) == {"members", "topics"}
