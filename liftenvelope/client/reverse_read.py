"""A read from higher to lower offsets (``SubscribeRequest.reverse``, servers from 2026 on).

Servers before that ignore the field and read forwards without a word. So it is asked in a way that gives them
away: the newest message is read on its own, forwards; then the ones before it are asked for with a stop one
above the start. A server that can read backwards ignores such a stop; one that can't sends the message at the
start, then the one at the stop, which had come already. Stops are watched here: servers have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope._pb import api_pb2
from liftenvelope.client.partition_read import PartitionRead, Verdict, read_messages
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
    """Make sure that a read can be done backwards.

    Raises:
        UsageError: It begins or ends where a read backwards can't.
    """
    if start.at not in (At.LATEST, At.OFFSET):
        raise UsageError("reverse: start must be 'latest' or an offset")
    if stop is not None and stop.at is At.LATEST:
        raise UsageError("reverse: stop must be an offset or a time, the lowest to be read")


class ReverseRead(PartitionRead):
    """The state of a read backwards. ``next_offset`` is the highest that is wanted still."""

    reverse = True
    # Whether the first message has been dealt with, so that calls are backwards.
    _backwards = False
    # Of this call: where it was to start, the last offset that came, and whether that was one too many.
    _asked: int | None = None
    _last: int | None = None
    _came_forwards = False

    @property
    def ends_at_newest(self) -> bool:
        """Never: it begins there."""
        return False

    @property
    def needs_info(self) -> bool:
        """Always: it begins at the high watermark at most."""
        return True

    def begin(self, start: StartAt, info: PartitionInfo | None, first: int | None = None) -> None:  # noqa: ARG002
        """Fix where it begins: at an offset, or at the high watermark if that is lower."""
        assert info is not None
        wanted = start.number if start.at is At.OFFSET else info.high_watermark
        self.next_offset = min(wanted, info.high_watermark)
        self._look_for_end()

    def request(self, *, resume: bool) -> api_pb2.SubscribeRequest:
        """Return the request for a call that goes on where the read is."""
        assert self.next_offset is not None
        request = self._request(resume=resume)
        request.startPosition, request.startOffset = api_pb2.OFFSET, self.next_offset
        request.stopPosition, request.stopOffset = api_pb2.STOP_OFFSET, self.next_offset + self._backwards
        request.reverse = self._backwards
        self._asked, self._last, self._came_forwards = self.next_offset, None, False
        return request

    def accept(self, payloads: list[bytes]) -> list[bytes]:
        """Return those of the messages that came which are to be handed on, in order.

        Raises:
            RpcError: What came is no message.
            UnsupportedByServerError: They came in the wrong order.
        """
        messages = zip(payloads, read_messages(payloads), strict=True)
        return [payload for payload, message in messages if self._is_wanted(message)]

    def _is_wanted(self, message: Message) -> bool:
        assert self.next_offset is not None
        if self._last is not None and message.offset > self._last:
            raise self._unsupported()
        self._last = message.offset
        if message.offset > self.next_offset:
            # Of a server that reads forwards; or all below it is gone, which the end will tell.
            self._came_forwards = self._backwards
            return False
        if self.finished or (self._stop_ns is not None and message.timestamp_ns < self._stop_ns):
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

    def _unsupported(self) -> UnsupportedByServerError:
        text = "the server reads forwards only: reverse needs a Liftbridge server from 2026 on"
        return UnsupportedByServerError(f"{self.name}: {text}")

    def _refused(self, error: RpcError) -> Verdict | LiftEnvelopeError:
        at_the_end = error.code == StatusCode.UNKNOWN and error.description == _AT_THE_END
        if at_the_end or (error.code == StatusCode.INTERNAL and _NOTHING in error.description):
            return Verdict.FINISHED
        found = super()._refused(error)
        if found is not Verdict.FINISHED and error.code != StatusCode.RESOURCE_EXHAUSTED:
            return found
        if self._came_forwards:
            return self._unsupported()
        return self._stopped()

    def _stopped(self) -> Verdict | LiftEnvelopeError:
        """A call reached its stop: the first one, of a single message; or one on a read-only partition."""
        if not self._backwards:
            self._backwards = True
            self._skip_missing_start()
        elif self._last is None:
            return self._unsupported()
        return Verdict.FINISHED if self.finished else Verdict.GO_ON

    def _skip_missing_start(self) -> None:
        """Go on below the start where no message had come: a compacted log may not have it."""
        assert self.next_offset is not None
        if self.next_offset == self._asked:
            self.next_offset -= 1
        self._look_for_end()
