"""The limits of a gateway: defaults, bounds, and what the documentation says of them."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.gateway import Gateway, Limits
from liftenvelope.gateway._protocol.requests import read_request
from liftenvelope.gateway._protocol.subjects import AckInboxes
from liftenvelope.rpc.status import RpcError, StatusCode

ROOT = Path(__file__).parents[3]
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "s": 1}


def test_limits_are_frozen_and_keyword_only() -> None:
    limits: Any = Limits(max_connections=5)
    with pytest.raises(FrozenInstanceError):
        limits.max_connections = 6
    with pytest.raises(TypeError):
        Limits(5)  # type: ignore[call-arg]


BOUNDS = [
    (one.name, one.metadata["least"], one.metadata["most"])
    for one in fields(Limits)
    if isinstance(one.default, int)
]


@pytest.mark.parametrize(("name", "least", "most"), BOUNDS)
def test_integer_is_checked_at_both_bounds(name: str, least: int, most: int | None) -> None:
    assert getattr(Limits(**{name: least}), name) == least  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"^{name} must be at least {least}, got {least - 1}$"):
        Limits(**{name: least - 1})  # type: ignore[arg-type]
    if most is not None:
        assert getattr(Limits(**{name: most}), name) == most  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=f"^{name} must be at most {most}, got {most + 1}$"):
            Limits(**{name: most + 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["5", 5.0, True, None])
def test_limit_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(UsageTypeError, match="max_connections must be a"):
        Limits(max_connections=value)


@pytest.mark.parametrize("name", [one.name for one in fields(Limits) if isinstance(one.default, float)])
@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_time_must_be_positive_and_finite(name: str, value: float) -> None:
    assert getattr(Limits(**{name: 1}), name) == 1  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"^{name} must be a positive number of seconds, got {value!r}$"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_subscriptions_of_a_client_reach_their_limit_before_its_calls_and_all_calls() -> None:
    limits = Limits()
    assert limits.max_subscriptions_per_client < limits.max_calls_per_client < limits.max_calls


def test_ack_inboxes_become_a_tuple() -> None:
    given: Any = ["_INBOX.", "acks."]  # as in a JSON file
    assert Limits(allowed_ack_inboxes=given).allowed_ack_inboxes == ("_INBOX.", "acks.")
    assert Limits(allowed_ack_inboxes=()).allowed_ack_inboxes == ()


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        ("_INBOX.", UsageTypeError, "must be a tuple of str, got '_INBOX.'"),
        ((b"_INBOX.",), UsageTypeError, "must be a tuple of str"),
        (None, UsageTypeError, "must be a tuple of str, got None"),
        (("_INBOX.", ""), UsageError, 'use ">" to allow any'),
    ],
)
def test_ack_inboxes_that_make_no_sense(value: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Limits(allowed_ack_inboxes=value)


def test_gateway_takes_limits_and_the_older_argument() -> None:
    assert Gateway(Client()).limits == Limits()
    limits = Limits(max_connections=5)
    assert Gateway(Client(), limits=limits).limits is limits
    both = Gateway(Client(), limits=limits, max_message_bytes=7).limits
    assert (both.max_connections, both.max_message_bytes) == (5, 7)
    with pytest.raises(UsageError, match="max_message_bytes must be at least 1, got 0"):
        Gateway(Client(), max_message_bytes=0)


def documented() -> dict[str, str]:
    """Names and defaults in the table of the page."""
    page = (ROOT / "docs" / "limits.md").read_text("utf-8")
    section = page.partition("\n## Limits of the gateway\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))


def test_page_has_a_row_for_every_limit() -> None:
    assert sorted(documented()) == sorted(one.name for one in fields(Limits))


@pytest.mark.parametrize("name", [one.name for one in fields(Limits)])
def test_page_has_the_default(name: str) -> None:
    default, text = getattr(Limits(), name), documented()[name]
    if isinstance(default, tuple):
        assert text == ", ".join(f"`{prefix}`" for prefix in default)
        return
    number, _, unit = text.partition(" ")
    assert int(number.replace(",", "")) * UNITS[unit] == default
    assert (unit == "s") is isinstance(default, float)


#: Where each fixed limit of the page is in the code.
FIXED = {
    "subject of a stream": ("gateway._protocol.subjects", "_LONGEST"),
    "ack inbox or reply subject": ("_native.acks", "_LONGEST_INBOX"),
    "pings and settings of a connection before an answer is sent": ("rpc._connection", "_MOST_ANSWERS"),
    "cancelled calls of a connection whose late data is dropped": ("rpc._connection", "_MUTED"),
    "file descriptors left to the rest of the process": ("rpc.places", "_RESERVED_DESCRIPTORS"),
    "unsent answers of a call before its handler waits": ("rpc.server", "_ServerLink.send_buffer"),
    "members of a group": ("group.state", "MAX_MEMBERS"),
    "partitions of a group": ("group.state", "MAX_PARTITIONS"),
    "requests to a coordinator in progress": ("group._serving", "_MOST_AT_ONCE"),
    "calls that wait for one group": ("group._controller.host", "_MOST_WAITING"),
    "questions of other gateways in progress": ("gateway._cluster.agreement", "_MOST"),
    "events of the activity stream that wait for JetStream": ("gateway._cluster.activity", "_MOST_WAITING"),
    "partitions whose storage faults are known": ("gateway._partitions.storage_faults", "_MOST"),
    "cursors known to be stored": ("gateway._readers.cursors", "_MOST_KNOWN"),
    "lines of a policy": ("gateway._clients.policy", "_MOST_LINES"),
    "roles of a client in a policy": ("gateway._clients.policy", "_MOST_ROLES"),
    "roles of roles in a policy": ("gateway._clients.policy", "_DEEPEST"),
    "size of a configuration file": ("gateway.toml_file", "_LARGEST"),
}


def test_page_has_the_fixed_limits_of_the_code() -> None:
    page = (ROOT / "docs" / "limits.md").read_text("utf-8")
    section = page.partition("\n## Fixed limits\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| ([\d,]+)(?: (\w+))? \|", section, re.MULTILINE)
    units = {**UNITS, "bytes": 1}
    shown = {what: int(number.replace(",", "")) * units[unit] for what, number, unit in rows}
    assert shown == {
        what: attrgetter(name)(import_module(f"liftenvelope.{module}"))
        for what, (module, name) in FIXED.items()
    }


def test_ack_inboxes_that_requests_and_envelopes_may_name() -> None:
    inboxes = AckInboxes(["acks."], own=["_GATEWAY."])
    assert inboxes.allows("acks.a")
    assert not inboxes.allows("_GATEWAY.a")
    assert inboxes.allows_on_nats("_GATEWAY.a")
    inboxes.check("")
    with pytest.raises(RpcError, match=r"begins with one of 'acks\.'") as caught:
        inboxes.check("x" * 5_000)
    assert caught.value.code == StatusCode.INVALID_ARGUMENT
    assert len(caught.value.description) < 300


@pytest.mark.parametrize(
    ("own", "allowed", "is_allowed"),
    [
        ("_INBOX.", "_INBOX.", True),
        ("_INBOX.", ">", True),
        ("_INBOX.gateway.", "_INBOX.", False),
        ("_INBOX.gateway.", "_INBOX.gateway.", True),
        ("gateway.", ">", False),
        ("gateway.", "gateway.", True),
        ("gateway.", "gateway.clients.", False),
    ],
)
def test_own_inboxes_are_for_requests_only_where_clients_have_theirs(
    own: str, allowed: str, is_allowed: bool
) -> None:
    inboxes = AckInboxes([allowed], own=[own])
    assert inboxes.allows(f"{own}a") is is_allowed
    if not is_allowed:
        with pytest.raises(RpcError, match="ackInbox must "):
            inboxes.check(f"{own}a")
    assert inboxes.allows_on_nats(f"{own}a")


def test_refused_inboxes_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    inboxes = AckInboxes(["acks."])
    for now in (5.0, 6.0, 64.9, 65.0):
        inboxes.warn("orders", 0, b"a\r\nb", now)
    assert [record.message for record in caplog.records] == [
        "orders, partition 0: refused the ack inbox 'a\\r\\nb': it must begin with one of 'acks.' "
        "(limit allowed_ack_inboxes)"
    ] * 2


def test_names_and_lists_of_requests_are_bounded_by_the_limits() -> None:
    from liftenvelope._pb import api_pb2

    limits = Limits(max_name_chars=3, max_list_length=2)
    sound = api_pb2.FetchMetadataRequest(streams=["abc", "d"])
    assert read_request(api_pb2.FetchMetadataRequest, sound.SerializeToString(), limits) == sound
    for streams in (["abcd"], ["a", "b", "c"]):
        raw = api_pb2.FetchMetadataRequest(streams=streams).SerializeToString()
        with pytest.raises(RpcError, match="must have at most") as caught:
            read_request(api_pb2.FetchMetadataRequest, raw, limits)
        assert caught.value.code == StatusCode.INVALID_ARGUMENT


def test_names_in_nested_messages_are_bounded_and_unknown_fields_dropped() -> None:
    from liftenvelope._pb import api_pb2

    limits = Limits(max_name_chars=3)
    sound = api_pb2.SubscribeRequest(stream="abc", consumer=api_pb2.Consumer(groupId="abc", consumerId="d"))
    unknown = b"\xf2\x07\x04junk"  # field 126
    found = read_request(api_pb2.SubscribeRequest, sound.SerializeToString() + unknown, limits)
    assert found.SerializeToString() == sound.SerializeToString()
    for field in ("groupId", "consumerId"):
        consumer: Any = {field: "abcd"}
        raw = api_pb2.SubscribeRequest(consumer=consumer).SerializeToString()
        with pytest.raises(RpcError, match=f"{field} must have at most 3 characters, got 4"):
            read_request(api_pb2.SubscribeRequest, raw, limits)
    assert not read_request(api_pb2.SubscribeRequest, b"", limits).HasField("consumer")
