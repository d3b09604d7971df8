"""Events of the activity stream, read from the bytes of its messages."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope import Message
from liftenvelope._pb import api_pb2
from liftenvelope.client.activity import (
    ActivityEvent,
    GroupJoined,
    GroupLeft,
    StreamCreated,
    StreamDeleted,
    StreamPaused,
    StreamReadonlySet,
    StreamResumed,
    UnknownActivity,
    read_activity,
)

AT = {"id": 7, "timestamp_ns": 1_700_000_000_000_000_000, "offset": 3}


def message(value: bytes) -> Message:
    return Message(
        value=value, offset=3, timestamp_ns=1_700_000_000_000_000_000, stream="__activity", partition=0
    )


def read(**fields: object) -> ActivityEvent:
    event = api_pb2.ActivityStreamEvent(id=7, **fields)  # type: ignore[arg-type]
    return read_activity(message(event.SerializeToString()))


CASES = [
    (
        {"op": 0, "createStreamOp": api_pb2.CreateStreamOp(stream="s", partitions=[0, 1])},
        StreamCreated(**AT, stream="s", partitions=(0, 1)),
    ),
    (
        {"op": 1, "deleteStreamOp": api_pb2.DeleteStreamOp(stream="s")},
        StreamDeleted(**AT, stream="s"),
    ),
    (
        {"op": 2, "pauseStreamOp": api_pb2.PauseStreamOp(stream="s", partitions=[2], resumeAll=True)},
        StreamPaused(**AT, stream="s", partitions=(2,), resume_all=True),
    ),
    (
        {"op": 3, "resumeStreamOp": api_pb2.ResumeStreamOp(stream="s", partitions=[2])},
        StreamResumed(**AT, stream="s", partitions=(2,)),
    ),
    (
        {
            "op": 4,
            "setStreamReadonlyOp": api_pb2.SetStreamReadonlyOp(stream="s", partitions=[0], readonly=True),
        },
        StreamReadonlySet(**AT, stream="s", partitions=(0,), readonly=True),
    ),
    (
        {
            "op": 5,
            "joinConsumerGroupOp": api_pb2.JoinConsumerGroupOp(
                groupId="g", consumerId="c", streams=["a", "b"]
            ),
        },
        GroupJoined(**AT, group="g", consumer="c", streams=("a", "b")),
    ),
    (
        {
            "op": 6,
            "leaveConsumerGroupOp": api_pb2.LeaveConsumerGroupOp(groupId="g", consumerId="c", expired=True),
        },
        GroupLeft(**AT, group="g", consumer="c", expired=True),
    ),
]


@pytest.mark.parametrize(("fields", "expected"), CASES, ids=lambda case: type(case).__name__)
def test_each_operation(fields: dict[str, object], expected: ActivityEvent) -> None:
    event = read(**fields)
    assert event == expected
    assert type(event) is type(expected)
    assert pickle.loads(pickle.dumps(event)) == event
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.offset = 4  # type: ignore[misc]


def test_every_operation_of_the_api_is_known() -> None:
    numbers = set(api_pb2.ActivityStreamOp.values())
    assert {fields["op"] for fields, _ in CASES} == numbers


def test_an_operation_of_a_newer_server() -> None:
    # Field 2 (op) is 99; field 30 is what it carries, which nobody here knows.
    value = b"\x08\x07\x10\x63\xf2\x01\x02hi"
    assert read_activity(message(value)) == UnknownActivity(**AT, op=99, value=value)


def test_an_operation_without_its_description() -> None:
    event = read(op=4, createStreamOp=api_pb2.CreateStreamOp(stream="s"))
    assert isinstance(event, UnknownActivity)
    assert (event.op, event.id) == (4, 7)


@pytest.mark.parametrize("value", [b"\xff\xff\xff", b"\x08", b"\x1a\x05ab"])
def test_what_is_no_event(value: bytes) -> None:
    event = read_activity(message(value))
    assert event == UnknownActivity(id=0, timestamp_ns=AT["timestamp_ns"], offset=3, op=None, value=value)


def test_an_empty_value() -> None:
    event = read_activity(message(b""))
    assert event == UnknownActivity(id=0, timestamp_ns=AT["timestamp_ns"], offset=3, op=0, value=b"")


@given(st.binary(max_size=64))
def test_any_bytes_give_an_event(value: bytes) -> None:
    event = read_activity(message(value))
    assert event.offset == 3
    if isinstance(event, UnknownActivity):
        assert event.value == value
