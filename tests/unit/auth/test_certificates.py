"""Principals of client certificates, by the rules of a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from assigner.auth.certificates import MOST_RULES, CertificateRules, read_rules
from assigner.auth.identity import Principal, Role, Source
from assigner.auth.rules import Denial, DenialKind
from assigner.errors import InvalidInput
from tests.unit.project.test_docs import ROOT, blocks

WORKER = "spiffe://corp/ns/billing/sa/worker"
ALLOW = f"""
[[allow]]
who = "{WORKER}"
org = "acme"
role = "consumer"
groups = ["billing", "billing-*"]
names = "worker-*"
"""


def rules(tmp_path: Path, text: str) -> CertificateRules:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return read_rules(str(path))


def certificate(*names: tuple[str, str], **more: Any) -> dict[str, Any]:
    """As `getpeercert()` gives it."""
    common_name = ((("commonName", WORKER),),)
    return {"subject": common_name, "notAfter": "Jan  5 09:34:43 2030 GMT", "subjectAltName": names, **more}


def uri(name: str = WORKER) -> dict[str, Any]:
    return certificate(("URI", name))


def dns(*names: str) -> dict[str, Any]:
    return certificate(*(("DNS", name) for name in names))


def refusal(found: Principal | Denial | None) -> str:
    assert isinstance(found, Denial), found
    assert (found.kind, found.claim) == (DenialKind.UNAUTHENTICATED, "certificate")
    return found.message


def test_a_rule_makes_a_principal_that_ends_with_its_certificate(tmp_path: Path) -> None:
    assert rules(tmp_path, ALLOW).decide(uri()) == Principal(
        name=WORKER,
        organization="acme",
        groups=("billing", "billing-*"),
        names=("worker-*",),
        roles=frozenset({Role.CONSUMER}),
        expires=1_893_836_083.0,
        source=Source.CERTIFICATE,
    )


def test_a_pattern_stands_for_many_and_each_keeps_its_name(tmp_path: Path) -> None:
    of = rules(tmp_path, '[[allow]]\nwho = "spiffe://corp/*/reader"\nrole = ["reader", "operator"]\ngroups = "*"')
    for name in ("spiffe://corp/a/reader", "spiffe://corp/b/reader"):
        found = of.decide(uri(name))
        assert isinstance(found, Principal)
        assert found.name == name
        assert found.roles == {Role.READER, Role.OPERATOR}


def test_a_common_name_is_nobody(tmp_path: Path) -> None:
    assert "neither a URI nor a DNS name" in refusal(rules(tmp_path, ALLOW).decide(certificate()))


def test_a_uri_counts_before_dns_names(tmp_path: Path) -> None:
    of = rules(tmp_path, ALLOW + '[[allow]]\nwho = "pod.corp"\nrole = "admin"\ngroups = "*"')
    both = certificate(("DNS", "pod.corp"), ("URI", WORKER))
    found = of.decide(both)
    assert isinstance(found, Principal)
    assert found.roles == {Role.CONSUMER}
    other = certificate(("DNS", "pod.corp"), ("URI", "spiffe://corp/other"))
    assert "no [[allow]] names certificate 'spiffe://corp/other'" in refusal(of.decide(other))


def test_of_several_dns_names_the_one_with_a_rule_counts_whatever_its_case(tmp_path: Path) -> None:
    of = rules(tmp_path, '[[allow]]\nwho = "Worker.corp"\nrole = "reader"\ngroups = "*"')
    found = of.decide(dns("worker", "WORKER.corp"))
    assert isinstance(found, Principal)
    assert found.name == "worker.corp"


def test_a_uri_keeps_its_case(tmp_path: Path) -> None:
    assert "no [[allow]]" in refusal(rules(tmp_path, ALLOW).decide(uri(WORKER.upper())))


def test_two_uris_say_nothing(tmp_path: Path) -> None:
    two = certificate(("URI", WORKER), ("URI", "spiffe://corp/boss"))
    assert "2 URI names" in refusal(rules(tmp_path, ALLOW).decide(two))


def test_other_kinds_of_names_are_nobody(tmp_path: Path) -> None:
    others = certificate(("email", WORKER), ("IP Address", "192.0.2.1"))
    assert "neither" in refusal(rules(tmp_path, ALLOW).decide(others))


def test_the_first_rule_that_matches_counts_alone(tmp_path: Path) -> None:
    of = rules(tmp_path, ALLOW + '[[allow]]\nwho = "*"\nrole = "admin"\ngroups = "*"')
    found = of.decide(uri())
    assert isinstance(found, Principal)
    assert found.roles == {Role.CONSUMER}


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_deny_wins_wherever_it_stands(tmp_path: Path, order: str) -> None:
    deny = f'[[deny]]\nwho = "{WORKER}"\n'
    of = rules(tmp_path, deny + ALLOW if order == "before" else ALLOW + deny)
    assert "[[deny]]" in refusal(of.decide(uri()))
    assert "[[deny]]" in refusal(of.denies(uri()))
    assert of.denies(uri("spiffe://corp/other")) is None


def test_a_deny_counts_for_any_name_of_a_certificate(tmp_path: Path) -> None:
    of = rules(tmp_path, ALLOW + '[[deny]]\nwho = ["*.leaked.corp"]')
    shown = certificate(("URI", WORKER), ("DNS", "a.Leaked.corp"))
    assert "[[deny]]" in refusal(of.decide(shown))
    # Also where a token comes with it.
    assert "[[deny]]" in refusal(of.denies(shown))
    assert of.denies(certificate(("URI", WORKER), ("DNS", "a.corp"))) is None


@pytest.mark.parametrize("name", ["spiffe://corp/" + "x" * 300, "spiffe://corp/a\nb"])
def test_a_name_that_no_principal_can_have_is_refused(tmp_path: Path, name: str) -> None:
    of = rules(tmp_path, '[[allow]]\nwho = "spiffe://*"\nrole = "reader"\ngroups = "*"')
    assert refusal(of.decide(uri(name)))


def test_without_rules_nobody_is_known(tmp_path: Path) -> None:
    assert "no [[allow]]" in refusal(rules(tmp_path, "").decide(uri()))


# --- the file ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[allow]", "wrong"),
        ("[[alow]]\nwho = 'a'", "alow"),
        ("[[allow]]\nwho = 'a'\ngroups = '*'", "role"),
        ("[[allow]]\nrole = 'reader'\ngroups = '*'", "who"),
        ("[[allow]]\nwho = 'a'\nrole = 'reader'", "groups"),
        ("[[allow]]\nwho = 'a'\nrole = 'reader'\ngroups = '*'\nname = 'x'", "name"),
        ("[[allow]]\nwho = 'a'\nrole = 'root'\ngroups = '*'", "'root' is unknown"),
        ("[[allow]]\nwho = []\nrole = 'reader'\ngroups = '*'", "add `who`"),
        ("[[allow]]\nwho = ''\nrole = 'reader'\ngroups = '*'", "empty"),
        ("[[allow]]\nwho = 1\nrole = 'reader'\ngroups = '*'", "who"),
        ("[[allow]]\nwho = 'a'\nrole = 'reader'\ngroups = '*'\norg = 'a/b'", "slash"),
        ("[[deny]]\nwho = 'a'\nrole = 'reader'", "role"),
        ("[[deny]]\nwho = 'a'\n" * (MOST_RULES + 1), f"more than {MOST_RULES}"),
        ("# " + "x" * 1_100_000, "longer than"),
    ],
    ids=lambda text: text[:40],
)
def test_a_file_with_a_wrong_rule_is_refused_with_its_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=r"rules\.toml") as refused:
        rules(tmp_path, text)
    assert said in str(refused.value)


def test_a_pipe_in_place_of_the_file_is_refused_and_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rules.toml")
    with pytest.raises(InvalidInput, match="a folder, a pipe or a device"):
        read_rules(str(tmp_path / "rules.toml"))


def test_a_missing_file_and_one_that_is_not_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        read_rules(str(tmp_path / "rules.toml"))
    with pytest.raises(InvalidInput, match="no such file"):
        read_rules("a\0b")
    (tmp_path / "rules.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="wrong"):
        read_rules(str(tmp_path / "rules.toml"))


def test_the_rules_on_the_page_about_tokens_do_what_it_says(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs" / "how-to" / "issue-tokens.md", "toml")
    of = rules(tmp_path, text)
    found = of.decide(uri("spiffe://corp/ns/billing/sa/worker"))
    assert isinstance(found, Principal)
    assert (found.identity, found.names) == ("acme/spiffe://corp/ns/billing/sa/worker", ("worker-*",))
    assert "[[deny]]" in refusal(of.decide(uri("spiffe://corp/ns/billing/sa/leaked")))
