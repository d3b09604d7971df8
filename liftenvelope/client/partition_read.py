"""One read of one partition: what to ask the server for, what to hand on, and when it is over.

No I/O: :mod:`liftenvelope.client.subscription` makes the calls. What each end of a call means is in
``ended``; servers tell several of them apart by their texts alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from liftenvelope import _native
from liftenvelope._pb import api_pb2
from liftenvelope.client.failures import call_error, is_denial
from liftenvelope.client.positions import At, StartAt, StopAt
from liftenvelope.client.retries import Fate, fate_of
from liftenvelope.errors import (
    EnvelopeError,
    FencedError,
    LiftEnvelopeError,
    PartitionPausedError,
    ReadonlyPartitionError,
    ServerProtocolError,
    TransportError,
)
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.client.metadata import PartitionInfo
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
# Retention took away the segment that was being read (liftbridge commitlog/delete_cleaner.go). A pause closes
# segments as well, but ends the call with another text.
_CLEANED: Final = "segment has been closed"


@dataclass(frozen=True, slots=True)
class GroupIdentity:
    """For which member of which group a subscription is made.

    Attributes:
        group: Name of the group.
        epoch: The generation that the member knows.
        consumer: Id of the member.
    """

    group: str
    epoch: int
    consumer: str


class Verdict(Enum):
    """What the end of a call means for the read."""

    #: All that was asked for has come.
    FINISHED = auto()
    #: Make another call at once.
    GO_ON = auto()
    #: The connection, the leader or the server is gone: make another call when that is possible again.
    LOST = auto()
    #: The server closed the partition: it is paused, or the server is stopping.
    CLOSED = auto()


def read_messages(payloads: list[bytes]) -> list[Message]:
    """Return messages as servers send them, without the headers that only servers write.

    Raises:
        RpcError: One is no message.
    """
    try:
        return _native.env.read_messages(payloads)
    except EnvelopeError as exc:
        raise RpcError(StatusCode.INTERNAL, f"the server sent what is no message: {exc}") from exc


class PartitionRead:
    """The state of a read from lower to higher offsets, over as many calls as it takes.

    Args:
        stream: Name of the stream.
        partition: Number of the partition.
        start: Where it begins.
        stop: Where it ends, None for never.
        read_isr_replica: Whether a replica that does not lead may serve it.
        group: The member of a consumer group that it is for.

    Attributes:
        next_offset: The offset that is wanted next; None where only the server knows where it begins.
        reached: The highest offset that the partition is known to have had, None for none.
        finished: Whether all that was asked for has come.
    """

    reverse = False

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
        self._has_read = False
        # The newest offset when it began.
        self._counted = -1
        self.reached: int | None = None
        self.next_offset: int | None = start.number if start.at is At.OFFSET else None
        self._stop_offset = stop.number if stop is not None and stop.at is At.OFFSET else None
        self._stop_ns = stop.number if stop is not None and stop.at is At.TIME else None
        # What is older is not wanted, before the first message of a start by time.
        self._since_ns: int | None = None

    @property
    def name(self) -> str:
        """What it reads, for the text of errors."""
        return f"{self.stream}[{self.partition}]"

    @property
    def ends_at_newest(self) -> bool:
        """Whether it goes no further than to what was the newest message when it began."""
        return self.stop is not None and self.stop.at is not At.OFFSET

    @property
    def needs_info(self) -> bool:
        """Whether :meth:`begin` must be told the state of the partition."""
        return self.ends_at_newest or self.start.at not in (At.EARLIEST, At.OFFSET)

    @property
    def stop_offset(self) -> int | None:
        """The last offset that is wanted, None for no end."""
        return self._stop_offset

    def begin(self, start: StartAt, info: PartitionInfo | None, first: int | None = None) -> None:
        """Fix where it begins and ends, as far as that can be said now, so that a lost call loses nothing.

        Args:
            start: Where it begins; a cursor has been looked up by now.
            info: The state of the partition, where it is needed.
            first: The offset of the first message that is not older than a start by time, if it was found.
        """
        self.start = start
        if start.at is At.OFFSET:
            self.next_offset = start.number
        elif start.at is At.TIME:
            self._since_ns, self.next_offset = start.number, first
        if info is None:
            return
        # Not the newest offset: what is not committed yet can be gone when the leader changes.
        self.reached, self._counted = info.high_watermark, info.newest_offset
        if start.at is At.NEW:
            self.next_offset = info.newest_offset + 1
        elif start.at is At.LATEST:
            self.next_offset = max(info.newest_offset, 0)
        if self.ends_at_newest:
            # What lies beyond the high watermark can't be seen, for as long as it lies there.
            self._stop_offset = info.high_watermark
            self.finished = info.high_watermark < (self.next_offset or 0)

    def shortened(self, newest: int) -> bool:
        """Go back in a partition that has become shorter, before anything was read; say whether it has.

        A start at the end of a partition may have counted messages that were never committed. Those that came
        after them have their offsets now, if their leader was lost.

        Args:
            newest: The newest offset of the partition.
        """
        if self._has_read or self.start.at not in (At.NEW, At.LATEST) or newest >= self._counted:
            return False
        self.next_offset = 0 if self.reached is None else self.reached + 1
        return True

    def request(self, *, resume: bool) -> api_pb2.SubscribeRequest:
        """Return the request for a call that goes on where the read is."""
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
        """Return those of the messages that came which are to be handed on, in order.

        Args:
            payloads: At least one.

        Raises:
            RpcError: What came is no message.
            ServerProtocolError: An offset is negative.
        """
        first, last = read_messages([payloads[0], payloads[-1]])
        if min(first.offset, last.offset) < 0:
            text = f"offsets must be 0 or more, got {first.offset} to {last.offset}"
            raise ServerProtocolError(f"{self.name}: {text}")
        if self.next_offset is not None and first.offset < self.next_offset:
            # A start beyond the high watermark begins there all the same (liftbridge commitlog/reader.go).
            payloads = self._from(payloads, self.next_offset)
        if self._since_ns is not None and payloads:
            payloads = self._since(payloads, self._since_ns)  # likewise
            self._since_ns = None if payloads else self._since_ns
        if self._is_beyond(last) or last.offset == self._stop_offset:
            payloads = self._cut(payloads)
            self.finished = True
        if payloads or self.next_offset is not None:
            # Not the last alone: if a server sends offsets again, the read must not go back to them.
            self.next_offset = max(self.next_offset or 0, first.offset + 1, last.offset + 1)
        self.reached = max(self.reached or 0, last.offset)
        self._has_read = True
        return payloads

    def _from(self, payloads: list[bytes], offset: int) -> list[bytes]:
        messages = zip(payloads, read_messages(payloads), strict=True)
        return [payload for payload, message in messages if message.offset >= offset]

    def _since(self, payloads: list[bytes], time_ns: int) -> list[bytes]:
        for index, message in enumerate(read_messages(payloads)):
            if message.timestamp_ns >= time_ns:
                return payloads[index:]
        return []

    def _is_beyond(self, message: Message) -> bool:
        # A stop offset can be missing from a compacted log: so not only equal ones.
        return (self._stop_offset is not None and message.offset > self._stop_offset) or (
            self._stop_ns is not None and message.timestamp_ns > self._stop_ns
        )

    def _cut(self, payloads: list[bytes]) -> list[bytes]:
        for index, message in enumerate(read_messages(payloads)):
            if self._is_beyond(message):
                return payloads[:index]
        return payloads

    def ended(self, error: RpcError | TransportError | None) -> Verdict | LiftEnvelopeError:
        """Return what the end of a call means: what to do, or the error to raise.

        Args:
            error: What the call ended with; None for status OK.
        """
        if error is None:
            # Nobody asked for this end. A member of a group was fenced; anyone else's server is stopping.
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
            # The server ends a read without an end at the newest message if the partition is read-only.
            found = ReadonlyPartitionError(error.code, f"{self.name}: end of readonly partition")
        if isinstance(found, ReadonlyPartitionError) and self.ends_at_newest:
            return Verdict.FINISHED
        if isinstance(found, PartitionPausedError) and error.code == StatusCode.FAILED_PRECONDITION:
            return Verdict.CLOSED
        return found


def was_stopped(error: RpcError | TransportError) -> bool:
    """Whether a subscription with an end was ended because nothing is left up to there."""
    return isinstance(error, RpcError) and any(text in error.description for text in _STOPPED)


def is_worth_another_look(error: RpcError | TransportError) -> bool:
    """Whether a subscription that failed may stand later: retention closes what it is about to remove."""
    if fate_of(error) is not Fate.REFUSED:
        return True
    assert isinstance(error, RpcError)
    if is_denial(error):
        return False
    return error.code in (StatusCode.FAILED_PRECONDITION, StatusCode.INTERNAL, StatusCode.UNKNOWN)
