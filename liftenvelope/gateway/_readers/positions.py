"""Resolves the start and stop of a subscription to offsets. Sans-io."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftenvelope._pb import api_pb2
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.gateway._partitions.storage import PartitionState

__all__ = ["END_OF_READONLY", "STOP_REACHED", "Bounds", "bounds"]

#: Status texts of Liftbridge. Clients recognize the reason by them.
STOP_REACHED = "Stop offset reached"
END_OF_READONLY = "End of readonly partition"
STREAM_IS_EMPTY = "Stream is empty"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets that a subscription reads.

    Attributes:
        start: First offset to read.
        stop: Offset of the last message; None to read without end.
        ends: Whether all messages up to ``stop`` existed when the subscription began. Offsets that are
            missing then were removed and will not come. Default False.
        text: Status text at the end. Default :data:`STOP_REACHED`.
        at_end: Whether no message was at the start or after it when the subscription began. Default False.
    """

    start: int
    stop: int | None = None
    ends: bool = False
    text: str = STOP_REACHED
    at_end: bool = False

    @property
    def is_over(self) -> bool:
        """True if the range is empty: the stop is before the start."""
        return self.stop is not None and self.stop < self.start


def bounds(
    request: api_pb2.SubscribeRequest,
    state: PartitionState,
    *,
    readonly: bool,
    start_at: int | None = None,
    stop_before: int | None = None,
) -> Bounds:
    """Return the offsets that a subscription reads.

    Args:
        request: The request of the client.
        state: Current state of the partition.
        readonly: Whether the partition is readonly, so that no messages are added.
        start_at: For a start by time: offset of the first message at or after that time. Default None.
        stop_before: For a stop by time: offset of the first message after that time. Default None.

    Returns:
        The offsets. The range is over only if the partition is readonly and ends before the start.

    Raises:
        RpcError: RESOURCE_EXHAUSTED: the partition is empty, and the stop is its newest message or a time.
            INVALID_ARGUMENT: the stop is before the start, or the start or stop position is unknown.
    """
    start = _start(request, state, start_at)
    stop, ends, text = _stop(request, state, readonly, stop_before)
    last = request.stopOffset if request.stopPosition == api_pb2.STOP_OFFSET else stop
    if last is not None and last < start and (text != END_OF_READONLY or last != stop):
        text = f"Stop offset is before start offset: {last} < {start}"
        raise RpcError(StatusCode.INVALID_ARGUMENT, text)
    # A start past the end becomes the next message, as in Liftbridge. Readers rely on that: their cursor may
    # be from an earlier stream of the same name.
    return Bounds(min(start, state.newest + 1), stop, ends, text, at_end=start > state.newest)


def _start(request: api_pb2.SubscribeRequest, state: PartitionState, start_at: int | None) -> int:
    """Return the first offset to read. It is not before the oldest message, but may be past the end."""
    match request.startPosition:
        case api_pb2.NEW_ONLY:
            return state.newest + 1
        case api_pb2.OFFSET:
            wanted = request.startOffset
        case api_pb2.EARLIEST:
            wanted = state.oldest
        case api_pb2.LATEST:
            wanted = state.newest
        case api_pb2.TIMESTAMP:
            assert start_at is not None
            wanted = start_at
        case unknown:
            raise RpcError(StatusCode.INVALID_ARGUMENT, f"Unknown StartPosition {unknown}")
    return max(wanted, state.oldest, 0)


def _stop(
    request: api_pb2.SubscribeRequest, state: PartitionState, readonly: bool, stop_before: int | None
) -> tuple[int | None, bool, str]:
    """Return the stop offset, whether all messages up to it exist already, and the status text at the end."""
    newest = state.newest
    match request.stopPosition:
        case api_pb2.STOP_ON_CANCEL:
            return (newest, True, END_OF_READONLY) if readonly else (None, False, STOP_REACHED)
        case api_pb2.STOP_OFFSET:
            stop = request.stopOffset
        case api_pb2.STOP_LATEST:
            if state.is_empty:
                raise RpcError(StatusCode.RESOURCE_EXHAUSTED, STREAM_IS_EMPTY)
            stop = newest
        case api_pb2.STOP_TIMESTAMP:
            if state.is_empty:
                raise RpcError(StatusCode.RESOURCE_EXHAUSTED, STREAM_IS_EMPTY)
            assert stop_before is not None
            stop = stop_before - 1
        case unknown:
            raise RpcError(StatusCode.INVALID_ARGUMENT, f"Unknown StopPosition {unknown}")
    if readonly and stop > newest:
        return newest, True, END_OF_READONLY
    return stop, stop <= newest, STOP_REACHED
