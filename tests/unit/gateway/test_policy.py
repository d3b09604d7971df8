"""Policy files: what they allow, and what can't be understood."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from liftenvelope.errors import UsageError
from liftenvelope.gateway._authorization import Authorization, Policy, client_name
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
    assert not policy.allows("client1", "bar", "FetchMetadata")


def test_an_empty_file_allows_nothing() -> None:
    assert len(Policy("")) == 0
    assert not Policy("").allows("", "", "")


@pytest.mark.parametrize(
    "line", ["g, a, b, c", "p, a, b", "p, a, b, c, deny", "p, , b, c", "nonsense", "p", "p;a;b;c"]
)
def test_lines_that_are_not_understood(line: str) -> None:
    with pytest.raises(UsageError, match=r"line 2 must be 'p, client, stream, method', got "):
        Policy(f"p, a, b, c\n{line}\n")


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
