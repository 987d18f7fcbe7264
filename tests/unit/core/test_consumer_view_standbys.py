"""Commands about standby copies: the difference from the view last sent, however rarely the stream is read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.core.consumer_view import EMPTY_VIEW, CommandBuilder, PartitionView, view_of
from assigner.model.commands import Commands
from assigner.model.records import Step
from tests.support.core.coordination_scene import Scene, tp

ME = ("me", "me1")
TP = tp(0)


def here(scene: Scene) -> PartitionView:
    return view_of(scene.state, *ME, TP)


def changed(scene: Scene, before: PartitionView) -> Commands:
    builder = CommandBuilder(scene.state, ME[0])
    builder.add(TP, before, here(scene))
    return builder.commands() or Commands()


def test_a_holder_stands_by_whatever_its_session() -> None:
    scene = Scene()
    scene.copy(0, "me")
    assert here(scene).standby
    assert view_of(scene.state, "me", "another", TP).standby
    assert not view_of(scene.state, "you", "you1", TP).standby


def test_a_copy_of_another_topic_of_the_same_name_is_removed_and_added_however_late_it_is_read() -> None:
    scene = Scene(topic_id="first")
    scene.copy(0, "me", topic_id="first")
    before = here(scene)
    scene.copy(0, "me", topic_id="second")
    assert here(scene) == EMPTY_VIEW, "the config still knows the first"
    scene.put_topic("second")
    change = changed(scene, before)
    assert (change.standbys_removed, change.standbys_added) == ((TP,), (TP,))


def test_from_standby_to_owner_is_an_assignment_and_nothing_else() -> None:
    scene = Scene()
    scene.copy(0, "me")
    before = here(scene)
    scene.own(0, "me")
    change = changed(scene, before)
    assert change.assigned == ((TP, 1),)
    assert not change.standbys_removed


def test_from_owner_to_standby_is_a_release_that_keeps_the_copy() -> None:
    scene = Scene()
    scene.own(0, "me")
    before = here(scene)
    scene.copy(0, "b", "me")
    scene.handoff(0, "me", "b", Step.COMPLETE)
    scene.own(0, "b")
    change = changed(scene, before)
    assert [release.standby for release in change.releases] == [True]
    assert change.standbys_added == (TP,)


def test_a_release_without_a_copy_to_keep_says_so() -> None:
    scene = Scene()
    scene.own(0, "me")
    before = here(scene)
    scene.handoff(0, "me", "b", Step.COMPLETE)
    scene.own(0, "b")
    change = changed(scene, before)
    assert [release.standby for release in change.releases] == [False]
    assert not change.standbys_added


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["mine", "theirs", "copy", "no copy", "read"]), max_size=25))
def test_a_consumer_that_applies_every_message_has_the_recorded_view(events: list[str]) -> None:
    scene = Scene()
    sent, owns, copies = EMPTY_VIEW, False, False
    for event in [*events, "read"]:
        match event:
            case "mine":
                scene.own(0, "me")
            case "theirs":
                scene.own(0, "b")
            case "copy":
                scene.copy(0, "me")
            case "no copy":
                scene.copy(0, "b")
            case _:
                change = changed(scene, sent)
                sent = here(scene)
                owns = bool(change.assigned) or (owns and not change.unassigned)
                copies = bool(change.standbys_added) or (copies and not change.standbys_removed and not change.assigned)
                assert owns == sent.owned
                assert copies == sent.standby
