"""The allowance of false signatures that each address has."""

from __future__ import annotations

import pytest

from assigner.auth.failed_verifications import FailedVerifications

NOW = 1_000.0


def used_up(address: str = "192.0.2.1", now: float = NOW) -> FailedVerifications:
    failures = FailedVerifications(at_once=5, per_second=2)
    for _ in range(5):
        assert failures.wait(address, now) == 0
        failures.failed(address, now)
    return failures


def test_an_allowance_is_used_up_and_refills() -> None:
    failures = used_up()
    assert failures.wait("192.0.2.1", NOW) == pytest.approx(0.5)
    assert failures.wait("192.0.2.1", NOW + 0.4) == pytest.approx(0.1)
    assert failures.wait("192.0.2.1", NOW + 0.5) == 0
    failures.failed("192.0.2.1", NOW + 0.5)
    assert failures.wait("192.0.2.1", NOW + 0.5) == pytest.approx(0.5)


def test_over_time_an_address_gets_its_rate_and_no_more() -> None:
    failures, tried, now = FailedVerifications(at_once=5, per_second=2), 0, NOW
    for step in range(1_000):
        now = NOW + step / 10
        if not failures.wait("192.0.2.1", now):
            failures.failed("192.0.2.1", now)
            tried += 1
    assert tried == pytest.approx(5 + 100 * 2, abs=1)


def test_each_address_has_its_own() -> None:
    assert used_up().wait("192.0.2.2", NOW) == 0


@pytest.mark.parametrize(
    ("address", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1"),
        ("2001:db8::1", "2001:db8:0:0:1::"),
        ("fe80::1%eth0", "fe80::2%eth1"),
        ("192.0.2.1", "::ffff:192.0.2.1"),
    ],
)
def test_addresses_that_one_peer_can_choose_among_share_one(address: str, same: str) -> None:
    assert used_up(address).wait(same, NOW) > 0


@pytest.mark.parametrize("other", ["2001:db8:0:1::1", "2001:db9::1", "", "no:address", "unix"])
def test_others_do_not(other: str) -> None:
    assert used_up("2001:db8::1").wait(other, NOW) == 0


@pytest.mark.parametrize("address", ["", "no:address", "unix"])
def test_what_is_no_address_has_one_too(address: str) -> None:
    assert used_up(address).wait(address, NOW) > 0


def test_the_addresses_that_are_remembered_are_bounded_and_the_latest_stay() -> None:
    failures = FailedVerifications(at_once=1, most_addresses=100)
    for number in range(1_000):
        failures.failed(f"address-{number}", NOW)
    assert len(failures) == 100
    assert failures.wait("address-999", NOW) > 0
    assert failures.wait("address-0", NOW) == 0


def test_a_clock_that_is_set_back_locks_nobody_out_for_long() -> None:
    failures = used_up()
    assert failures.wait("192.0.2.1", NOW - 1_000_000) <= 2.5
    failures.failed("192.0.2.1", NOW - 1_000_000)
    assert failures.wait("192.0.2.1", NOW - 1_000_000 + 3) == 0
