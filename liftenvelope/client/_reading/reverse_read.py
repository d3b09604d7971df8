"""Reverse read, from higher to lower offsets (``SubscribeRequest.reverse``, servers from 2026 on).

Older servers ignore the field and silently read forwards. The requests are built so that this shows:

1. The first call reads the first message alone, forwards. If that message was removed, Liftbridge sends all
   later ones, because only the message at the stop ends a call. The read then makes the next call at once.
2. The next call asks for the messages below it, with a stop offset one above the start offset. A server that
   can read backwards ignores that stop. An older server sends the message at the start, then the one at the
   stop, which the first call has returned already.

Servers do not support a stop for reverse reads, so the stop is applied here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope._pb import api_pb2
from liftenvelope.client.partition_read import PartitionRead, Verdict, read_messages, was_stopped
from liftenvelope.client.positions import At
from liftenvelope.errors import LiftEnvelopeError, UnsupportedByServerError, UsageError
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.client.metadata import PartitionInfo
    from liftenvelope.client.positions import StartAt, StopAt
    from liftenvelope.envelope import Message

__all__ = ["ReverseRead", "check_reverse"]

_AT_THE_END = "EOF"
_NOTHING = "segment not found"


def check_reverse(start: StartAt, stop: StopAt | None) -> None:
    """Check that start and stop suit a reverse read.

    Raises:
        UsageError: A reverse read can't begin at ``start``, or can't end at ``stop``.
    """
    if start.at not in (At.LATEST, At.OFFSET):
        raise UsageError("start must be 'latest' or an offset with reverse=True")
    if stop is not None and stop.at is At.LATEST:
        raise UsageError("stop must be an offset or a time with reverse=True: the lowest to read")


class ReverseRead(PartitionRead):
    """State of a reverse read. ``next_offset`` is the highest offset that is still to be read."""

    reverse = True
    # False for the first call, which reads one message forwards; true for the calls after it.
    _backwards = False
    # Current call: requested start, last offset received, whether it overshot the requested start.
    _asked: int | None = None
    _last: int | None = None
    _came_forwards = False

    @property
    def position(self) -> int | None:
        """Highest offset that is still to be read; None if it is unknown, or the read got below offset 0."""
        return None if self.next_offset is None or self.next_offset < 0 else self.next_offset

    @property
    def ends_at_newest(self) -> bool:
        """False: a reverse read ends at a lower offset."""
        return False

    @property
    def highest_offset(self) -> int | None:
        """Highest offset that is still to be read."""
        return self.next_offset

    @property
    def needs_info(self) -> bool:
        """True: a reverse read begins at the high watermark or below."""
        return True

    def begin(self, start: StartAt, info: PartitionInfo | None, first: int | None = None) -> None:  # noqa: ARG002
        """Resolve the start: the requested offset, or the high watermark if that is lower."""
        assert info is not None
        wanted = start.number if start.at is At.OFFSET else info.high_watermark
        self.next_offset = min(wanted, info.high_watermark)
        self._look_for_end()

    def request(self, *, resume: bool) -> api_pb2.SubscribeRequest:
        """Return the request for a call that continues the read."""
        assert self.next_offset is not None
        request = self._request(resume=resume)
        request.startPosition, request.startOffset = api_pb2.OFFSET, self.next_offset
        request.stopPosition, request.stopOffset = api_pb2.STOP_OFFSET, self.next_offset + self._backwards
        request.reverse = self._backwards
        self._asked, self._last, self._came_forwards = self.next_offset, None, False
        self.needs_call = False
        return request

    def accept(self, payloads: list[bytes]) -> list[bytes]:
        """Return the received messages that belong to the read, in order, and advance the read.

        Raises:
            RpcError: A payload is not a message.
            ServerProtocolError: An offset is negative.
            UnsupportedByServerError: The offsets ascend: the server can't read backwards.
        """
        messages = read_messages(payloads)
        self._check_lowest(min(message.offset for message in messages))
        pairs = zip(payloads, messages, strict=True)
        return [payload for payload, message in pairs if self._is_wanted(message)]

    def _is_wanted(self, message: Message) -> bool:
        assert self.next_offset is not None
        if self.needs_call or self.finished:
            return False
        if self._last is not None and message.offset > self._last:
            raise self._unsupported()
        self._last = message.offset
        if message.offset > self.next_offset:
            if self._backwards:
                # Either the server reads forwards, or no message is left below: the end of the call tells.
                self._came_forwards = True
            else:
                self._turn_back()
                self.needs_call = not self.finished
            return False
        if self._stop_ns is not None and message.timestamp_ns < self._stop_ns:
            self.finished = True
            return False
        if self._stop_offset is not None and message.offset < self._stop_offset:
            self.finished = True
            return False
        self.next_offset = message.offset - 1
        if self._backwards:
            self._look_for_end()
        return True

    def _look_for_end(self) -> None:
        assert self.next_offset is not None
        self.finished = self.next_offset < max(self._stop_offset or 0, 0)

    def fell_silent(self, *, is_empty: bool) -> None:
        """Note that a call sends nothing, or nothing more than a message above its start."""
        super().fell_silent(is_empty=is_empty)
        if self._came_forwards and not is_empty:
            raise self._unsupported()  # a server that reads backwards has ended the call

    def _unsupported(self) -> UnsupportedByServerError:
        text = "the server reads forwards only: reverse needs a Liftbridge server from 2026 on"
        return UnsupportedByServerError(f"{self.name}: {text}")

    def _refused(self, error: RpcError) -> Verdict | LiftEnvelopeError:
        at_the_end = error.code == StatusCode.UNKNOWN and error.description == _AT_THE_END
        if at_the_end or (error.code == StatusCode.INTERNAL and _NOTHING in error.description):
            return Verdict.FINISHED
        found = super()._refused(error)
        if (
            not was_stopped(error)
            and found is not Verdict.FINISHED
            and error.code != StatusCode.RESOURCE_EXHAUSTED
        ):
            return found
        if self._came_forwards:
            return self._unsupported()
        return self._stopped()

    def _stopped(self) -> Verdict | LiftEnvelopeError:
        """Handle a call that reached its stop: the first call, or one on a read-only partition."""
        if not self._backwards:
            self._turn_back()
        elif self._last is None:
            return self._unsupported()
        return Verdict.FINISHED if self.finished else Verdict.GO_ON

    def _turn_back(self) -> None:
        """Read backwards from now on: below the start also if there is no message at the start."""
        assert self.next_offset is not None
        self._backwards = True
        if self.next_offset == self._asked:
            self.next_offset -= 1
        self._look_for_end()
