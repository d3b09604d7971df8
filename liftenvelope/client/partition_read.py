"""State of one read of one partition: builds requests, filters messages, detects the end.

Sans-io: :mod:`liftenvelope.client._reading.subscription` makes the calls. ``ended`` classifies the end of
each call. Several ends share a status code and differ only in the text of the status.

A read spans several calls if calls are lost. The invariant is ``next_offset``: every message below it was
handed on or is not wanted, and no message from there on was handed on. A new call starts there, so messages
are neither lost nor repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from liftenvelope import _native
from liftenvelope._pb import api_pb2
from liftenvelope.client.failures import call_error, is_denial
from liftenvelope.client.positions import At, StartAt, StopAt, offset_after
from liftenvelope.client.retries import Fate, fate_of
from liftenvelope.errors import (
    EnvelopeError,
    FencedError,
    LiftEnvelopeError,
    PartitionPausedError,
    ReadonlyPartitionError,
    ServerProtocolError,
    StreamDeletedError,
    TransportError,
)
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.client.metadata import PartitionInfo, StreamInfo
    from liftenvelope.envelope import Message

__all__ = [
    "GroupIdentity",
    "PartitionRead",
    "Verdict",
    "is_worth_another_look",
    "read_messages",
    "was_stopped",
]

_STOPPED: Final = ("Stop offset reached", "Stream is empty", "Stop offset is before start offset")
# Retention removed the segment that was being read (liftbridge commitlog/delete_cleaner.go). A pause closes
# segments too, but ends the call with another text.
_CLEANED: Final = "segment has been closed"


@dataclass(frozen=True, slots=True)
class GroupIdentity:
    """Consumer group and member that a subscription is made for.

    Attributes:
        group: Name of the group.
        epoch: Group epoch that the member knows.
        consumer: Id of the member.
    """

    group: str
    epoch: int
    consumer: str


class Verdict(Enum):
    """Consequence of the end of a call for the read."""

    #: Every message up to the stop was received.
    FINISHED = auto()
    #: Make another call at once.
    GO_ON = auto()
    #: The connection, the leader or the server is gone: make another call as soon as a broker serves it.
    LOST = auto()
    #: The server closed the partition: it is paused, or the server is stopping.
    CLOSED = auto()


def read_messages(payloads: list[bytes]) -> list[Message]:
    """Decode messages that a server sent, without the headers that only servers write.

    Raises:
        RpcError: A payload is not a message.
    """
    try:
        return _native.env.read_messages(payloads)
    except EnvelopeError as exc:
        raise RpcError(StatusCode.INTERNAL, f"the server sent an invalid message: {exc}") from exc


class PartitionRead:
    """State of a read from lower to higher offsets, over any number of calls.

    Args:
        stream: Name of the stream.
        partition: Number of the partition.
        start: Start of the read.
        stop: End of the read, None for no end.
        read_isr_replica: Whether a replica other than the leader may serve the read.
        group: Group member that the read is for, None for no group.

    Attributes:
        next_offset: Next offset to read; None while only the server knows the start.
        reached: Highest offset that the partition is known to have had, None if unknown.
        finished: Whether every message up to the stop was received.
        created_ns: Creation time of the stream in ns since 1970; 0 until it is known.
        is_replaced: Whether :meth:`check_stream` found another stream.
    """

    reverse = False
    #: True if the read needs another call than the open one.
    needs_call = False

    def __init__(
        self,
        stream: str,
        partition: int,
        start: StartAt,
        stop: StopAt | None,
        *,
        read_isr_replica: bool = False,
        group: GroupIdentity | None = None,
    ) -> None:
        self.stream = stream
        self.partition = partition
        self.start = start
        self.stop = stop
        self.read_isr_replica = read_isr_replica
        self.group = group
        self.finished = False
        self.created_ns = 0
        self.is_replaced = False
        self._has_read = False
        # Newest offset of the partition when the read began.
        self._counted = -1
        self.reached: int | None = None
        self.next_offset: int | None = start.number if start.at is At.OFFSET else None
        self._stop_offset = stop.number if stop is not None and stop.at is At.OFFSET else None
        self._stop_ns = stop.number if stop is not None and stop.at is At.TIME else None
        # Start time in ns; older messages are dropped. None after the first message at or after that time.
        self._since_ns: int | None = None

    @property
    def name(self) -> str:
        """Stream and partition, as error texts name them."""
        return f"{self.stream}[{self.partition}]"

    @property
    def position(self) -> int | None:
        """Offset at which another read continues this one; None if it is unknown, or nothing is left."""
        return self.next_offset

    @property
    def ends_at_newest(self) -> bool:
        """True if the read ends at the message that was the newest one when it began, or before."""
        return self.stop is not None and self.stop.at is not At.OFFSET

    @property
    def needs_info(self) -> bool:
        """True if :meth:`begin` needs the state of the partition."""
        return self.ends_at_newest or self.start.at not in (At.EARLIEST, At.OFFSET)

    @property
    def highest_offset(self) -> int | None:
        """Highest offset to read, None for no end."""
        return self._stop_offset

    def begin(self, start: StartAt, info: PartitionInfo | None, first: int | None = None) -> None:
        """Resolve start and stop to offsets, as far as they are known, so that a lost call loses nothing.

        Args:
            start: Start of the read; a cursor must be resolved already.
            info: State of the partition; required if :attr:`needs_info` is true.
            first: For a start by time, the offset of the first message at or after that time, None if
                unknown.

        Raises:
            ServerProtocolError: The newest offset is the largest one, so that no new message can follow.
        """
        self.start = start
        if start.at is At.OFFSET:
            self.next_offset = start.number
        elif start.at is At.TIME:
            self._since_ns, self.next_offset = start.number, first
        if info is None:
            return
        # The high watermark, not the newest offset: a new leader may not have uncommitted messages.
        self.reached, self._counted = info.high_watermark, info.newest_offset
        if start.at is At.NEW:
            self.next_offset = offset_after(info.newest_offset, self.name)
        elif start.at is At.LATEST:
            self.next_offset = max(info.newest_offset, 0)
        if self.ends_at_newest:
            # Servers do not send messages beyond the high watermark.
            self._stop_offset = info.high_watermark
            self.finished = info.high_watermark < (self.next_offset or 0)

    def check_stream(self, stream: StreamInfo) -> None:
        """Check that a stream is the one that the read began with.

        A stream that was deleted and created again has other messages at the offsets of the first one. Its
        creation time is decided once for all brokers, which keep it over restarts. A broker that is behind,
        such as one that has just started, may still know an earlier stream of the name: that proves nothing.

        Args:
            stream: Metadata of the stream, as of now.

        Raises:
            StreamDeletedError: It is another stream of that name.
        """
        if 0 < self.created_ns < stream.created_ns:
            self.is_replaced = True
            text = f"{self.name}: the stream was deleted, and another one of that name was created since"
            raise StreamDeletedError(StatusCode.NOT_FOUND, f"{text}: read that one from its start")

    def shortened(self, newest: int) -> bool:
        """Move the start back if the partition has lost messages before anything was read.

        A start at the end of a partition may have counted messages that were never committed. If their leader
        was lost, later messages have taken their offsets.

        Args:
            newest: Newest offset of the partition now.

        Returns:
            True if the start was moved.
        """
        if self._has_read or self.start.at not in (At.NEW, At.LATEST) or newest >= self._counted:
            return False
        self.next_offset = 0 if self.reached is None else self.reached + 1
        return True

    def request(self, *, resume: bool) -> api_pb2.SubscribeRequest:
        """Return the request for a call that continues the read."""
        request = self._request(resume=resume)
        if self.next_offset is not None:
            request.startPosition, request.startOffset = api_pb2.OFFSET, self.next_offset
        elif self.start.at is At.TIME:
            request.startPosition, request.startTimestamp = api_pb2.TIMESTAMP, self.start.number
        else:
            request.startPosition = api_pb2.EARLIEST
        if self._stop_offset is not None:
            request.stopPosition, request.stopOffset = api_pb2.STOP_OFFSET, self._stop_offset
        return request

    def _request(self, *, resume: bool) -> api_pb2.SubscribeRequest:
        request = api_pb2.SubscribeRequest(
            stream=self.stream, partition=self.partition, readISRReplica=self.read_isr_replica, resume=resume
        )
        if self.group is not None:
            request.consumer.groupId = self.group.group
            request.consumer.groupEpoch = self.group.epoch
            request.consumer.consumerId = self.group.consumer
        return request

    def accept(self, payloads: list[bytes]) -> list[bytes]:
        """Return the received messages that belong to the read, in order, and advance the read.

        Args:
            payloads: Encoded messages, at least one.

        Raises:
            RpcError: A payload is not a message.
            ServerProtocolError: An offset is negative, or the largest one, after which a read can't continue.
        """
        first, last = read_messages([payloads[0], payloads[-1]])
        self._check_lowest(min(first.offset, last.offset))
        # Not of the last alone: if a server sends offsets again, the read must not go back to them.
        after = offset_after(max(first.offset, last.offset), self.name)
        if self.next_offset is not None and first.offset < self.next_offset:
            # The server moves a start beyond the high watermark back to it (liftbridge commitlog/reader.go).
            payloads = self._from(payloads, self.next_offset)
        if self._since_ns is not None and payloads:
            payloads = self._since(payloads, self._since_ns)  # the server moves these starts back too
            self._since_ns = None if payloads else self._since_ns
        if self._is_beyond(last) or last.offset == self._stop_offset:
            payloads = self._cut(payloads)
            self.finished = True
        if payloads or self.next_offset is not None:
            self.next_offset = max(self.next_offset or 0, after)
        self.reached = max(self.reached or 0, last.offset)
        self._has_read = True
        return payloads

    def _check_lowest(self, offset: int) -> None:
        if offset < 0:
            raise ServerProtocolError(f"{self.name}: offsets must be 0 or more, got {offset}")

    def _from(self, payloads: list[bytes], offset: int) -> list[bytes]:
        messages = zip(payloads, read_messages(payloads), strict=True)
        return [payload for payload, message in messages if message.offset >= offset]

    def _since(self, payloads: list[bytes], time_ns: int) -> list[bytes]:
        for index, message in enumerate(read_messages(payloads)):
            if message.timestamp_ns >= time_ns:
                return payloads[index:]
        return []

    def _is_beyond(self, message: Message) -> bool:
        # Greater, not equal: a compacted log may have no message at the stop offset.
        return (self._stop_offset is not None and message.offset > self._stop_offset) or (
            self._stop_ns is not None and message.timestamp_ns > self._stop_ns
        )

    def _cut(self, payloads: list[bytes]) -> list[bytes]:
        for index, message in enumerate(read_messages(payloads)):
            if self._is_beyond(message):
                return payloads[:index]
        return payloads

    def fell_silent(self, *, is_empty: bool) -> None:
        """Note that a call sends nothing.

        Args:
            is_empty: Whether no message is left up to :attr:`highest_offset`.

        Raises:
            UnsupportedByServerError: The server can't read backwards.
        """
        self.finished = is_empty

    def ended(self, error: RpcError | TransportError | None) -> Verdict | LiftEnvelopeError:
        """Classify the end of a call: return the verdict, or the error to raise.

        Args:
            error: Error of the call; None for status OK.
        """
        if error is None:
            # The client did not ask for this end. For a group member, it means that the member was fenced.
            # Without a group, the server is stopping.
            taken = f"{self.name}: another consumer has taken the partition over"
            return FencedError(taken) if self.group is not None else Verdict.LOST
        if isinstance(error, TransportError) or fate_of(error) is not Fate.REFUSED:
            return Verdict.LOST
        return self._refused(error)

    def _refused(self, error: RpcError) -> Verdict | LiftEnvelopeError:
        has_end = self._stop_offset is not None
        stopped = was_stopped(error)
        if stopped and has_end:
            return Verdict.FINISHED
        if error.code == StatusCode.UNKNOWN and _CLEANED in error.description:
            return Verdict.GO_ON
        found = call_error("Subscribe", error, self.name)
        if stopped:
            # At the newest message of a read-only partition, the server stops even a read without an end.
            found = ReadonlyPartitionError(error.code, f"{self.name}: end of readonly partition")
        if isinstance(found, ReadonlyPartitionError) and self.ends_at_newest:
            return Verdict.FINISHED
        if isinstance(found, PartitionPausedError) and error.code == StatusCode.FAILED_PRECONDITION:
            return Verdict.CLOSED
        return found


def was_stopped(error: RpcError | TransportError) -> bool:
    """Return True if a subscription with a stop was ended because no message is left up to the stop."""
    return isinstance(error, RpcError) and any(text in error.description for text in _STOPPED)


def is_worth_another_look(error: RpcError | TransportError) -> bool:
    """Return True if a refused subscription may succeed later.

    Retention closes segments before it removes them, and a subscription to a closed segment fails.
    """
    if fate_of(error) is not Fate.REFUSED:
        return True
    assert isinstance(error, RpcError)
    if is_denial(error):
        return False
    return error.code in (StatusCode.FAILED_PRECONDITION, StatusCode.INTERNAL, StatusCode.UNKNOWN)
