"""The state of a read: whatever servers send in whatever pieces, nothing is lost, doubled or out of order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._pb import api_pb2
from liftenvelope.client._reading.ahead import start_after
from liftenvelope.client.metadata import PartitionInfo, StreamInfo
from liftenvelope.client.partition_read import GroupIdentity, PartitionRead, Verdict, read_messages
from liftenvelope.client.positions import At, Cursor, StartAt, StopAt
from liftenvelope.errors import (
    FencedError,
    NoSuchPartitionError,
    NotLeaderError,
    PartitionPausedError,
    PermissionDeniedError,
    ReadonlyPartitionError,
    ServerError,
    ServerProtocolError,
    StreamDeletedError,
    TransportError,
)
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode
from tests.unit.scripted_broker import LARGEST, message

REACHED = RpcError(StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")
BEFORE = RpcError(StatusCode.INVALID_ARGUMENT, "Stop offset is before start offset: 3 < 4")
READONLY = RpcError(StatusCode.RESOURCE_EXHAUSTED, "End of readonly partition")
EARLIEST, NEW, LATEST = StartAt(At.EARLIEST), StartAt(At.NEW), StartAt(At.LATEST)

OFFSETS = st.sets(st.integers(0, 30), max_size=25).map(sorted)


@dataclass
class Server:
    """A model of a server: a compacted log, committed further with each call, that may say too much."""

    offsets: list[int]
    committed: list[int]
    overshoots: bool
    sent: list[int] = field(default_factory=list)

    def info(self) -> PartitionInfo:
        newest = self.offsets[-1] if self.offsets else -1
        return PartitionInfo(0, high_watermark=newest, newest_offset=newest)

    def answer(self, request: api_pb2.SubscribeRequest) -> tuple[list[int], RpcError | None]:
        """All that it sends to this request, and how it ends; None for not at all."""
        if request.startPosition == api_pb2.OFFSET:
            first = request.startOffset
        elif request.startPosition == api_pb2.TIMESTAMP:
            first = -(-request.startTimestamp // 1000)
        else:
            assert request.startPosition == api_pb2.EARLIEST
            first = 0
        has_stop = request.stopPosition == api_pb2.STOP_OFFSET
        if has_stop and request.stopOffset < first:
            return [], BEFORE
        if self.committed:  # a start beyond the high watermark begins right after that
            first = min(first, self.committed.pop() + 1)
        found = [offset for offset in self.offsets if offset >= first]
        if has_stop and not self.overshoots:
            found = [offset for offset in found if offset <= request.stopOffset]
        return found, REACHED if has_stop else None


@pytest.mark.parametrize(("created_ns", "is_another"), [(0, False), (4, False), (5, False), (6, True)])
def test_stream_is_another_one_if_it_was_created_later(created_ns: int, is_another: bool) -> None:
    stream = StreamInfo("foo", created_ns=created_ns)
    read = PartitionRead("foo", 0, EARLIEST, None)
    read.check_stream(stream)  # nothing is known of the read's own stream yet
    read.created_ns = 5
    if not is_another:  # also for an earlier one: the broker that knows it is behind
        read.check_stream(stream)
        return
    with pytest.raises(StreamDeletedError, match="another one of that name"):
        read.check_stream(stream)


def test_negative_offsets_are_refused() -> None:
    read = PartitionRead("foo", 0, EARLIEST, None)
    with pytest.raises(ServerProtocolError, match=r"must be 0 or more, got -2$"):
        read.accept([message(-2), message(-1)])
    assert read.next_offset is None


def test_largest_offset_is_refused_because_no_read_can_continue_after_it() -> None:
    read = PartitionRead("foo", 0, EARLIEST, None)
    assert read.accept([message(0)]) == [message(0)]
    for payloads in ([message(LARGEST, time_ns=1)], [message(1), message(LARGEST, time_ns=1)]):
        with pytest.raises(ServerProtocolError, match=rf"must be at most {LARGEST - 1}, got {LARGEST}$"):
            read.accept(payloads)
    assert read.next_offset == 1
    info = PartitionInfo(0, high_watermark=LARGEST, newest_offset=LARGEST)
    with pytest.raises(ServerProtocolError, match=f"got {LARGEST}$"):
        PartitionRead("foo", 0, NEW, None).begin(NEW, info)
    with pytest.raises(ServerProtocolError, match=f"got {LARGEST}$"):
        start_after("foo", Cursor("id"), LARGEST, info)


def test_largest_offset_but_one_is_read() -> None:
    read = PartitionRead("foo", 0, EARLIEST, None)
    assert len(read.accept([message(LARGEST - 1, time_ns=1)])) == 1
    assert read.request(resume=False).startOffset == LARGEST


@pytest.mark.parametrize("offsets", [(0, 0, 0), (9, 8, 7), (3,)], ids=str)
def test_messages_that_come_in_every_call_are_handed_on_once(offsets: tuple[int, ...]) -> None:
    read, sent = PartitionRead("foo", 0, EARLIEST, None), [message(offset) for offset in offsets]
    assert read.accept(sent) == sent
    assert read.next_offset == max(offsets) + 1
    assert read.accept(sent) == []


def pieces(draw: Callable[..., Any], items: list[int]) -> list[list[int]]:
    """Any division of a list into lists."""
    found, rest = [], items
    while rest:
        size = draw(st.integers(1, len(rest)))
        found.append(rest[:size])
        rest = rest[size:]
    return found


def take(read: PartitionRead, server: Server, draw: Callable[..., Any]) -> list[int]:
    """Read all, over calls that break off wherever they like."""
    found: list[int] = []
    for breaks_left in (5, 4, 3, 2, 1, 0):
        if read.finished:
            return found
        offered, end = server.answer(read.request(resume=False))
        cut = draw(st.integers(0, len(offered))) if breaks_left else len(offered)
        for piece in pieces(draw, offered[:cut]):
            found += [m.offset for m in read_messages(read.accept([message(n) for n in piece]))]
            if read.finished:
                return found
        if cut < len(offered):
            assert read.ended(TransportError("lost")) is Verdict.LOST
        elif end is not None:
            assert read.ended(end) is Verdict.FINISHED
            return found
    assert read.stop is None
    return found


@st.composite
def reads(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Draw a read; return the offsets that it found and those expected."""
    offsets = draw(OFFSETS)
    server = Server(offsets, draw(st.lists(st.integers(-1, 30), max_size=6)), draw(st.booleans()))
    newest = offsets[-1] if offsets else -1
    number = draw(st.integers(0, 32))
    start = draw(
        st.sampled_from([EARLIEST, LATEST, NEW, StartAt(At.OFFSET, number), StartAt(At.TIME, number * 1000)])
    )
    begins = {At.EARLIEST: 0, At.LATEST: max(newest, 0), At.NEW: newest + 1}.get(start.at, number)
    last = draw(st.integers(0, 32))
    stop = draw(
        st.sampled_from([None, StopAt(At.LATEST), StopAt(At.OFFSET, last), StopAt(At.TIME, last * 1000)])
    )
    ends = last if stop is not None and stop.at is not At.LATEST else newest
    read = PartitionRead("foo", 0, start, stop)
    read.begin(start, server.info() if read.needs_info else None)
    return take(read, server, draw), [offset for offset in offsets if begins <= offset <= ends]


@given(reads())
def test_nothing_is_lost_doubled_or_out_of_order(pair: tuple[list[int], list[int]]) -> None:
    found, expected = pair
    assert found == expected


@given(OFFSETS, st.integers(0, 31), st.data())
def test_a_read_that_is_taken_up_elsewhere(offsets: list[int], cut: int, data: st.DataObject) -> None:
    # Another read begins at what the first one says is next.
    first, second = PartitionRead("foo", 0, EARLIEST, None), offsets[cut:]
    taken = [read_messages(first.accept([message(n)]))[0].offset for n in offsets[:cut]]
    begin = first.next_offset or 0
    read = PartitionRead("foo", 0, StartAt(At.OFFSET, begin), None)
    server = Server(offsets, [], overshoots=False)
    assert taken + take(read, server, data.draw) == offsets[:cut] + second


class TestRequests:
    def request(
        self, start: StartAt, stop: StopAt | None = None, info: PartitionInfo | None = None
    ) -> api_pb2.SubscribeRequest:
        read = PartitionRead("foo", 3, start, stop)
        read.begin(start, info)
        return read.request(resume=True)

    def test_says_what_was_asked(self) -> None:
        request = self.request(StartAt(At.OFFSET, 5))
        assert (request.stream, request.partition, request.resume) == ("foo", 3, True)
        assert (request.readISRReplica, request.reverse, request.HasField("consumer")) == (
            False,
            False,
            False,
        )
        assert (request.startPosition, request.startOffset) == (api_pb2.OFFSET, 5)
        assert request.stopPosition == api_pb2.STOP_ON_CANCEL

    def test_request_of_a_group_member_names_group_epoch_and_consumer(self) -> None:
        read = PartitionRead(
            "foo", 0, EARLIEST, None, group=GroupIdentity("g", 7, "c"), read_isr_replica=True
        )
        request = read.request(resume=False)
        assert (request.consumer.groupId, request.consumer.groupEpoch, request.consumer.consumerId) == (
            "g",
            7,
            "c",
        )
        assert request.readISRReplica

    def test_earliest(self) -> None:
        assert self.request(EARLIEST).startPosition == api_pb2.EARLIEST

    def test_a_time(self) -> None:
        request = self.request(StartAt(At.TIME, 123))
        assert (request.startPosition, request.startTimestamp) == (api_pb2.TIMESTAMP, 123)

    @pytest.mark.parametrize(("start", "offset"), [(NEW, 10), (LATEST, 9)])
    def test_new_and_latest_are_offsets_so_that_a_loss_loses_nothing(
        self, start: StartAt, offset: int
    ) -> None:
        request = self.request(start, info=PartitionInfo(3, high_watermark=8, newest_offset=9))
        assert (request.startPosition, request.startOffset) == (api_pb2.OFFSET, offset)

    @pytest.mark.parametrize(("start", "offset"), [(NEW, 0), (LATEST, 0)])
    def test_request_to_an_empty_partition_starts_at_its_first_offset(
        self, start: StartAt, offset: int
    ) -> None:
        assert self.request(start, info=PartitionInfo(3)).startOffset == offset

    def test_the_latest_stops_at_the_high_watermark(self) -> None:
        request = self.request(
            EARLIEST, StopAt(At.LATEST), PartitionInfo(3, high_watermark=4, newest_offset=9)
        )
        assert (request.stopPosition, request.stopOffset) == (api_pb2.STOP_OFFSET, 4)

    @pytest.mark.parametrize("start", [EARLIEST, NEW, LATEST, StartAt(At.OFFSET, 5), StartAt(At.TIME, 9)])
    def test_nothing_visible_is_the_end(self, start: StartAt) -> None:
        read = PartitionRead("foo", 0, start, StopAt(At.LATEST))
        read.begin(start, PartitionInfo(0, high_watermark=-1, newest_offset=5))
        assert read.finished

    @pytest.mark.parametrize(
        ("start", "stop", "needs"),
        [
            (EARLIEST, None, False),
            (StartAt(At.OFFSET, 1), None, False),
            (StartAt(At.OFFSET, 1), StopAt(At.OFFSET, 4), False),
            (StartAt(At.TIME, 1), None, True),
            (NEW, None, True),
            (LATEST, None, True),
            (StartAt(At.CURSOR), None, True),
            (EARLIEST, StopAt(At.LATEST), True),
            (EARLIEST, StopAt(At.TIME, 1), True),
        ],
    )
    def test_asks_only_for_what_it_needs(self, start: StartAt, stop: StopAt | None, needs: bool) -> None:
        assert PartitionRead("foo", 0, start, stop).needs_info is needs


class TestEnds:
    def read(self, stop: StopAt | None = None, group: GroupIdentity | None = None) -> PartitionRead:
        read = PartitionRead("foo", 2, EARLIEST, stop, group=group)
        read.begin(EARLIEST, PartitionInfo(2, high_watermark=9, newest_offset=9))
        return read

    @pytest.mark.parametrize(
        "error",
        [
            None,
            TransportError("lost"),
            CallNotProcessedError("refused"),
            RpcError(StatusCode.UNAVAILABLE, "the gateway is stopping"),
            RpcError(StatusCode.CANCELLED, "the server stopped serving the call"),
            RpcError(StatusCode.DEADLINE_EXCEEDED, "context deadline exceeded"),
            RpcError(StatusCode.FAILED_PRECONDITION, "Server not partition leader"),
            RpcError(StatusCode.INTERNAL, "no known metadata leader"),
        ],
        ids=str,
    )
    def test_lost_connections_resume_the_read(self, error: RpcError | TransportError | None) -> None:
        assert self.read().ended(error) is Verdict.LOST
        assert self.read(StopAt(At.LATEST)).ended(error) is Verdict.LOST

    def test_without_a_reason_are_fences_to_groups(self) -> None:
        found = self.read(group=GroupIdentity("g", 1, "c")).ended(None)
        assert isinstance(found, FencedError)
        assert str(found).startswith("foo[2]")

    def test_reached_stop_finishes_the_read(self) -> None:
        empty = RpcError(StatusCode.RESOURCE_EXHAUSTED, "Stream is empty")
        for stop in (StopAt(At.OFFSET, 5), StopAt(At.LATEST), StopAt(At.TIME, 5)):
            assert [self.read(stop).ended(error) for error in (REACHED, empty, BEFORE)] == [
                Verdict.FINISHED
            ] * 3

    def test_read_of_a_read_only_partition_ends_at_its_stop(self) -> None:
        assert self.read(StopAt(At.LATEST)).ended(READONLY) is Verdict.FINISHED
        assert self.read(StopAt(At.TIME, 5)).ended(READONLY) is Verdict.FINISHED
        for stop in (None, StopAt(At.OFFSET, 100)):
            assert isinstance(self.read(stop).ended(READONLY), ReadonlyPartitionError)
        # Liftbridge 1.9.0 stops at the newest offset of a partition that was read-only before.
        assert isinstance(self.read().ended(REACHED), ReadonlyPartitionError)
        assert isinstance(self.read().ended(BEFORE), ReadonlyPartitionError)

    @pytest.mark.parametrize(
        ("code", "text", "kind"),
        [
            (StatusCode.NOT_FOUND, "commit log was deleted", StreamDeletedError),
            (StatusCode.NOT_FOUND, "No such partition", NoSuchPartitionError),
            (
                StatusCode.INTERNAL,
                "Failed to create stream reader: segment has been closed",
                PartitionPausedError,
            ),
            (
                StatusCode.PERMISSION_DENIED,  # as a gateway answers
                "The client is not authorized to call Subscribe on resource foo",
                PermissionDeniedError,
            ),
            (
                StatusCode.FAILED_PRECONDITION,
                "Consumer is not currently assigned this partition",
                FencedError,
            ),
            (StatusCode.INTERNAL, "oh", RpcError),
            (99, "a status of tomorrow", RpcError),
        ],
    )
    def test_refusals_end_the_read_with_an_error(self, code: int, text: str, kind: type[Exception]) -> None:
        found = self.read().ended(RpcError(code, text))
        assert type(found) is kind
        assert "foo[2]" in str(found)
        if isinstance(found, ServerError):
            assert (found.code, isinstance(found, NotLeaderError)) == (code, False)

    def test_closing_partition_ends_the_read(self) -> None:
        closed = RpcError(StatusCode.FAILED_PRECONDITION, "commit log was closed")
        assert self.read().ended(closed) is Verdict.CLOSED


def test_what_is_no_message_is_the_server_s_fault() -> None:
    with pytest.raises(RpcError, match="invalid message") as caught:
        PartitionRead("foo", 0, EARLIEST, None).accept([b"\xff\xff"])
    assert caught.value.code == StatusCode.INTERNAL
