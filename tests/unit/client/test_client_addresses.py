"""Which texts are addresses of the service or of owners: what can be looked up and connected to, and nothing else."""

from __future__ import annotations

import pytest

from assigner.client.channel import Address, parse_address, parse_addresses
from assigner.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a", Address("a", 50051)),
        ("a:1", Address("a", 1)),
        (" 10.0.0.1:65535 ", Address("10.0.0.1", 65535)),
        ("pod_1.pods.:80", Address("pod_1.pods.", 80)),
        ("[::1]", Address("::1", 50051)),
        ("[fe80::1%eth0]:80", Address("fe80::1%eth0", 80)),
        ("b\u00fccher.example:80", Address("b\u00fccher.example", 80)),
    ],
)
def test_a_host_and_a_port_are_an_address(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":1", "a:", "a:x", "a:0", "a:65536", "a:-1", "a:1:2", "a:" + 5_000 * "9", "a:\u0661"),
        *("[::1", "[a]:1", "[::1]:x", "[]:1"),
        *("a..b:1", ".a:1", "x" * 64 + ":1", "a b:1", "a\tb:1", "a\0:1", "\ud800:1"),
        *("http://a:1", "u@a:1", "a:1/x", "a/x:1", "a?x:1", "a#x:1", "a%20b:1"),
    ],
)
def test_anything_else_is_refused_as_such(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not host:port; write for example"):
        parse_address(text, default_port=None)


def test_whoever_wants_a_port_is_not_given_another_ones() -> None:
    with pytest.raises(InvalidInput, match="'a' is not host:port"):
        parse_address("a", default_port=None)


def test_addresses_are_a_list_or_separated_by_commas() -> None:
    assert parse_addresses("a:1, b:2") == parse_addresses(["a:1", "b:2"]) == [Address("a", 1), Address("b", 2)]
    with pytest.raises(InvalidInput, match="addresses is empty"):
        parse_addresses([])
