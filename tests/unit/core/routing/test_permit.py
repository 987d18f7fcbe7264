"""When a router may route: by the clock, its renewals, and the tables that it got since it was last in doubt."""

from __future__ import annotations

from assigner.core.routing.permit import RoutingPermit

TTL = 30.0


def permitted(now: float = 0.0) -> RoutingPermit:
    permit = RoutingPermit()
    permit.registering(now)
    permit.completed()
    permit.renewed(now, TTL, now)
    return permit


def test_a_router_needs_a_whole_table_and_a_renewal() -> None:
    permit = RoutingPermit()
    assert not permit.holds(0.0)
    permit.registering(0.0)
    permit.renewed(0.0, TTL, 0.1)
    assert not permit.holds(0.1)
    permit.completed()
    assert permit.holds(0.1)
    without_renewal = RoutingPermit()
    without_renewal.registering(0.0)
    without_renewal.completed()
    assert not without_renewal.holds(0.1)


def test_a_renewal_counts_from_when_it_was_sent_and_for_two_thirds_of_the_ttl() -> None:
    permit = permitted()
    permit.renewed(5.0, TTL, 9.0)
    assert permit.holds(24.9)
    assert not permit.holds(25.0)


def test_after_a_lapse_a_renewal_alone_is_not_enough() -> None:
    permit = permitted()
    permit.renewed(21.0, TTL, 21.0)
    assert permit.needs_table
    assert not permit.holds(21.0)


def test_after_a_lapse_the_table_of_an_earlier_registration_does_not_count() -> None:
    permit = permitted()
    permit.registering(19.0)
    permit.renewed(21.0, TTL, 21.0)
    permit.completed()
    assert not permit.holds(21.0)
    permit.registering(22.0)
    assert not permit.holds(22.0)
    permit.completed()
    assert permit.holds(22.0)


def test_a_registration_that_began_as_the_time_was_over_brings_a_table_that_counts() -> None:
    permit = permitted()
    permit.registering(20.0)
    permit.renewed(20.0, TTL, 20.5)
    permit.completed()
    assert permit.holds(20.5)


def test_after_a_lapse_a_table_alone_is_not_enough() -> None:
    permit = permitted()
    permit.registering(21.0)
    permit.completed()
    assert not permit.holds(21.0)
    permit.renewed(21.5, TTL, 21.6)
    assert permit.holds(21.6)


def test_a_renewal_that_was_confirmed_too_late_is_a_lapse_although_its_time_is_not_over() -> None:
    permit = permitted()
    permit.renewed(15.0, TTL, 21.0)
    assert permit.deadline == 35.0
    assert not permit.holds(21.0)
    assert permit.lapses == 1


def test_a_renewal_that_is_confirmed_as_the_time_is_over_is_one_too_late() -> None:
    permit = permitted()
    permit.renewed(15.0, TTL, 20.0)
    assert permit.lapses == 1
    assert not permit.holds(20.0)


def test_a_lost_session_ends_the_permit_until_the_next_registration_has_a_table() -> None:
    permit = permitted()
    permit.end(1.0)
    assert not permit.holds(1.0)
    permit.renewed(2.0, TTL, 2.0)
    assert not permit.holds(2.0)
    permit.registering(3.0)
    permit.completed()
    assert permit.holds(3.0)


def test_after_a_lost_session_no_renewal_of_before_counts() -> None:
    permit = permitted()
    permit.end(1.0)
    permit.registering(2.0)
    permit.completed()
    assert not permit.holds(2.0)
    permit.renewed(2.0, TTL, 2.1)
    assert permit.holds(2.1)


def test_a_reconnect_in_time_changes_nothing() -> None:
    permit = permitted()
    permit.registering(10.0)
    assert permit.holds(11.0)
    permit.renewed(12.0, TTL, 12.0)
    permit.completed()
    assert permit.holds(31.9)
    assert permit.lapses == 0
