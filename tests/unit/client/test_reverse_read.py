"""The state of a read backwards, with models of servers that can do it and of those that can't."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._pb import api_pb2
from liftenvelope.client._reading.reverse_read import ReverseRead, check_reverse
from liftenvelope.client.metadata import PartitionInfo
from liftenvelope.client.partition_read import Verdict, read_messages
from liftenvelope.client.positions import At, StartAt, StopAt
from liftenvelope.errors import (
    LiftEnvelopeError,
    PartitionPausedError,
    ServerProtocolError,
    TransportError,
    UnsupportedByServerError,
    UsageError,
)
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.unit.scripted_broker import LARGEST, message

REACHED = RpcError(StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")
READONLY = RpcError(StatusCode.RESOURCE_EXHAUSTED, "End of readonly partition")
EOF = RpcError(StatusCode.UNKNOWN, "EOF")
NOTHING = RpcError(StatusCode.INTERNAL, "segment not found")
OFFSETS = st.sets(st.integers(0, 20), max_size=18).map(sorted)


def test_negative_offsets_are_refused() -> None:
    read = ReverseRead("foo", 0, StartAt(At.LATEST), None)
    read.begin(StartAt(At.LATEST), PartitionInfo(0, high_watermark=5, newest_offset=5))
    with pytest.raises(ServerProtocolError, match=r"must be 0 or more, got -1$"):
        read.accept([message(5), message(-1)])


def test_read_from_the_largest_offset_asks_for_offsets_that_exist() -> None:
    read, start = ReverseRead("foo", 0, StartAt(At.LATEST), None), StartAt(At.LATEST)
    read.begin(start, PartitionInfo(0, high_watermark=LARGEST, newest_offset=LARGEST))
    request = read.request(resume=False)
    assert (request.startOffset, request.stopOffset) == (LARGEST, LARGEST)
    assert len(read.accept([message(LARGEST, time_ns=1)])) == 1
    assert read.ended(REACHED) is Verdict.GO_ON
    request = read.request(resume=False)
    assert (request.startOffset, request.stopOffset) == (LARGEST - 1, LARGEST)


def answer(
    offsets: list[int], request: api_pb2.SubscribeRequest, kind: str
) -> tuple[list[int], RpcError | None]:
    """Return the offsets that a server sends, and its final error; None if it waits for more messages.

    Forward reads are as observed on Liftbridge 1.9.0: a start that is gone is moved to the next message, and
    only the message at the stop ends the call. A gateway also ends it if that message is gone, and refuses
    it if all messages up to the stop are gone.
    """
    assert (request.startPosition, request.stopPosition) == (api_pb2.OFFSET, api_pb2.STOP_OFFSET)
    if request.reverse and kind != "forwards":
        found = [offset for offset in offsets[::-1] if offset <= request.startOffset]
        if kind == "next" and offsets and not found:
            return offsets[:1], EOF  # the start is moved to the next message here, too
        if kind == "readonly":
            return found[:1], READONLY if found else NOTHING
        return found, EOF if found else NOTHING
    gone = kind == "gateway" and bool(offsets) and request.stopOffset < offsets[0]
    if gone or request.stopOffset < request.startOffset:
        return [], RpcError(StatusCode.INVALID_ARGUMENT, "Stop offset is before start offset: 1 < 2")
    if kind == "gateway" or request.stopOffset in offsets:
        return [offset for offset in offsets if request.startOffset <= offset <= request.stopOffset], REACHED
    found = [offset for offset in offsets if offset >= request.startOffset]
    return found, READONLY if kind == "readonly" else None


def begun(offsets: list[int], start: StartAt, stop: StopAt | None) -> ReverseRead:
    newest = offsets[-1] if offsets else -1
    return begun_at(newest, start, stop)


def begun_at(newest: int, start: StartAt, stop: StopAt | None) -> ReverseRead:
    read = ReverseRead("foo", 0, start, stop)
    read.begin(start, PartitionInfo(0, high_watermark=newest, newest_offset=newest))
    return read


def take(
    read: ReverseRead, offsets: list[int], kind: str, draw: Callable[..., Any]
) -> tuple[list[int], LiftEnvelopeError | None]:
    """Read all, over calls that break off wherever they like; return it, and the error that ended it."""
    found: list[int] = []
    breaks_left = 4
    for _ in range(100):
        if read.finished:
            return found, None
        offered, end = answer(offsets, read.request(resume=False), kind)
        cut = draw(st.integers(0, len(offered))) if breaks_left else len(offered)
        breaks_left = max(0, breaks_left - 1)
        rest = offered[:cut]
        while rest and not read.needs_call and not read.finished:
            size = draw(st.integers(1, len(rest)))
            try:
                found += [m.offset for m in read_messages(read.accept([message(n) for n in rest[:size]]))]
            except UnsupportedByServerError as exc:
                return found, exc
            rest = rest[size:]
        if read.finished:
            return found, None
        if read.needs_call:
            continue
        if cut == len(offered) and end is None:
            assert read.highest_offset is not None
            try:
                read.fell_silent(is_empty=not any(offset <= read.highest_offset for offset in offsets))
            except UnsupportedByServerError as exc:
                return found, exc
            assert read.finished
            return found, None
        verdict = read.ended(TransportError("lost") if cut < len(offered) else end)
        if isinstance(verdict, LiftEnvelopeError):
            return found, verdict
        if verdict is Verdict.FINISHED:
            return found, None
        assert verdict in (Verdict.LOST, Verdict.GO_ON)
    raise AssertionError("it never ends")


@st.composite
def places(draw: st.DrawFn) -> tuple[StartAt, StopAt | None]:
    start = draw(
        st.one_of(st.just(StartAt(At.LATEST)), st.integers(0, 25).map(lambda n: StartAt(At.OFFSET, n)))
    )
    stop = draw(
        st.one_of(
            st.none(),
            st.integers(0, 25).map(lambda n: StopAt(At.OFFSET, n)),
            st.integers(0, 25).map(lambda n: StopAt(At.TIME, n * 1000)),
        )
    )
    return start, stop


def expected(offsets: list[int], start: StartAt, stop: StopAt | None) -> list[int]:
    highest = start.number if start.at is At.OFFSET else 100
    lowest = 0 if stop is None else stop.number // (1000 if stop.at is At.TIME else 1)
    return [offset for offset in offsets[::-1] if lowest <= offset <= highest]


@pytest.mark.parametrize("kind", ["backwards", "next", "readonly", "gateway"])
@given(OFFSETS, places(), st.data())
def test_nothing_is_lost_doubled_or_out_of_order(
    kind: str, offsets: list[int], where: tuple[StartAt, StopAt | None], data: st.DataObject
) -> None:
    read = begun(offsets, *where)
    assert take(read, offsets, kind, data.draw) == (expected(offsets, *where), None)


@given(OFFSETS, places(), st.data())
def test_a_server_that_reads_forwards_is_given_away(
    offsets: list[int], where: tuple[StartAt, StopAt | None], data: st.DataObject
) -> None:
    wanted = expected(offsets, *where)
    found, error = take(begun(offsets, *where), offsets, "forwards", data.draw)
    # What was handed out is right. Either that is all, or it says that it can't go on.
    assert found == wanted[: len(found)]
    assert isinstance(error, UnsupportedByServerError) or (error is None and found == wanted)


@pytest.mark.parametrize("start", [StartAt(At.LATEST), StartAt(At.OFFSET, 3)])
def test_an_empty_partition_is_the_end(start: StartAt) -> None:
    assert begun([], start, None).finished


def test_read_of_a_partition_whose_messages_are_all_removed_is_empty() -> None:
    read = begun_at(4, StartAt(At.LATEST), None)
    read.request(resume=False)
    read.fell_silent(is_empty=True)
    assert read.finished


def test_start_that_was_removed_takes_another_call() -> None:
    read = begun([1, 5, 6], StartAt(At.OFFSET, 3), None)
    read.request(resume=False)
    assert read.accept([message(5), message(6)]) == []
    assert read.needs_call
    request = read.request(resume=False)
    assert not read.needs_call
    assert (request.startOffset, request.stopOffset, request.reverse) == (2, 3, True)


def test_begins_at_the_high_watermark_at_most() -> None:
    read = ReverseRead("foo", 0, StartAt(At.OFFSET, 50), None)
    read.begin(read.start, PartitionInfo(0, high_watermark=4, newest_offset=9))
    request = read.request(resume=True)
    assert (request.startOffset, request.stopOffset, request.reverse, request.resume) == (4, 4, False, True)


def test_second_request_is_reverse_with_a_stop_that_detects_old_servers() -> None:
    read = begun([3, 4], StartAt(At.LATEST), None)
    read.request(resume=False)
    assert len(read.accept([message(4)])) == 1
    assert read.ended(REACHED) is Verdict.GO_ON
    request = read.request(resume=False)
    assert (request.startOffset, request.stopOffset, request.reverse) == (3, 4, True)


def test_reverse_read_ends_as_a_forward_read_does() -> None:
    read = begun([3, 4], StartAt(At.LATEST), None)
    read.request(resume=False)
    assert read.ended(None) is Verdict.LOST
    assert read.ended(RpcError(StatusCode.UNKNOWN, "something else")) is not Verdict.FINISHED
    text = "Failed to create stream reader: segment has been closed"
    closed = RpcError(StatusCode.INTERNAL, text)
    assert isinstance(read.ended(closed), PartitionPausedError)


@pytest.mark.parametrize("at", [At.NEW, At.EARLIEST, At.TIME, At.CURSOR])
def test_starts_that_make_no_sense(at: At) -> None:
    with pytest.raises(UsageError, match=r"start must be .* with reverse=True"):
        check_reverse(StartAt(at), None)


def test_a_stop_that_makes_no_sense() -> None:
    with pytest.raises(UsageError, match=r"stop must be .* with reverse=True"):
        check_reverse(StartAt(At.LATEST), StopAt(At.LATEST))
    check_reverse(StartAt(At.LATEST), StopAt(At.TIME, 1))
    check_reverse(StartAt(At.OFFSET, 1), None)
