"""The acks of stored messages: both twins write the same, whatever JetStream delivers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._native import _fastacks
from liftenvelope.envelope import Ack, Message, marshal_ack, marshal_message, new_message, unmarshal_ack
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.types import AckPolicy
from tests.twin import readable
from tests.twin.strategies import ANYTHING

TWINS = pytest.mark.parametrize("acks", [readable.acks, _fastacks], ids=["python", "cython"])
NOW = 1_800_000_000_123_456_789
STORED = 1_700_000_000_987_654_321


def delivered(payload: bytes, sequence: int = 1, delivery: int | None = None, subject: str = "s") -> Any:
    delivery = sequence if delivery is None else delivery
    reply = f"$JS.ACK.S.C.1.{sequence}.{delivery}.{STORED}.0".encode()
    return (subject, reply, None, payload)


def cut(frames: bytes) -> list[tuple[bytes, bytes]]:
    """PUB commands: subject and payload of each."""
    found, at = [], 0
    while at < len(frames):
        line, _, _ = frames[at:].partition(b"\r\n")
        verb, subject, size = line.split(b" ")
        assert verb == b"PUB"
        begin = at + len(line) + 2
        at = begin + int(size) + 2
        assert frames[at - 2 : at] == b"\r\n"
        found.append((subject, frames[begin : at - 2]))
    return found


def asking(inbox: str = "in.box", correlation_id: str = "id", **options: Any) -> bytes:
    return new_message(b"value", ack_inbox=inbox, correlation_id=correlation_id, **options)


@TWINS
@pytest.mark.parametrize("policy", [AckPolicy.LEADER, AckPolicy.ALL])
def test_what_stands_in_an_ack(acks: Any, policy: AckPolicy) -> None:
    acknowledger = acks.Acknowledger("strüm", "s.1", 1 << 20)
    message = delivered(asking(ack_policy=policy), 8, 1, "s.ü")
    frames, count, size, others = acknowledger.take([message], NOW)
    ((inbox, envelope),) = cut(frames)
    assert inbox == b"in.box"
    assert unmarshal_ack(envelope) == Ack(
        stream="strüm",
        partition_subject="s.1",
        msg_subject="s.ü",
        offset=7,
        ack_inbox="in.box",
        correlation_id="id",
        ack_policy=policy,
        reception_timestamp_ns=STORED,
        commit_timestamp_ns=NOW,
    )
    assert (count, size, others) == (1, len(envelope), [])
    assert (acknowledger.reply, acknowledger.stream_sequence, acknowledger.delivery) == (message[1], 8, 1)
    assert not acknowledger.gap


@TWINS
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"plain",
        new_message(b"no inbox"),
        asking(ack_policy=AckPolicy.NONE),
        marshal_message(Message(b"v", ack_inbox="in.box", ack_policy=7)),
        marshal_ack(Ack(ack_inbox="in.box")),
        asking()[:-3],
        b"\xb9\x0e\x43\xb4\x00\xff\x00\x00",
        bytearray(asking(crc=True)).replace(b"value", b"vague"),
    ],
)
def test_what_is_stored_without_an_ack(acks: Any, payload: bytes) -> None:
    acknowledger = acks.Acknowledger("s", "s", 1 << 20)
    assert acknowledger.take([delivered(bytes(payload))], NOW) == (b"", 0, 0, [])
    assert acknowledger.stream_sequence == 1


@TWINS
@pytest.mark.parametrize(
    "inbox",
    [
        *(
            "a b",
            "a\r\nPUB b 0\r\n",
            "a\tb",
            "a\x00",
            "a\x7f",
            ".",
            "a.",
            ".a",
            "a..b",
            "a.*",
            "a.>",
            "*",
            ">",
        ),
        *("$JS.API.STREAM.DELETE.x", "$KV.a.b", "$", "_lift.checked.a.0.b", "x" * 2049),
        "liftenvelope.groups.at.a.Leave",
    ],
)
def test_inboxes_that_get_nothing(acks: Any, inbox: str) -> None:
    assert not acks.is_ack_inbox(inbox.encode())
    acknowledger = acks.Acknowledger("s", "s", 1 << 20)
    payload = marshal_message(Message(b"v", ack_inbox=inbox, correlation_id="1"))
    assert acknowledger.take([delivered(payload)], NOW)[:3] == (b"", 0, 0)
    assert acknowledger.refused == inbox.encode()[:100]


@TWINS
@pytest.mark.parametrize(
    "inbox",
    ["a", "_INBOX.a.b", "a*b.>c", "ü.ä", "a$b", "x" * 2048, "a.$b", "_lifted", "liftenvelope.groups"],
)
def test_inboxes_that_get_theirs(acks: Any, inbox: str) -> None:
    assert acks.is_ack_inbox(inbox.encode())
    acknowledger = acks.Acknowledger("s", "s", 1 << 20)
    frames, *_ = acknowledger.take([delivered(asking(inbox))], NOW)
    assert [subject.decode() for subject, _ in cut(frames)] == [inbox]


@TWINS
@pytest.mark.parametrize(
    ("inbox", "is_allowed"),
    [
        ("_INBOX.a", True),
        ("acks.a", True),
        ("acks", False),
        ("_INBOX", False),
        ("_INBOX.", False),
        ("_INBO", False),
        ("x_INBOX.a", False),
        ("_inbox.a", False),
    ],
)
def test_inbox_must_begin_with_an_allowed_prefix(acks: Any, inbox: str, is_allowed: bool) -> None:
    prefixes = (b"_INBOX.", b"acks.")
    assert acks.is_ack_inbox(inbox.encode(), prefixes) is is_allowed
    acknowledger = acks.Acknowledger("s", "s", 1 << 20, prefixes)
    assert acknowledger.take([delivered(asking(inbox))], NOW)[1] == is_allowed
    assert acknowledger.refused == (b"" if is_allowed else inbox.encode())
    acknowledger.take([delivered(asking("acks.b"), 2)], NOW)
    assert acknowledger.refused == b""


@TWINS
def test_no_prefix_allows_no_inbox_and_internal_subjects_stay_closed(acks: Any) -> None:
    assert not acks.is_ack_inbox(b"_INBOX.a", ())
    assert not acks.is_ack_inbox(b"$KV.a", (b"$KV.",))
    assert not acks.is_ack_inbox(b"_lift.a", (b"_lift.",))
    with pytest.raises(TypeError):
        acks.Acknowledger("s", "s", 1 << 20, ("_INBOX.",))


@TWINS
def test_an_ack_larger_than_the_server_takes_is_not_written(acks: Any) -> None:
    payload = asking(correlation_id="x" * 1000)
    ((_, envelope),) = cut(acks.Acknowledger("s", "s", 1 << 20).take([delivered(payload)], NOW)[0])
    assert acks.Acknowledger("s", "s", len(envelope)).take([delivered(payload)], NOW)[1] == 1
    acknowledger = acks.Acknowledger("s", "s", len(envelope) - 1)
    assert acknowledger.take([delivered(payload), delivered(asking(), 2)], NOW)[1] == 1
    assert acknowledger.stream_sequence == 2


@TWINS
def test_nothing_is_taken_after_a_gap(acks: Any) -> None:
    acknowledger = acks.Acknowledger("s", "s", 1 << 20)
    batch = [delivered(asking(), 5, 1), delivered(asking(), 7, 2), delivered(asking(), 8, 4)]
    assert acknowledger.take(batch, NOW)[1] == 2
    assert acknowledger.gap
    assert (acknowledger.stream_sequence, acknowledger.delivery) == (7, 2)
    assert acknowledger.take([delivered(asking(), 8, 3)], NOW)[1] == 0
    acknowledger.begin()
    assert not acknowledger.gap
    assert acknowledger.take([delivered(asking(), 8, 2)], NOW)[1] == 0
    acknowledger.begin()
    assert acknowledger.take([delivered(asking(), 8, 1)], NOW)[1] == 1


@TWINS
def test_deliveries_go_on_after_those_of_the_last_reader(acks: Any) -> None:
    acknowledger = acks.Acknowledger("s", "s", 1 << 20)
    acknowledger.begin(7)
    assert acknowledger.delivery == 7
    assert acknowledger.take([delivered(asking(), 9, 8)], NOW)[1] == 1
    acknowledger.begin(7)
    assert acknowledger.take([delivered(asking(), 10, 9)], NOW)[1] == 0
    assert acknowledger.gap


@TWINS
def test_what_comes_again_has_its_ack_already(acks: Any) -> None:
    acknowledger = acks.Acknowledger("s", "s", 1 << 20)
    batch = [delivered(asking(), 5, 1), delivered(asking(), 4, 2), delivered(asking(), 5, 3)]
    assert acknowledger.take(batch, NOW)[1] == 1
    assert (acknowledger.stream_sequence, acknowledger.delivery, acknowledger.gap) == (5, 3, False)
    assert acknowledger.reply == batch[0][1]
    assert acknowledger.repeated
    acknowledger.take([delivered(asking(), 6, 4)], NOW)
    assert not acknowledger.repeated


@TWINS
@pytest.mark.parametrize(
    ("reply", "known"),
    [
        (b"$JS.ACK.S.C.1.9.1.1700000000000000000.0", True),
        (b"$JS.ACK._.ACC.S.C.1.9.1.1700000000000000000.0", True),
        (b"$JS.ACK.hub.ACC.S.C.1.9.1.1700000000000000000.0.x1", True),
        (b"$JS.ACK.hub.ACC.S.C.1.9.1.1700000000000000000.0.x1.more.yet", True),
        (b"", False),
        (b"_INBOX.a.b", False),
        (b"$JS.FC.S.C.x", False),
        (b"$JS.ACK.", False),
        (b"$JS.ACK.S.C.1.9.1.1700000000000000000", False),
        (b"$JS.ACK._.S.C.1.9.1.1700000000000000000.0", False),
        (b"$JS.ACK.S.C.1.x.1.1700000000000000000.0", False),
        (b"$JS.ACK.S.C.1.0.1.1700000000000000000.0", False),
        (b"$JS.ACK.S.C.1.9.0.1700000000000000000.0", False),
        (b"$JS.ACK.S.C.1..1.1700000000000000000.0", False),
        (b"$JS.ACK.S.C.1.9.1.9223372036854775807.0", True),
        (b"$JS.ACK.S.C.1.9.1.9223372036854775808.0", False),
        (b"$JS.ACK.S.C.1.99999999999999999999.1.17.0", False),
        (b"$JS.ACK.S.C.1.-9.1.17.0", False),
    ],
)
def test_reply_subjects(acks: Any, reply: bytes, known: bool) -> None:
    acknowledger = acks.Acknowledger("s", "s", 1 << 20)
    message = ("s", reply, None, asking())
    _, count, _, others = acknowledger.take([message], NOW)
    assert (count, others) == ((1, []) if known else (0, [message]))
    assert (acknowledger.stream_sequence, acknowledger.delivery) == ((9, 1) if known else (0, 0))


@TWINS
def test_arguments(acks: Any) -> None:
    with pytest.raises(UsageError, match="max_ack must be at least 1, got 0"):
        acks.Acknowledger("s", "s", 0)
    with pytest.raises(UsageTypeError, match="stream"):
        acks.Acknowledger(b"s", "s", 1)
    assert acks.Acknowledger("s", "s", 1).take([], NOW) == (b"", 0, 0, [])


PAYLOADS = st.one_of(
    st.binary(max_size=40),
    ANYTHING,
    st.builds(
        lambda inbox, ident, policy, crc: marshal_message(
            Message(b"v", ack_inbox=inbox, correlation_id=ident, ack_policy=policy), crc=crc
        ),
        st.text(st.sampled_from("ab.*>$ ü\n"), max_size=8),
        st.text(max_size=5),
        st.integers(-1, 3),
        st.booleans(),
    ),
)
DELIVERIES = st.lists(
    st.tuples(
        st.sampled_from(["s", "s.a", "ü"]),
        st.one_of(
            st.builds(
                lambda v2, seq, dseq: f"$JS.ACK.{'_.A.' if v2 else ''}S.C.1.{seq}.{dseq}.{STORED}.0".encode(),
                st.booleans(),
                st.integers(1, 6),
                st.integers(1, 6),
            ),
            st.text(st.sampled_from("$JS.ACK.19"), max_size=24).map(lambda s: f"$JS.ACK.{s}".encode()),
            st.binary(max_size=8),
        ),
        st.none(),
        PAYLOADS,
    ),
    max_size=6,
)


@given(st.lists(DELIVERIES, max_size=4), st.text(max_size=4), st.integers(1, 120), st.integers(0, 2))
def test_the_twins_agree(batches: list[list[Any]], stream: str, max_ack: int, delivery: int) -> None:
    prefixes = (b"in", b"_INBOX.")
    python = readable.acks.Acknowledger(stream, "s", max_ack, prefixes)
    cython = _fastacks.Acknowledger(stream, "s", max_ack, prefixes)
    for batch in batches:
        assert python.take(batch, NOW) == cython.take(batch, NOW)
        for name in ("reply", "stream_sequence", "delivery", "gap", "repeated", "refused"):
            assert getattr(python, name) == getattr(cython, name)
        if python.gap:
            python.begin(delivery)
            cython.begin(delivery)


INBOXES = st.binary(max_size=12) | st.sampled_from([b"$a", b"_lift.a", b"_INBOX.a", b"_lifted"])


@given(INBOXES, st.lists(st.binary(max_size=3) | st.sampled_from([b"_INBOX.", b"_lift.", b"$"])).map(tuple))
def test_the_twins_agree_about_inboxes(inbox: bytes, prefixes: tuple[bytes, ...]) -> None:
    assert readable.acks.is_ack_inbox(inbox) == _fastacks.is_ack_inbox(inbox)
    assert readable.acks.is_ack_inbox(inbox, prefixes) == _fastacks.is_ack_inbox(inbox, prefixes)


@given(st.integers(1, 60))
def test_many_at_once(count: int) -> None:
    batch = [delivered(asking(correlation_id="c" * number), number) for number in range(1, count + 1)]
    frames, acks, size, _ = _fastacks.Acknowledger("s", "s", 1 << 20).take(batch, NOW)
    found = [unmarshal_ack(envelope) for _, envelope in cut(frames)]
    assert [ack.offset for ack in found] == list(range(count))
    assert (acks, size) == (count, sum(len(envelope) for _, envelope in cut(frames)))
