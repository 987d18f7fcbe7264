"""What a consumer has to be sent: by differences, so that telling less often never tells something wrong."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from assigner.core.consumer_view import EMPTY_VIEW, CommandBuilder, PartitionView, view_of
from assigner.core.group import GroupState
from assigner.model.commands import Commands
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import Assignment, Handoff, Step, encode
from assigner.store import DeleteEvent, Entry, PutEvent

KEYS = Keys("/r/", default_group="g", default_prefix="").group("g")
TP = TopicPartition("t", 0)
ME = ("me", "s1")


class Scene:
    def __init__(self) -> None:
        self.state = GroupState(KEYS)
        self._revision = 0

    def owner(self, name: str, session: str, epoch: int) -> None:
        self._put(KEYS.assignment(TP), Assignment(topic="t", partition=0, owner=name, session=session, epoch=epoch))

    def handoff(self, old: tuple[str, str], new: tuple[str, str], step: Step, number: int, epoch: int) -> None:
        record = Handoff(
            topic="t",
            partition=0,
            old_owner=old[0],
            old_session=old[1],
            new_owner=new[0],
            new_session=new[1],
            step=step,
            phase=step.phase,
            handoff_id=f"h{number}",
            old_epoch=epoch,
        )
        self._put(KEYS.handoff(TP), record)

    def no_handoff(self) -> None:
        self.state.apply(DeleteEvent(KEYS.handoff(TP), self._revision))

    def nobody(self) -> None:
        self.state.apply(DeleteEvent(KEYS.assignment(TP), self._revision))

    def _put(self, key: str, record: Assignment | Handoff) -> None:
        self._revision += 1
        self.state.apply(PutEvent(Entry(key, encode(record), self._revision, self._revision, 1)))

    def mine(self) -> PartitionView:
        return view_of(self.state, *ME, TP)

    def diff(self, before: PartitionView) -> Commands | None:
        collected = CommandBuilder(self.state)
        collected.add(TP, before, self.mine())
        return collected.commands()


def test_an_owner_of_another_session_owns_nothing() -> None:
    scene = Scene()
    scene.owner("me", "s0", 4)
    assert scene.mine() == EMPTY_VIEW


def test_a_new_epoch_is_sent_although_the_owner_is_the_same() -> None:
    scene = Scene()
    scene.owner(*ME, 4)
    before = scene.mine()
    scene.owner(*ME, 5)
    diff = scene.diff(before)
    assert diff
    assert diff.assigned == ((TP, 5),)
    assert not diff.unassigned


def test_losing_a_partition_names_the_epoch_that_is_lost() -> None:
    scene = Scene()
    scene.owner(*ME, 4)
    before = scene.mine()
    scene.owner("other", "x", 5)
    diff = scene.diff(before)
    assert diff
    assert diff.unassigned == ((TP, 4),)


def test_a_flip_is_sent_to_the_old_owner_as_a_release_and_not_as_a_loss() -> None:
    scene = Scene()
    scene.owner(*ME, 4)
    scene.handoff(ME, ("new", "n"), Step.WARMING, 1, 4)
    before = scene.mine()
    scene.owner("new", "n", 5)
    scene.handoff(ME, ("new", "n"), Step.COMPLETE, 1, 4)
    diff = scene.diff(before)
    assert diff
    assert not diff.unassigned
    assert [(release.tp, release.epoch, release.handoff_id) for release in diff.releases] == [(TP, 4, "h1")]
    sent = scene.mine()
    scene.no_handoff()
    assert scene.diff(sent) is None


def test_a_target_is_asked_once_and_cancelled_when_it_is_not_wanted_any_more() -> None:
    scene = Scene()
    scene.owner("old", "o", 4)
    scene.handoff(("old", "o"), ME, Step.WARMING, 1, 4)
    diff = scene.diff(EMPTY_VIEW)
    assert diff
    assert [warm.handoff_id for warm in diff.warms] == ["h1"]
    asked = scene.mine()
    assert scene.diff(asked) is None
    scene.no_handoff()
    diff = scene.diff(asked)
    assert diff
    assert [cancel.handoff_id for cancel in diff.cancels] == ["h1"]


def test_a_target_that_becomes_the_owner_is_not_sent_a_cancel() -> None:
    scene = Scene()
    scene.owner("old", "o", 4)
    scene.handoff(("old", "o"), ME, Step.READY, 1, 4)
    before = scene.mine()
    scene.owner(*ME, 5)
    scene.handoff(("old", "o"), ME, Step.COMPLETE, 1, 4)
    diff = scene.diff(before)
    assert diff
    assert diff.assigned == ((TP, 5),)
    assert not diff.cancels


def test_handoffs_of_upstream_without_an_id_are_distinguished() -> None:
    scene = Scene()
    scene.owner("old", "o", 4)
    record = Handoff(topic="t", partition=0, old_owner="old", old_session="o", new_owner="me", new_session="s1")
    scene._put(KEYS.handoff(TP), record)
    assert scene.mine().target
    diff = scene.diff(EMPTY_VIEW)
    assert diff
    assert diff.warms[0].handoff_id == ""


# --- any course of events, sent at any pace ----------------------------------------------------------------------

STEPS = [Step.WARMING, Step.FAILED, Step.READY, Step.FREEZING, Step.RELEASING, Step.RELEASED, Step.COMPLETE]
PEOPLE = [ME, ("me", "s0"), ("other", "o"), ("third", "t")]
EVENTS = st.one_of(
    st.tuples(st.just("own"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("handoff"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("step"), st.sampled_from(range(len(STEPS))), st.just(0)),
    st.tuples(st.just("end"), st.just(0), st.just(0)),
    st.tuples(st.just("nobody"), st.just(0), st.just(0)),
)


def happen(scene: Scene, event: tuple[str, int, int], number: int) -> None:
    what, one, other = event
    held, handoff = scene.state.assignments.get(TP), scene.state.handoffs.get(TP)
    match what:
        case "own":
            scene.owner(*PEOPLE[one], number)
        case "handoff":
            epoch = held.record.epoch if held else 0
            scene.handoff(PEOPLE[one], PEOPLE[other], Step.WARMING, number, epoch)
        # A handoff does not return to a step that it has left: another try has an id of its own.
        case "step" if handoff and STEPS[one] not in STEPS[: STEPS.index(handoff.record.at)]:
            record = handoff.record
            ends = (record.old_owner, record.old_session), (record.new_owner, record.new_session)
            scene.handoff(*ends, STEPS[one], int(record.handoff_id[1:]), record.old_epoch)
        case "end" if handoff:
            scene.no_handoff()
        case "nobody" if held:
            scene.nobody()


@given(st.lists(st.tuples(EVENTS, st.booleans()), max_size=25))
@example([(("handoff", 0, 0), False), (("step", 1, 0), True), (("step", 0, 0), False)])
def test_for_any_history_and_however_rarely_views_are_sent_the_end_is_right(
    course: list[tuple[tuple[str, int, int], bool]],
) -> None:
    scene, sent = Scene(), EMPTY_VIEW
    releases: list[str] = []
    warms: list[str] = []
    for number, (event, tell) in enumerate(course, start=1):
        happen(scene, event, number)
        if not tell:
            continue
        commands, sent = scene.diff(sent), scene.mine()
        if commands:
            releases += [release.handoff_id for release in commands.releases]
            warms += [warm.handoff_id for warm in commands.warms]
            assert not (commands.assigned and commands.unassigned)
    commands, now = scene.diff(sent), scene.mine()
    if now == sent:
        assert commands is None
    if commands:
        releases += [release.handoff_id for release in commands.releases]
        warms += [warm.handoff_id for warm in commands.warms]
        assert commands.assigned in ((), ((TP, now.epoch),))
    # What stands now was said: an ownership, a warm that is awaited, a release that is awaited.
    if now.warming:
        assert now.target in warms
    if now.release:
        assert now.release in releases
    fresh = scene.diff(EMPTY_VIEW)
    if now.owned:
        assert fresh
        assert fresh.assigned == ((TP, now.epoch),)
