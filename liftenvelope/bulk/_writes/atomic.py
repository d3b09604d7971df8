"""Publish rows in atomic batches (ADR-50, nats-server 2.12): the server stores all rows of a batch or none.

The headers of each row carry the id of the batch and the row's sequence in it. The last row commits the
batch. Until then the server stages the rows and answers each with an empty message. The server discards a
batch that is not committed after some seconds.

A batch begins only after the previous one is stored. So the stored rows are always whole batches from the
beginning of the data.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from liftenvelope import _native
from liftenvelope.bulk._outgoing import Written
from liftenvelope.bulk._writes.publisher import MOST_BYTES, PIECE, RowPublisher, WriteLink
from liftenvelope.errors import JetStreamError, TransportError
from liftenvelope.jetstream.publish_frames import PubAck

if TYPE_CHECKING:
    from liftenvelope.bulk._jetstream.frame import Frame
    from liftenvelope.bulk._writes.portions import Portion

__all__ = ["BATCH_ROWS", "AtomicPublisher"]

#: Maximum number of messages in a batch, unless the server is configured for fewer.
BATCH_ROWS: Final = 1_000
#: API errors: a message of the batch was lost in transit, or the server had too many batches. Nothing of the
#: batch is stored.
_INCOMPLETE: Final = 10176
_TOO_MANY: Final = 10210
#: Seconds to wait for the answer that explains such an error.
_MOMENT: Final = 0.5
#: Seconds without a newly staged row after which the batch is restarted: the stream's leader may be gone.
_SILENCE: Final = 3.0


class AtomicPublisher(RowPublisher):
    """Publishes each portion as one atomic batch.

    Args:
        link: Connection to publish over.
        message_id: Prefix of the message ids; None for no ids.
        max_in_flight: Maximum number of rows sent and not yet staged.
    """

    def __init__(self, link: WriteLink, *, message_id: str | None, max_in_flight: int) -> None:
        super().__init__(link)
        self._ident = b"" if message_id is None else f"Nats-Msg-Id: {message_id}-".encode()
        self._limit = max_in_flight
        self._id, self._batches = secrets.token_hex(11), 0
        self._acked = self._bytes = 0
        self._first = self._last = -1
        # Current batch: forms of its rows (plain, committing), staged rows, number of rows sent, whether the
        # server reported a lost row, the portion whose commit is unanswered, and the ack of the commit.
        self._forms: tuple[_native.put.Form, _native.put.Form]
        self._acks: _native.put.Acks
        self._sent = 0
        self._has_hole = False
        self._committing: Portion | None = None
        self._stored: PubAck | None = None

    @property
    def acked(self) -> int:
        """Number of rows known to be stored."""
        return self._acked

    @property
    def unknown(self) -> int:
        """Number of rows that may also be stored: those of a batch whose commit is sent but unanswered."""
        return self._committing.commands.length if self._committing is not None else 0

    def add(self, portion: Portion) -> None:
        """Publish a portion as one batch, and wait until it is stored."""
        self._begin()
        self._check(portion, self._forms[1])
        self._stored = None
        self._guarded(lambda: self._publish(portion))
        ack: PubAck | None = self._stored
        assert ack is not None
        rows = portion.commands.length
        self._acked, self._bytes = self._acked + rows, self._bytes + portion.size
        self._first = ack.sequence - rows if self._first < 0 else self._first
        self._last = ack.sequence - 1

    def finish(self) -> Written:
        """Return the outcome. Every batch is already stored."""
        offsets = {0: (self._first, self._last)} if self._acked else {}
        return Written(self._acked, self._bytes, 0, offsets)

    def _lost(self) -> bool:
        return self._committing is None

    def _connected(self) -> None:
        pass  # _publish restarts the batch under another id

    def _settle_denied(self) -> None:
        self._committing = None  # a batch that lacks a row, or its commit, is never stored

    def _begin(self) -> None:
        """Start a new batch under a new id. The server never commits what it has of earlier batches."""
        self._batches, self._has_hole = self._batches + 1, False
        head = f"Nats-Batch-Id: {self._id}-{self._batches}\r\nNats-Batch-Sequence: "
        reply = self._reply = self._link.inbox + b"%d." % self._batches
        make = _native.put.Form
        row = make(reply, b"", self._ident, head.encode())
        self._forms = row, make(reply, b"", self._ident, head.encode(), b"Nats-Batch-Commit: 1\r\n")

    def _publish(self, portion: Portion) -> None:
        self._begin()
        self._sent, self._committing = 0, None
        self._acks = _native.put.Acks(self._reply, self._link.sid, 1, BATCH_ROWS, True)
        rows = portion.commands.length
        pieces: deque[tuple[int, int]] = deque()
        while self._sent < rows - 1:
            self._wait_for_room(portion, pieces)
            room = self._limit - (self._sent - self._aside)
            stop = portion.commands.reach(self._sent, min(rows - 1, self._sent + room), PIECE)
            pieces.append((stop, self._send(portion, stop, self._forms[0])))
        # Once all other rows are staged, only the commit can be lost, so the outcome is rarely unknown.
        self._wait_aside(portion, lambda: self._aside == rows - 1)
        self._committing = portion
        self._send(portion, rows, self._forms[1])
        self._link.wait(lambda: self._take(portion) and self._stored is not None)
        self._committing = None

    @property
    def _aside(self) -> int:
        """Number of rows staged by the server without a hole, from the first row on."""
        return self._acks.floor - 1

    def _send(self, portion: Portion, stop: int, form: _native.put.Form) -> int:
        at = self._sent
        data = portion.commands.encode(at, stop, form, portion.first + at, at + 1)
        self._sent = stop
        self._link.socket.send(data)
        self._link.look(lambda: self._take(portion))
        return len(data)

    def _wait_for_room(self, portion: Portion, pieces: deque[tuple[int, int]]) -> None:
        def enough() -> bool:
            while pieces and pieces[0][0] <= self._aside:
                pieces.popleft()
            return self._sent - self._aside < self._limit and sum(size for _, size in pieces) < MOST_BYTES

        self._wait_aside(portion, enough)

    def _wait_aside(self, portion: Portion, enough: Callable[[], bool]) -> None:
        """Wait until enough rows are staged. The timeout is short, since the batch can be restarted safely.

        Raises:
            TransportError: The server staged no further row for _SILENCE seconds.
        """
        began, at = time.monotonic(), self._aside

        def check() -> None:
            nonlocal began, at
            if self._aside > at:
                began, at = time.monotonic(), self._aside
            if time.monotonic() - began > _SILENCE:
                raise TransportError(f"the server has staged no row for {_SILENCE:g} s")

        self._link.wait(lambda: self._take(portion) and enough(), check)

    def _take(self, portion: Portion) -> bool:
        socket, acks = self._link.socket, self._acks
        while True:
            socket.start = acks.feed(socket.view, socket.start, socket.end)
            if (frame := socket.next_frame()) is None:
                return True
            self._take_frame(frame, portion)

    def _take_frame(self, frame: Frame, portion: Portion) -> None:
        inbox, number = frame.subject.encode().rpartition(b".")[0], frame.number
        if inbox + b"." != self._reply or number is None or not 0 < number <= self._sent:
            return
        if not frame.payload and frame.status is None:
            self._acks.take(number, 0, False)
            return
        answer = self._link.read(frame, portion.first + number - 1)
        if isinstance(answer, PubAck) and number == portion.commands.length:
            self._stored = answer
        else:
            self._fail(portion, portion.first + number - 1, answer)

    def _explain(self, portion: Portion) -> None:
        """Wait briefly for the answer for the missing row, which may explain the hole in the batch."""
        self._has_hole = True
        while self._link.socket.fill(_MOMENT):
            self._take(portion)

    def _fail(self, portion: Portion, row: int, answer: JetStreamError | PubAck) -> None:
        """Raise the error for a refused row. Its batch can no longer be committed; nothing of it is stored.

        Raises:
            TransportError: The failure is temporary: no leader, a lost row, or too many batches. The caller
                restarts the batch.
            WriteFailedError: The server refused the row.
        """
        self._committing = None
        if self._is_leaderless(answer, portion, row):
            raise TransportError(f"the batch of rows {portion.first} to {portion.stop - 1}: {answer}")
        if isinstance(answer, PubAck):
            answer = JetStreamError(
                500, "the server stored the row without a batch: it does not support atomic batches"
            )
        if answer.err_code in (_INCOMPLETE, _TOO_MANY):
            if self._has_hole:
                return
            self._explain(portion)
            raise TransportError(f"the batch of rows {portion.first} to {portion.stop - 1}: {answer}")
        raise self._refused(row, answer, 0)
