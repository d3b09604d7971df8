"""Publish rows one by one, with many rows in flight."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from liftenvelope import _native
from liftenvelope.bulk._outgoing import Written
from liftenvelope.bulk._writes.publisher import MOST_BYTES, PIECE, RowPublisher, WriteLink
from liftenvelope.bulk.errors import WriteFailedError
from liftenvelope.errors import TransportError
from liftenvelope.jetstream.publish_frames import PubAck

if TYPE_CHECKING:
    from liftenvelope.bulk._jetstream.frame import Frame
    from liftenvelope.bulk._writes.portions import Portion
    from liftenvelope.errors import LiftEnvelopeError

__all__ = ["PipelinedPublisher", "learn"]

_SEQUENCE: Final = b'"seq":'
#: Error of a replicated stream that has not yet decided about an earlier message with the same id.
_IN_PROCESS: Final = 10158


class PipelinedPublisher(RowPublisher):
    """Publishes rows with one ack per row. The subject of an ack contains the number of its row.

    Acks may come in any order. ``_acks.floor`` is the number of rows acked without a hole from the start.
    After a lost connection, publishing restarts at the floor, which needs message ids to avoid duplicates.
    Late acks of the old connection come over the new one, because the inbox is the same: the floor may pass
    ``_sent``, and ``_take`` moves that along. So ``floor <= _sent <= _reached``.

    Args:
        link: Connection to publish over.
        message_id: Prefix of the message ids; None for no ids.
        max_in_flight: Maximum number of rows in flight.
    """

    def __init__(self, link: WriteLink, *, message_id: str | None, max_in_flight: int) -> None:
        super().__init__(link)
        ident = b"" if message_id is None else f"Nats-Msg-Id: {message_id}-".encode()
        self._form = _native.put.Form(link.inbox, b"", ident)
        self._again = message_id is not None
        self._limit = max_in_flight
        self._acks = _native.put.Acks(link.inbox, link.sid, 0, max_in_flight, False)
        # Portions with rows unsent or in flight; (end row, bytes) of each piece in flight.
        self._portions: deque[Portion] = deque()
        self._pieces: deque[tuple[int, int]] = deque()
        self._in_flight = 0
        # Rows before _sent need not be sent over this connection. Rows before _reached were sent before.
        self._sent = self._reached = 0
        self._stop = self._bytes = self._denied = 0

    @property
    def acked(self) -> int:
        """Number of rows known to be stored."""
        return self._acks.acked

    @property
    def unknown(self) -> int:
        """Number of rows sent over any connection and neither acked nor denied."""
        return self._reached - self.acked - self._denied

    def add(self, portion: Portion) -> None:
        """Publish a portion. On return, at most ``max_in_flight`` rows lack their ack."""
        self._check(portion, self._form)
        self._portions.append(portion)
        self._stop, self._bytes = portion.stop, self._bytes + portion.size
        self._guarded(self._look)
        self._guarded(self._send)

    def finish(self) -> Written:
        """Wait for all acks and return the outcome."""
        self._guarded(self._send_all)
        acks = self._acks
        offsets = {0: (acks.first - 1, acks.last - 1)} if acks.acked else {}
        return Written(acks.acked, self._bytes, acks.duplicates, offsets)

    def _lost(self) -> bool:
        return self._again or not self.unknown

    def _connected(self) -> None:
        self._acks.follow(self._link.inbox, self._link.sid)
        self._sent, self._in_flight = self._acks.floor, 0
        self._pieces.clear()

    def _settle_denied(self) -> None:
        """Wait until each row is acked or denied: the server answers the ones and reports the others."""

        def known() -> bool:
            self._denied = self._link.socket.denied
            self._take()
            return self.unknown == 0

        self._link.wait_past_denials(known)

    def _failed(self, error: LiftEnvelopeError, hint: str = "") -> WriteFailedError:
        if self.unknown and not self._again:
            hint = "; with message_id=... rows could be sent again safely"
        return super()._failed(error, hint)

    def _look(self) -> None:
        """Notice that the connection has ended while no rows came, before more are sent."""
        self._link.look(self._take)

    def _send(self) -> None:
        while self._sent < self._stop:
            room = self._limit - (self._sent - self._acks.floor)
            if room <= 0 or self._in_flight >= MOST_BYTES:
                self._wait(self._limit * 3 // 4, MOST_BYTES // 2)
                continue
            portion = self._portion_of(self._sent)
            commands, at = portion.commands, self._sent - portion.first
            stop = commands.reach(at, min(commands.length, at + room), PIECE)
            data = commands.encode(at, stop, self._form, self._sent, self._sent)
            self._sent = portion.first + stop
            self._reached = max(self._reached, self._sent)
            self._pieces.append((self._sent, len(data)))
            self._in_flight += len(data)
            self._link.socket.send(data)
            self._link.look(self._take)

    def _send_all(self) -> None:
        self._send()
        self._wait(0, 0)

    def _portion_of(self, row: int) -> Portion:
        return next(portion for portion in self._portions if portion.stop > row)

    def _wait(self, rows: int, nbytes: int) -> None:
        """Wait until at most ``rows`` rows and ``nbytes`` bytes are in flight."""

        def enough() -> bool:
            self._take()
            return self._sent - self._acks.floor <= rows and self._in_flight <= nbytes

        self._link.wait(enough)

    def _take(self) -> bool:
        """Consume received data, which is nearly always acks; release pieces and portions below the floor."""
        socket, acks = self._link.socket, self._acks
        while True:
            socket.start = acks.feed(socket.view, socket.start, socket.end)
            if (frame := socket.next_frame()) is None:
                break
            self._take_frame(frame)
        self._sent = max(self._sent, acks.floor)
        while self._pieces and self._pieces[0][0] <= acks.floor:
            self._in_flight -= self._pieces.popleft()[1]
        while self._portions and self._portions[0].stop <= acks.floor:
            self._portions.popleft()
        return True

    def _take_frame(self, frame: Frame) -> None:
        number = frame.number
        if number is None or not self._acks.floor <= number < self._sent:
            return
        ack = self._link.read(frame, number)
        if not isinstance(ack, PubAck):
            if self._again and self._is_leaderless(ack, self._portion_of(number), number):
                raise ack
            if ack.err_code == _IN_PROCESS:
                raise TransportError(
                    f"row {number} was sent before, and the stream has not stored it yet: {ack}"
                )
            raise self._refused(number, ack, self.unknown - 1)
        self._acks.take(number, ack.sequence, ack.duplicate)
        learn(self._acks, ack, frame.payload)


def learn(acks: _native.put.Acks, ack: PubAck, data: bytes) -> None:
    """Teach the fast parser acks of this form, which differ only in their sequence."""
    head = data[: data.rfind(_SEQUENCE) + len(_SEQUENCE)]
    if head.endswith(_SEQUENCE) and data == b"%b%d}" % (head, ack.sequence):
        acks.learn(head)
