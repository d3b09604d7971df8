"""Policy files: what they allow, and what can't be understood."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.errors import UsageError
from liftenvelope.gateway._clients.authorization import Authorization, client_name
from liftenvelope.gateway._clients.policy import Policy
from liftenvelope.rpc.status import RpcError, StatusCode

TEXT = """
# Who may do what
p, client1, *, FetchMetadata
p,client1,foo,Subscribe
  p ,  client1 , "a, b" , Publish
"""


def test_what_is_allowed_is_compared_letter_by_letter() -> None:
    policy = Policy(TEXT)
    assert len(policy) == 3
    assert policy.allows("client1", "*", "FetchMetadata")
    assert policy.allows("client1", "foo", "Subscribe")
    assert policy.allows("client1", "a, b", "Publish")
    assert not policy.allows("client1", "foo", "Publish")
    assert not policy.allows("client2", "foo", "Subscribe")
    assert not policy.allows("client1", "Foo", "Subscribe")


def test_an_empty_file_allows_nothing() -> None:
    assert len(Policy("")) == 0
    assert not Policy("").allows("", "", "")


@pytest.mark.parametrize(
    "line",
    ["g, a, b, c", "g, a", "g, a, ", "p, a, b", "p, a, b, c, deny", "p, , b, c", "nonsense", "p", "p;a;b;c"],
)
def test_lines_that_are_not_understood(line: str) -> None:
    with pytest.raises(
        UsageError, match=r"line 2 must be 'p, client, stream, method' or 'g, client, role', got "
    ):
        Policy(f"p, a, b, c\n{line}\n")


def test_wildcard_is_the_end_of_a_resource() -> None:
    policy = Policy("p, a, orders*, Publish\np, b, *, Publish\np, a, x.*.>, RecordSubject")
    assert [policy.allows("a", name, "Publish") for name in ("orders", "orders-eu", "order", "x")] == [
        True,
        True,
        False,
        False,
    ]
    assert policy.allows("b", "anything", "Publish")
    assert not policy.allows("b", "anything", "Subscribe")
    assert not policy.allows("a", "x.*.>", "Publish")
    for resource in ("**", "a*b", "*a"):
        with pytest.raises(UsageError, match=r"^line 2: \* must be the last character of a resource, got "):
            Policy(f"p, a, b, c\np, a, {resource}, Publish")


def test_roles_may_be_nested_and_contain_each_other() -> None:
    policy = Policy("g, a, r\ng, r, s\ng, s, r\np, s, x, Publish\np, s, x.>, RecordSubject\ng, b, b")
    assert policy.allows("a", "x", "Publish")
    assert policy.allows("r", "x", "Publish")
    assert policy.allows_any("a", "Publish")
    assert policy.may_record("a", "x.1")
    assert not policy.allows("b", "x", "Publish")
    assert len(policy) == 2


def test_policies_that_are_too_large() -> None:
    chain = [f"g, {number}, {number + 1}" for number in range(11)]
    Policy("\n".join(chain[:10]))
    with pytest.raises(
        UsageError, match=r"^line 11: '0' must have at most 1,000 roles, nested at most 10 deep"
    ):
        Policy("\n".join(chain))
    many = [f"g, a, {number}" for number in range(1_001)]
    Policy("\n".join(many[1:]))
    with pytest.raises(UsageError, match="'a' must have at most 1,000 roles"):
        Policy("\n".join(many))
    with pytest.raises(UsageError, match=r"^line 100,001 must not be there"):
        Policy("p, a, b, c\n" * 100_001)


names = st.sampled_from(["a", "b", "c", "d"])
resources = st.text("xy", min_size=1, max_size=3)
patterns = st.one_of(resources, resources.map("{}*".format), st.just("*"))


@given(
    permissions=st.lists(st.tuples(names, patterns, st.sampled_from(["Publish", "Subscribe"])), max_size=6),
    roles=st.lists(st.tuples(names, names), max_size=8),
    client=names,
    resource=resources,
)
def test_policy_allows_what_a_search_of_its_lines_finds(
    permissions: list[tuple[str, str, str]], roles: list[tuple[str, str]], client: str, resource: str
) -> None:
    lines = [f"p, {', '.join(one)}" for one in permissions] + [f"g, {', '.join(one)}" for one in roles]
    have = {client}
    for _ in range(4):
        have |= {role for name, role in roles if name in have}
    for method in ("Publish", "Subscribe"):
        found = any(
            name in have and what == method and fnmatchcase(resource, pattern)
            for name, pattern, what in permissions
        )
        assert Policy("\n".join(lines)).allows(client, resource, method) is found


def test_who_has_no_name_may_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.csv"
    path.write_text(TEXT)
    authorization = Authorization(path)
    authorization.check("client1", "foo", "Subscribe")
    for client, resource in (("", "foo"), ("client2", "foo"), ("client1", "bar")):
        with pytest.raises(RpcError) as info:
            authorization.check(client, resource, "Subscribe")
        assert info.value.code == StatusCode.PERMISSION_DENIED


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.csv"):
        Authorization(tmp_path / "missing.csv")
    path = tmp_path / "policy.csv"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"policy\.csv"):
        Authorization(path)
    path.write_text("p, a\n")
    with pytest.raises(UsageError, match=r"policy\.csv.*line 1"):
        Authorization(os.fspath(path))


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, ""),
        ({}, ""),
        ({"subject": ()}, ""),
        ({"subject": ((("organizationName", "x"),),)}, ""),
        ({"subject": ((("commonName", "a"),), (("commonName", "b"),))}, "b"),
    ],
)
def test_names_in_certificates(certificate: dict[str, object] | None, name: str) -> None:
    assert client_name(certificate) == name


def test_recorded_subjects_are_covered_by_what_is_granted() -> None:
    policy = Policy("p, app, orders.>, RecordSubject\np, app, *.eu, RecordSubject\np, b, x, RecordSubject\n")
    allowed = ("orders.a", "orders.*", "orders.>", "orders.*.b", "any.eu", "*.eu")
    refused = ("orders", ">", "*", "*.>", "*.*", "any.us", "any.eu.b", "x", "")
    assert {subject: policy.may_record("app", subject) for subject in (*allowed, *refused)} == {
        **dict.fromkeys(allowed, True),
        **dict.fromkeys(refused, False),
    }
    assert not policy.may_record("nobody", "orders.a")
    assert not policy.allows("app", "orders.a", "RecordSubject")


@pytest.mark.parametrize("subject", ["orders..a", "a b", ">.a", "."])
def test_malformed_subjects_are_refused_with_their_line(subject: str) -> None:
    with pytest.raises(UsageError, match=r"line 2: .*subject"):
        Policy(f"p, a, b, c\np, app, {subject}, RecordSubject\n")
