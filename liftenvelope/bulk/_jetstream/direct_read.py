"""Read one range of a JetStream stream by direct requests (ADR-31, nats-server 2.11), without a consumer.

Each request asks for the messages from an offset on, up to a number of bytes. Any server with a copy of the
stream or of a mirror may answer, including one that lags or has fewer messages. So before a message counts as
missing, the leader is asked whether it has the message.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from liftenvelope import _native
from liftenvelope.bulk._jetstream.consumer_read import ConsumerRead
from liftenvelope.bulk._jetstream.frame import claimed_size
from liftenvelope.errors import (
    InternalError,
    JetStreamError,
    MessageNotFoundError,
    NoJetStreamError,
    StreamMessageTooLargeError,
    TransportError,
    UnsupportedByServerError,
)
from liftenvelope.jetstream.api import natural

if TYPE_CHECKING:
    from liftenvelope.bulk._engine.crew import Outlet
    from liftenvelope.bulk._engine.plan import BatchPlan
    from liftenvelope.bulk._jetstream.frame import Frame
    from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
    from liftenvelope.bulk._jetstream.requests import JetStreamRequests
    from liftenvelope.bulk.ranges import Range

__all__ = ["DirectRead", "next_stored"]

#: Limits of one request. The server buffers at most this many bytes for us.
_REQUEST_BYTES: Final = 4 * 1024 * 1024
_REQUEST_ROWS: Final = 100_000
#: Seconds to wait for data before checking whether the read must end.
_LOOK: Final = 1.0
_END, _NOT_FOUND, _NO_RESPONDERS = 204, 404, 503


def next_stored(source: JetStreamRequests, place: dict[str, Any]) -> int | None:
    """Return the offset of the leader's first message at or after a position; None for none.

    Args:
        source: The stream.
        place: Position, as the field "seq" or "start_time" of the request for a message.
    """

    def offset(answer: dict[str, Any]) -> int:
        return natural(answer["message"]["seq"]) - 1

    try:
        return source.ask(offset, f"STREAM.MSG.GET.{source.stream}", {**place, "next_by_subj": ">"})
    except MessageNotFoundError:
        return None


class DirectRead(ConsumerRead):
    """Reads one range by direct requests, in a thread of its own."""

    def __init__(self, source: JetStreamRequests, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
        super().__init__(source, span, plan, outlet)
        self._frames = _native.direct.DirectFrames(source.stream.encode())
        self._requests = 0

    def _open(self, link: NatsSocket) -> bool:
        """Start at the next offset; return True if anything is left to read."""
        self._check_end(link)
        self._pulls.moved()
        self._inbox = self._source.access.new_inbox()
        self._sid = link.subscribe(f"{self._inbox}.*")
        self._rows.follow(self._sid, self._next, self._span.stop)
        self._frames.follow(self._sid)
        return self._next < self._span.stop

    def _pump(self, link: NatsSocket) -> None:
        while self._next < self._span.stop:
            before = self._next
            if not self._ask(link):
                break
            if self._next == before:
                self._unfruitful(link, "answered that nothing is left, and offsets are left")
                self._outlet.pause(max(0.0, self._pulls.paused_until - time.monotonic()))
        self._flush(self._span.stop)

    def _ask(self, link: NatsSocket) -> bool:
        """Send one request and take all its answers; return True if more messages may follow."""
        if link.leaving:
            raise TransportError(f"{link.address} is about to stop")
        self._requests += 1
        batch = min(self._span.stop - self._next, _REQUEST_ROWS)
        request = {"seq": self._next + 1, "batch": batch, "max_bytes": _REQUEST_BYTES}
        subject = f"{self._source.prefix}.DIRECT.GET.{self._source.stream}"
        link.publish(subject, json.dumps(request).encode(), f"{self._inbox}.{self._requests}")
        self._quiet_since = self._moved_at = time.monotonic()
        while (frame := self._next_answer(link)) is None:
            self._hand_out(block=True)
            self._check_moved(link)
            if link.fill(_LOOK):
                self._quiet_since = link.last_heard
            else:
                self._check_silence(link)
        return self._goes_on(frame)

    def _next_answer(self, link: NatsSocket) -> Frame | None:
        """Take buffered messages and return the status that ends the request; None before it arrives."""
        while True:
            data, link.start = self._frames.take(link.view, link.start, link.end)
            self._add(data)
            was_there, frame = link.handle_next()
            if not was_there:
                return None
            if frame is not None and frame.subject == f"{self._inbox}.{self._requests}":
                return frame

    def _add(self, data: bytes) -> None:
        """Add messages to the batch; start a new batch when it is full."""
        rows, states = self._rows, _native.bulk
        at = 0
        while at < len(data):
            state, at = rows.feed(data, at, len(data))
            self._reached(rows.next_offset)
            if state == states.FULL:
                self._flush()
            elif state == states.DONE:
                return
            elif state == states.LOST:
                raise TransportError(
                    f"{self._source.stream}: answers came in disorder at offset {self._next}"
                )
            elif state != states.MORE:
                size, limit = claimed_size(data, at, len(data)), self._source.access.max_message_bytes
                if size > limit:
                    text = f"{self._source.stream}: a message of {size} bytes; max_message_bytes is {limit}"
                    raise StreamMessageTooLargeError(0, text)
                raise InternalError(f"answers were not rewritten as messages: {data[at : at + 40]!r}")

    def _goes_on(self, frame: Frame) -> bool:
        """Interpret the status that ends a request; return True if more messages may follow.

        Raises:
            TransportError: The answering server lacks a message that the leader has.
            UnsupportedByServerError: The server is older than 2.11.
            NoJetStreamError: No server answers direct requests for the stream.
            JetStreamError: The server refused the request.
        """
        status, stream = frame.status, self._source.stream
        if status is None:
            raise UnsupportedByServerError(f"{stream}: the server sends one message alone: batches need 2.11")
        if status.code == _END:
            return True
        if status.code == _NO_RESPONDERS:
            raise NoJetStreamError(status.code, f"nothing answers directly for stream {stream!r}")
        if status.code != _NOT_FOUND:
            raise JetStreamError(status.code, f"{stream}: {status.description}")
        there = next_stored(self._source, {"seq": self._next + 1})
        if there is not None and there < self._span.stop:
            raise TransportError(f"{stream}: a server answered that has nothing yet of offset {there}")
        return False

    def _flush(self, stop: int = -1) -> None:
        """End the batch. If a mirror answered, first check that the leader lacks the messages in its gaps.

        If the leader has one of these messages, or does not answer, the batch is discarded and the read
        resumes at its beginning.

        Raises:
            TransportError: A mirror lacks a message that the leader has.
            CallTimeoutError, NoJetStreamError: The leader did not answer.
        """
        begin, pieces, gaps = self._flushed, len(self._ready), len(self._gaps)
        super()._flush(stop)
        if not self._frames.foreign:
            return
        try:
            self._check_mirrored(self._gaps[gaps:])
        except self._passing:
            while len(self._ready) > pieces:
                self._ready.pop()
            del self._gaps[gaps:]
            self._next = self._flushed = begin
            raise
        self._frames.foreign = False

    def _check_mirrored(self, gaps: list[tuple[int, int]]) -> None:
        for start, end in gaps:
            there = next_stored(self._source, {"seq": start + 1})
            if there is not None and there < end:
                raise TransportError(f"{self._source.stream}: a mirror answered that lacks offset {there}")
