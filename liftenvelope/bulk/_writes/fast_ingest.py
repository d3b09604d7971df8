"""Publish rows by fast ingest (ADR-50, nats-server 2.14): in batches with an ack for every few hundred rows.

Each portion is one batch. The batch ends with a message that is not stored, whose answer reports how many
rows of the batch are stored. After a lost connection, only that end message is sent over the next connection,
so the number of stored rows is exact even then.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from liftenvelope import _native
from liftenvelope.bulk._outgoing import Written
from liftenvelope.bulk._writes.fast_batch import FLOW, FastBatch
from liftenvelope.bulk._writes.publisher import MOST_BYTES, PIECE, RowPublisher, WriteLink
from liftenvelope.errors import JetStreamError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftenvelope.bulk._writes.portions import Portion

__all__ = ["FastPublisher"]

#: Intervals between flow acks that may be in flight; together they have at most MOST_BYTES.
_IN_FLIGHT: Final = 4


_FORGOTTEN: Final = JetStreamError(
    400,
    "the server does not know the batch: the batch had ended and the answer was lost with the connection, or "
    "was idle for too long, or the server restarted",
    10208,
)
_CUT_SHORT: Final = JetStreamError(
    503, "the stream's leader changed within a batch; with message_id= the rows could have been sent again", 0
)


class FastPublisher(RowPublisher):
    """Publishes each portion as one batch, except the very first row, whose own ack gives the first offset.

    Args:
        link: Connection to publish over.
        message_id: Prefix of the message ids; None for no ids.
        max_in_flight: Maximum number of rows in flight.
    """

    def __init__(self, link: WriteLink, *, message_id: str | None, max_in_flight: int) -> None:
        super().__init__(link)
        self._limit = max_in_flight
        self._id, self._batches = secrets.token_hex(11), 0
        self._ident = b"" if message_id is None else f"Nats-Msg-Id: {message_id}-".encode()
        self._plain = _native.put.Form(b"", b"", self._ident)
        self._portion: Portion | None = None
        self._batch: FastBatch | None = None
        # Current batch: end message sent; connection lost, so that rows of the batch may be lost with it.
        self._end_sent = self._is_broken = False
        self._step: int | None = None
        self._done = self._bytes = self._duplicates = 0
        self._first = self._last = -1

    @property
    def acked(self) -> int:
        """Number of rows known to be stored."""
        return self._done + (self._batch.stored if self._batch is not None else 0)

    @property
    def unknown(self) -> int:
        """Number of rows sent and not known to be stored."""
        return self._batch.sent - self._batch.stored if self._batch is not None else 0

    def add(self, portion: Portion) -> None:
        """Publish a portion. Returns once its rows are sent; the next call waits until they are stored."""
        self._check(portion, self._plain)
        self._settle()
        self._portion = portion
        self._bytes += portion.size
        if self._first < 0:
            self._guarded(self._store)
        if self._done < portion.stop:
            self._guarded(self._send)

    def finish(self) -> Written:
        """Wait until all rows are stored, and return the outcome."""
        self._settle()
        offsets = {0: (self._first, self._last)} if self._done else {}
        return Written(self._done, self._bytes, self._duplicates, offsets)

    def _settle(self) -> None:
        """Publish batches until the whole portion is stored."""
        while self._portion is not None and self._done < self._portion.stop:
            self._guarded(self._store)
        self._portion = None

    def _lost(self) -> bool:
        if self._batch is not None and not self._batch.sent:
            self._batch = None
        self._is_broken = True
        return True

    def _connected(self) -> None:
        self._end_sent = False

    def _settle_denied(self) -> None:
        """End the batch, which has the rows before the denied one. It never began if that is its first."""
        batch, denied = self._batch, self._link.socket.denied_subject
        if batch is None or not batch.sent:
            return
        if self._subject_of(batch.base).decode() == denied:
            self._batch = None
            return

        self._say(batch.base, batch.last_word())
        self._end_sent = True
        self._link.wait_past_denials(
            lambda: self._take(batch) and batch.has_ended, lambda: self._ask(batch), lambda: batch.stored
        )
        if batch.count is not None and (self._is_exact or not batch.was_cut_short):
            self._batch, self._done = None, self._done + batch.count

    # One batch

    def _store(self) -> None:
        """Complete the open batch, or else the next one, and wait until the server has ended it."""
        batch = self._send()
        self._wait(batch, lambda: batch.has_ended)
        if batch.was_cut_short and not (batch.is_lossy or self._is_broken):
            self._look_at_gap(batch)
        self._close(batch)

    def _wait(self, batch: FastBatch, condition: Callable[[], bool]) -> None:
        """Receive until a condition holds; ask for answers that may be lost."""
        self._link.wait(
            lambda: self._take(batch) and condition(), lambda: self._ask(batch), lambda: batch.stored
        )

    def _look_at_gap(self, batch: FastBatch) -> None:
        """Wait until it is known whether another stream has taken the first row that is missing.

        The stream may notice the gap before the other one answers. A batch that began with that row would
        begin on the other stream, which would store the row.
        """
        row = batch.base + batch.stored
        if self._subject_of(row) == self._subject:
            return

        def ask() -> None:
            self._say(row, batch.gap_question())

        ask()
        self._link.wait(
            lambda: self._take(batch) and (batch.is_gap_ours or not batch.was_cut_short),
            ask,
            lambda: batch.stored,
        )

    def _send(self) -> FastBatch:
        """Send the remaining rows and the end of the batch. Stops early if the server ends the batch."""
        batch = self._batch or self._begin()
        if not batch.sent:
            self._link.look(lambda: self._take(batch))  # the connection may have ended while no rows came
        while not self._has_no_more(batch):
            self._send_rows(batch)
        if not batch.has_ended and not self._end_sent and not batch.commits_itself(self._is_broken):
            self._say(batch.base, batch.last_word())
            self._end_sent = True
        return batch

    def _begin(self) -> FastBatch:
        """Start a batch for the remaining rows of the portion; for one row if nothing is stored yet."""
        portion, self._batches = self._current, self._batches + 1
        rows = portion.stop - self._done if self._first >= 0 else 1
        each = portion.size // portion.commands.length + 1
        flow = max(1, min(FLOW, self._limit, MOST_BYTES // _IN_FLIGHT // each))
        name, stream = f"{self._id}-{self._batches}", self._link.source.stream
        self._batch = FastBatch(self._link.inbox, name, stream, self._done, rows, flow, self._step)
        self._end_sent = self._is_broken = False
        return self._batch

    @property
    def _current(self) -> Portion:
        assert self._portion is not None
        return self._portion

    def _has_no_more(self, batch: FastBatch) -> bool:
        # Rows of the batch may be lost with the old connection, and any further row would follow a gap. So
        # the new connection carries only the end message, which reports how many rows are stored.
        return batch.must_end or self._is_broken or batch.sent == batch.rows

    def _send_rows(self, batch: FastBatch) -> None:
        room = self._room(batch)
        if not room:
            self._wait(batch, lambda: self._room(batch) > 0 or self._has_no_more(batch))
            return
        commands, at = self._current.commands, batch.base + batch.sent - self._current.first
        stop = commands.reach(at, at + room, PIECE) if batch.sent else at + 1
        form = _native.put.Form(batch.reply, batch.tail, self._ident)
        data = commands.encode(at, stop, form, batch.base + batch.sent, batch.sent + 1)
        batch.sent += stop - at
        self._link.socket.send(data)
        self._link.look(lambda: self._take(batch))

    def _room(self, batch: FastBatch) -> int:
        return max(0, min(batch.room, self._limit - (batch.sent - batch.stored)))

    def _subject_of(self, row: int) -> bytes:
        return self._current.commands.subject_at(row - self._current.first)

    def _say(self, row: int, reply: bytes) -> None:
        """Publish a control message on a row's subject. The stream records that of a batch's first row."""
        self._link.socket.send(b"PUB %b %b 0\r\n\r\n" % (self._subject_of(row), reply))

    def _ask(self, batch: FastBatch) -> None:
        """Ask for the progress or the end of the batch again, because an answer may be lost."""
        self._say(batch.base, batch.last_word() if self._end_sent else batch.question())

    def _take(self, batch: FastBatch) -> bool:
        while (frame := self._link.socket.next_frame()) is not None:
            status = frame.status
            said = None if status is None else (status.code, str(status))
            batch.take(frame.subject, said, frame.payload, self._records)
        return True

    def _records(self, row: int) -> bool:
        """Return True if the stream is known to record the subject of a row."""
        return bool(self.acked and self._subject_of(row) == self._subject)

    @property
    def _is_exact(self) -> bool:
        """True if the rows after the count of a batch that was cut short can be resent without duplicates.

        A new leader (nats-server 2.15.1, ``fastBatchReset``) counts the rows that it has applied. Rows that
        are only in its Raft log are stored after it has reported the count: 758 such rows were observed. So
        resending is safe only with message ids or a single replica.
        """
        return bool(self._ident) or int(self._link.config.get("num_replicas", 1)) == 1

    def _close(self, batch: FastBatch) -> None:
        """Count the stored rows of a batch that has ended.

        If all rows are stored and the sequence of the last one is unknown, that row is sent again as a batch
        of its own. The server drops it by its message id, and its ack has the sequence.

        Raises:
            TransportError: Rows are left that can be sent again.
            WriteFailedError: A row was refused, or the number of stored rows is unknown.
        """
        if batch.was_cut_short and not self._is_exact:
            raise self._failed(_CUT_SHORT) from _CUT_SHORT
        row, error = batch.error or (0, _FORGOTTEN)
        if batch.count is None:
            if not self._ident or (batch.error is not None and not row):
                raise self._failed(error) from error
            # The message ids let the server drop those resent rows that it has stored already.
            self._batch, self._done = None, self._done + min(batch.stored, batch.rows - 1)
            raise TransportError(f"rows from {self._done} on are sent again: {error}") from error
        self._batch, self._step, self._done = None, batch.step, self._done + batch.count
        if batch.ack is not None:
            if batch.rows == batch.count > 1 and not batch.ack.sequence:  # nothing but duplicates
                self._done -= 1
            self._first = batch.ack.sequence - 1 if self._first < 0 else self._first
            self._last = max(self._last, batch.ack.sequence - 1)
            self._duplicates += batch.ack.duplicate
        if batch.error is not None:
            raise self._refused(batch.base + row - 1, error, 0)
        if (batch.is_lossy or not batch.count) and self._done < self._current.stop:
            raise TransportError(
                f"the server did not store row {self._done}: it is overloaded, or the stream has no leader"
            )
