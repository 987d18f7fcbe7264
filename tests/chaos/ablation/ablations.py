"""Every safety rule, switched off: one small change of the product's code each, and the rule's test that must notice.

A safeguard that can be removed without any test failing is not known to work. `test_ablation.py` makes each change,
runs the test's own body in virtual time and expects it to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from assigner.model.records import HandoffMode
from tests.chaos.ablation.mutations import Patch, consumers, leaders, routers, sessions, writes
from tests.scenarios.handoff import test_becoming_exclusive as becoming_exclusive
from tests.scenarios.handoff import test_releasing_to_nobody as letting_go
from tests.scenarios.leadership import test_rules_leading as leading
from tests.scenarios.leadership import test_supervision as supervision
from tests.scenarios.limits import test_many_at_once as many
from tests.scenarios.limits import test_rules_limits as limits
from tests.scenarios.offsets import test_offsets as commits
from tests.scenarios.offsets import test_offsets_in_trouble as offsets
from tests.scenarios.offsets import test_offsets_superseded as superseded
from tests.scenarios.ownership import test_clean_up as clean_up
from tests.scenarios.ownership import test_epoch_floor as floor
from tests.scenarios.ownership import test_outages as outages
from tests.scenarios.ownership import test_rules_ownership as ownership
from tests.scenarios.ownership import test_rules_planning as planning
from tests.scenarios.routing import test_freeze_quorum as freezes
from tests.scenarios.routing import test_freezes_that_end_otherwise as other_ends
from tests.scenarios.routing import test_router_identities as router_identities
from tests.scenarios.routing import test_router_library_rules as router_library
from tests.scenarios.routing import test_router_sessions as router_sessions
from tests.scenarios.sessions import test_calls_without_a_session as calls
from tests.scenarios.sessions import test_identities as identities
from tests.scenarios.sessions import test_incarnations as incarnations
from tests.scenarios.sessions import test_rules_clients as clients
from tests.scenarios.sessions import test_session_races as races
from tests.scenarios.topics import test_group_deletion as deletion


class Ablation(NamedTuple):
    rule: int
    what: str
    """The world without the rule."""
    switch_off: Callable[[Patch], None]
    noticed_by: Callable[..., Coroutine[Any, Any, None]]
    arguments: dict[str, Any] = {}


ABLATIONS: tuple[Ablation, ...] = (
    Ablation(
        1,
        "a dead owner's partition is given away with the same epoch",
        writes.reassigned_with_the_same_epoch,
        ownership.test_rule_1_work_of_an_owner_that_does_not_know_it_is_dead_is_refused_by_its_epoch,
    ),
    Ablation(
        1,
        "who was taken for dead is not looked at again when its partition is given away",
        writes.the_dead_are_not_looked_at_again,
        ownership.test_rule_1_an_owner_that_rejoined_before_the_write_keeps_its_partitions,
    ),
    Ablation(
        5,
        "the clean-up of an empty group does not look who is back",
        writes.clean_up_does_not_look_who_is_back,
        clean_up.test_rule_5_an_owner_that_is_back_before_the_removal_keeps_its_partitions,
        {"mode": HandoffMode.OVERLAP},
    ),
    Ablation(
        5,
        "a registration does not compare that its group is still there",
        sessions.registrations_do_not_look_for_their_group,
        deletion.test_rule_5_who_registers_just_before_the_group_is_deleted_is_not_left_without_a_leader,
    ),
    Ablation(
        6,
        "a group is deleted without raising the floor",
        writes.deleted_groups_leave_the_floor,
        deletion.test_rule_6_epochs_of_a_group_of_the_same_name_are_above_those_of_the_deleted_one,
    ),
    Ablation(
        2,
        "each registration is a new session",
        sessions.the_server_names_sessions,
        ownership.test_rule_2_the_same_session_on_another_instance_resumes_and_nothing_moves,
    ),
    Ablation(
        2,
        "owners are names",
        sessions.owners_are_names,
        ownership.test_rule_2_a_new_session_is_fenced_off_from_the_old_one_before_it_is_granted_anything,
    ),
    Ablation(
        2,
        "a takeover keeps the epoch",
        writes.takeovers_keep_the_epoch,
        ownership.test_rule_2_a_new_session_is_fenced_off_from_the_old_one_before_it_is_granted_anything,
    ),
    Ablation(
        2,
        "a handoff goes on to whoever has the target's name",
        leaders.targets_are_names,
        ownership.test_rule_2_a_handoff_to_the_old_session_is_replaced,
    ),
    Ablation(
        2,
        "a stream takes its name's place whichever session is on record",
        sessions.any_session_takes_the_stream,
        races.test_rule_2_of_two_sessions_the_newer_stays_although_the_older_gets_its_response_last,
    ),
    Ablation(
        3,
        "a gate ignores the clock",
        consumers.gates_do_not_look_at_the_clock,
        clients.test_rule_3_a_gate_is_shut_two_thirds_of_the_ttl_after_the_renewal_was_sent,
    ),
    Ablation(
        3,
        "a gate trusts the whole TTL",
        consumers.gates_trust_the_whole_ttl,
        clients.test_rule_3_a_gate_is_shut_two_thirds_of_the_ttl_after_the_renewal_was_sent,
    ),
    Ablation(
        3,
        "Renew is answered without asking the store",
        sessions.renew_is_answered_without_asking,
        clients.test_rule_3_renew_is_answered_only_after_the_lease_was_renewed,
    ),
    Ablation(
        3,
        "an open stream renews the lease of a client that should do it itself",
        sessions.an_open_stream_renews,
        clients.test_rule_3_a_client_that_says_it_renews_and_does_not_is_gone_after_its_ttl,
    ),
    Ablation(
        3,
        "exclusive groups take clients that do not renew",
        sessions.exclusive_takes_everybody,
        clients.test_rule_3_exclusive_groups_refuse_clients_that_do_not_renew,
    ),
    Ablation(
        4,
        "leaders write unfenced",
        writes.leaders_write_unfenced,
        leading.test_rule_4_a_write_that_arrives_after_the_term_ended_fails,
    ),
    Ablation(
        4,
        "leaders write unfenced, looked at from the store",
        writes.leaders_write_unfenced,
        leading.test_rule_4_every_transaction_of_a_leader_carries_its_fence,
    ),
    Ablation(
        5,
        "any handoff id will do",
        writes.any_handoff_id_will_do,
        ownership.test_rule_5_an_ack_of_an_earlier_handoff_changes_nothing,
    ),
    Ablation(
        5,
        "acks compare nothing",
        writes.acks_compare_nothing,
        ownership.test_rule_5_an_ack_that_arrives_after_its_handoff_was_replaced_changes_nothing,
    ),
    Ablation(
        5,
        "a flip does not compare the target's registration",
        writes.flips_do_not_look_at_the_target,
        ownership.test_rule_5_a_target_that_left_before_the_flip_does_not_become_the_owner,
    ),
    Ablation(
        5,
        "a rewritten registration loses its lease",
        sessions.draining_drops_the_lease,
        ownership.test_rule_5_a_draining_consumer_keeps_its_lease,
    ),
    Ablation(
        5,
        "a write of unknown outcome is not read again",
        writes.unknown_outcomes_are_not_read_again,
        ownership.test_rule_5_a_write_of_unknown_outcome_is_read_again,
        {"applied": False},
    ),
    Ablation(
        5,
        "a commit of an offset does not compare the assignment",
        writes.commits_compare_nothing,
        offsets.test_rule_5_one_that_lost_its_partition_fails_no_other_in_its_transaction,
    ),
    Ablation(
        5,
        "any session of the owner's name commits",
        writes.committers_are_names,
        commits.test_rule_5_a_session_of_the_same_name_and_epoch_that_is_not_the_owners_is_refused,
    ),
    Ablation(
        6,
        "records are removed without raising the floor",
        writes.removal_leaves_the_floor,
        ownership.test_rule_6_epochs_go_on_after_the_records_were_removed,
    ),
    Ablation(
        6,
        "the floor does not count",
        writes.the_floor_does_not_count,
        ownership.test_rule_6_the_floor_counts_for_records_without_an_epoch,
    ),
    Ablation(
        6,
        "a recreated topic begins with epoch 1",
        writes.a_recreated_topic_begins_anew,
        ownership.test_rule_6_a_recreated_topic_drops_offset_and_handoff_and_its_epochs_continue,
    ),
    Ablation(
        6,
        "a recreated topic keeps its offsets",
        writes.a_recreated_topic_keeps_its_offsets,
        ownership.test_rule_6_a_recreated_topic_drops_offset_and_handoff_and_its_epochs_continue,
    ),
    Ablation(7, "no grant is stale", consumers.no_grant_is_stale, clients.test_rule_7_a_released_epoch_stays_released),
    Ablation(
        7,
        "an ownership of the store's last life is kept",
        consumers.ownership_outlives_the_store,
        incarnations.test_rule_7_the_same_epoch_in_a_new_life_is_another_ownership,
    ),
    Ablation(
        7,
        "a higher epoch slips in under the handler",
        consumers.a_higher_epoch_slips_in,
        clients.test_rule_7_a_higher_epoch_on_a_held_partition_means_revoke_and_then_assign,
    ),
    Ablation(
        7,
        "a release names no epoch",
        consumers.releases_name_no_epoch,
        clients.test_rule_7_release_and_unassigned_name_the_epoch_that_ends,
    ),
    Ablation(
        7,
        "a first message shows whatever is mirrored",
        consumers.snapshots_show_whatever_is_mirrored,
        clients.test_rule_7_a_snapshot_never_shows_an_ownership_that_was_taken_away,
    ),
    Ablation(
        8,
        "who is absent when a term starts is dead at once",
        sessions.the_absent_are_dead_at_once,
        ownership.test_rule_8_an_outage_of_the_service_moves_nothing_if_the_consumers_rejoin,
    ),
    Ablation(
        8,
        "who is absent when a term starts is never dead",
        sessions.the_absent_are_never_dead,
        ownership.test_rule_8_a_consumer_absent_for_a_ttl_of_the_new_leader_is_dead,
    ),
    Ablation(
        8,
        "an unreadable registration is none",
        leaders.unreadable_consumers_are_gone,
        ownership.test_rule_8_an_unreadable_registration_is_a_registration,
    ),
    Ablation(
        8,
        "exclusive does not wait for the lease to end",
        sessions.exclusive_does_not_wait_for_the_lease,
        ownership.test_rule_8_in_exclusive_an_owner_is_dead_only_when_its_lease_is_over,
    ),
    Ablation(
        8,
        "leaving revokes the lease whatever the gates",
        sessions.leaving_revokes_at_once,
        ownership.test_rule_8_a_lease_is_revoked_only_after_the_gates_were_reported_closed,
    ),
    Ablation(
        9,
        "a watch starts now instead of after the listing",
        leaders.watches_start_now,
        leading.test_rule_9_what_happens_between_listing_and_watching_is_not_missed,
    ),
    Ablation(
        9,
        "a broken watch is opened again without a listing",
        leaders.a_broken_watch_is_just_opened_again,
        leading.test_rule_9_a_watch_that_cannot_go_on_is_followed_by_a_listing,
        {"how": "ended"},
    ),
    Ablation(
        9,
        "nothing is reconciled",
        leaders.nothing_is_reconciled,
        leading.test_rule_9_a_missed_event_costs_time_never_correctness,
    ),
    Ablation(
        10,
        "a lease is trusted for ever",
        sessions.leases_are_trusted_for_ever,
        leading.test_rule_10_a_leader_without_a_confirmed_renewal_stops_before_its_lease_is_over,
    ),
    Ablation(
        10,
        "a lease that is gone counts as renewed",
        sessions.a_lease_that_is_gone_counts_as_renewed,
        leading.test_rule_10_a_lease_that_is_gone_is_noticed_at_the_next_renewal,
    ),
    Ablation(
        11,
        "partitions in flight are not pinned",
        leaders.partitions_in_flight_are_not_pinned,
        planning.test_rule_11_a_stuck_partition_stays_on_its_way_and_the_rest_is_planned_around_it,
    ),
    Ablation(
        11,
        "co-partitioned topics flip one by one",
        leaders.copartitions_flip_one_by_one,
        planning.test_rule_11_copartitioned_topics_flip_as_one,
    ),
    Ablation(
        12,
        "a move is given up by deleting its handoff",
        writes.giving_up_only_deletes_the_handoff,
        ownership.test_rule_12_an_abandoned_move_reaffirms_its_owner_with_the_next_epoch_in_one_write,
    ),
    Ablation(
        13,
        "transactions hold whatever there is",
        writes.transactions_hold_whatever_there_is,
        limits.test_rule_13_what_is_too_much_for_one_transaction_takes_several,
    ),
    Ablation(
        14,
        "an outbox keeps every event",
        consumers.an_outbox_keeps_every_event,
        limits.test_rule_14_a_slow_consumers_outbox_holds_each_partition_once,
    ),
    Ablation(
        14,
        "any number of streams is served",
        consumers.there_is_always_room,
        limits.test_rule_14_streams_beyond_the_limit_are_refused,
    ),
    Ablation(
        14,
        "any number of writes may wait",
        writes.any_number_of_writes_may_wait,
        limits.test_rule_14_writes_beyond_the_limit_are_refused,
    ),
    Ablation(
        15,
        "unreadable partitions are planned",
        leaders.unreadable_partitions_are_planned,
        planning.test_rule_15_an_unreadable_record_is_reported_left_out_and_left_alone,
    ),
    Ablation(
        15,
        "unreadable records are not mentioned",
        leaders.unreadable_records_are_not_mentioned,
        planning.test_rule_15_an_unreadable_record_is_reported_left_out_and_left_alone,
    ),
    Ablation(
        15,
        "planning goes on without the floor",
        leaders.unreadable_records_are_not_mentioned,
        planning.test_rule_15_while_the_plan_cannot_be_read_nothing_is_planned,
    ),
    Ablation(
        8,
        "balance does not wait for those who may be back",
        sessions.balance_waits_for_nobody,
        outages.test_rule_8_a_restart_of_the_service_moves_nothing_by_range,
    ),
    Ablation(
        16,
        "a plan is carried out whoever left since",
        leaders.a_plan_is_carried_out_whoever_left,
        planning.test_rule_16_a_late_plan_gives_nothing_to_who_left_since,
    ),
    Ablation(
        16,
        "a plan goes by the sessions it was made for",
        leaders.a_plan_goes_by_the_sessions_it_was_made_for,
        planning.test_rule_16_a_late_plan_does_not_undo_a_takeover,
    ),
    Ablation(
        16,
        "the generation is published before its plan",
        leaders.the_generation_is_published_first,
        planning.test_rule_16_the_generation_follows_the_plan_and_is_raised_only_by_a_change,
    ),
    Ablation(
        16,
        "every plan is a new generation",
        leaders.every_plan_is_a_new_generation,
        planning.test_rule_16_the_generation_follows_the_plan_and_is_raised_only_by_a_change,
    ),
    Ablation(
        17,
        "any session will do",
        sessions.any_session_will_do,
        calls.test_rule_17_a_call_without_a_session_does_nothing_for_a_consumer_that_has_one,
        {"call": "Deregister with closed gates"},
    ),
    Ablation(
        17,
        "a session is not bound to the identity that opened it",
        sessions.sessions_are_not_bound_to_identities,
        identities.test_rule_17_another_identity_takes_neither_the_name_nor_the_session,
        {"who": "evil/worker", "session": "the-session"},
    ),
    Ablation(
        17,
        "a call acts for a session of another identity",
        sessions.calls_do_not_look_at_identities,
        identities.test_rule_17_another_identity_can_not_ack_the_release_of_what_an_owner_still_holds,
    ),
    Ablation(
        17,
        "a router's session is not bound to the identity that opened it",
        sessions.routers_are_not_bound_to_identities,
        router_identities.test_rule_17_another_identity_does_nothing_for_a_router_whether_or_not_it_knows_the_session,
        {"call": "CutoverAck", "who": "evil/edge", "session": "the-session"},
    ),
    Ablation(
        17,
        "exclusive groups take clients without a session",
        sessions.exclusive_takes_clients_without_a_session,
        calls.test_rule_17_exclusive_groups_take_no_client_without_a_session,
        {"renews": True},
    ),
    Ablation(
        5,
        "decisions of an overlap group take effect in one that has become exclusive",
        writes.the_mode_is_not_looked_at_again,
        becoming_exclusive.test_rule_5_a_flip_that_was_decided_before_the_switch_does_not_come_after_it,
    ),
    Ablation(
        8,
        "what nobody can take is forgotten before its owner let go",
        leaders.what_is_let_go_is_forgotten_at_once,
        letting_go.test_rule_8_a_partition_released_to_nobody_has_its_owner_until_the_ack,
    ),
    Ablation(
        15,
        "a topic whose config can't be read counts as deleted",
        leaders.unreadable_topics_are_gone,
        letting_go.test_rule_15_a_topic_whose_config_can_not_be_read_is_left_alone_and_a_drain_ends,
    ),
    Ablation(
        18,
        "a commit does not compare the offset it replaces",
        writes.commits_do_not_compare_what_they_replace,
        superseded.test_rule_18_an_answered_commit_is_not_replaced_by_an_earlier_try_of_the_one_before,
    ),
    Ablation(
        18,
        "an operator's offsets do not compare what they replace",
        writes.set_offsets_compare_nothing,
        superseded.test_rule_18_what_an_operator_set_is_not_replaced_by_an_earlier_try,
        {"force": True},
    ),
    Ablation(
        18,
        "the floor is raised only before a removal",
        writes.the_floor_does_not_follow,
        floor.test_rule_18_epochs_only_rise_although_a_service_without_epochs_was_here_meanwhile,
        {"deletes": False},
    ),
    Ablation(
        19,
        "a loop that ended stays ended",
        leaders.loops_that_ended_stay_ended,
        supervision.test_rule_19_a_loop_that_ended_in_silence_is_started_again,
    ),
    Ablation(
        19,
        "a loop that keeps failing is not told",
        leaders.failing_loops_are_not_told,
        supervision.test_rule_19_a_loop_that_keeps_failing_fails_livez,
        {"loop": "leadership"},
    ),
    Ablation(
        20,
        "every change wakes all who wait",
        consumers.every_change_wakes_all_who_wait,
        many.test_rule_20_a_registration_costs_the_same_however_many_come_at_once,
    ),
    Ablation(
        2,
        "a router that lost its name is not waited for",
        routers.routers_that_lost_their_name_do_not_count,
        router_sessions.test_rule_2_freezes_wait_for_a_process_that_lost_its_name_until_its_lease_ends,
    ),
    Ablation(
        3,
        "a router's renewal does not look whether it is still registered",
        routers.renewals_do_not_look_for_the_registration,
        router_sessions.test_rule_3_a_registration_that_somebody_deleted_is_not_renewed_although_its_lease_lives,
    ),
    Ablation(
        5,
        "a router's ack is not tied to the handoff's id",
        routers.acks_count_for_any_handoff,
        freezes.test_rule_5_an_ack_counts_for_the_handoff_that_it_names_and_for_no_later_one,
    ),
    Ablation(
        8,
        "a router whose record can't be read is not waited for",
        routers.unreadable_routers_do_not_count,
        freezes.test_rule_8_a_router_whose_record_cannot_be_read_is_waited_for,
    ),
    Ablation(
        11,
        "a router that left is waited for",
        routers.departures_are_not_noticed,
        freezes.test_rule_11_a_router_that_deregisters_is_not_waited_for,
    ),
    Ablation(
        12,
        "a frozen handoff that others deleted is left alone",
        routers.deleted_freezes_are_left_alone,
        other_ends.test_rule_12_a_frozen_handoff_that_others_delete_is_repaired_by_a_higher_epoch,
        {"mode": HandoffMode.OVERLAP},
    ),
    Ablation(
        3,
        "a router does not look at the clock",
        routers.routers_do_not_look_at_the_clock,
        router_library.test_rule_3_a_router_that_was_stopped_sends_nothing_before_it_has_another_table,
    ),
    Ablation(
        7,
        "a newcomer router does not stash",
        routers.newcomers_do_not_stash,
        router_library.test_rule_7_a_router_that_joins_during_a_freeze_holds_its_requests_back,
    ),
    Ablation(
        12,
        "a router takes a deleted handoff for a cancelled one",
        routers.deleted_handoffs_thaw,
        router_library.test_rule_12_that_a_handoff_is_deleted_thaws_nothing,
    ),
    Ablation(
        14,
        "a router's stash has no limits",
        routers.stashes_have_no_limits,
        router_library.test_rule_14_a_stash_does_not_grow_beyond_its_limits,
    ),
)
