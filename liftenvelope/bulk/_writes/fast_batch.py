"""State of one batch of fast ingest (ADR-50, nats-server 2.14), derived from the server's answers. No I/O.

Rows are published with reply subjects ``<inbox><batch>.<flow>.fail.<number>.<operation>.$FI``. The server
answers only some rows, with a flow ack. A flow ack reports how far the batch is stored, and after how many
rows the next flow ack will come.

The server takes the rows in order. If a row is lost or refused, the server stores no later row, ends the
batch, and reports the number of rows stored. So the stored rows are always a prefix of the batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from liftenvelope.errors import JetStreamError, WrongStreamError, jetstream_error
from liftenvelope.jetstream.api import natural
from liftenvelope.jetstream.publish_frames import PubAck, read_ack
from liftenvelope.jetstream.statuses import status_number

__all__ = ["FLOW", "FastBatch"]

#: Maximum number of messages between two flow acks of the server.
FLOW: Final = 500
#: Flow acks that may be outstanding. With fewer the server waits for us; with more its queue slows it down.
_STEPS: Final = 3
_UNKNOWN_BATCH: Final = 10208
_TOO_FAST: Final = 429
_NO_RESPONDERS: Final = 503
_START, _APPEND, _COMMIT, _END, _PING = range(5)


class FastBatch:
    """One batch of fast ingest.

    Args:
        inbox: Prefix of the reply subjects, including the last dot.
        name: Unique name of the batch, without dots.
        stream: Stream that must store the batch.
        base: Number of the first row in all the data.
        rows: Number of rows in the batch. A batch of one row commits with that row.
        flow: Requested number of rows between two flow acks.
        step: Last number of rows between flow acks that the server used in an earlier batch; None if none.

    Attributes:
        sent: Number of rows sent.
        stored: Number of rows known to be stored.
        ack: Final ack of the batch; None until the batch has ended.
        error: Number of the first refused row, from 1, and the error; None if no row was refused. Row 0
            stands for an answer that can't be parsed, or an error of the whole batch.
        is_unknown: True if the server does not know the batch, or accepts nothing more of it.
        is_gap_ours: True if the stream has answered for the first row that is missing in a batch cut short.
        is_lossy: True if a row was lost, because too many rows came or the stream had no leader.
    """

    def __init__(
        self, inbox: bytes, name: str, stream: str, base: int, rows: int, flow: int, step: int | None = None
    ) -> None:
        self._stream = stream
        self._prefix = f"{inbox.decode()}{name}."
        self._replies = f"{self._prefix}{flow}.fail.".encode()
        self._step = min(step or FLOW // _STEPS, flow)
        self.base, self.rows = base, rows
        self.sent = self.stored = 0
        self.ack: PubAck | None = None
        self.error: tuple[int, JetStreamError] | None = None
        self.is_unknown = self.is_lossy = self.is_gap_ours = False

    @property
    def reply(self) -> bytes:
        """Part of a row's reply subject before the number of the row."""
        return self._replies

    @property
    def tail(self) -> bytes:
        """Part of the next row's reply subject after the number of the row."""
        what = _APPEND if self.sent else _COMMIT if self.rows == 1 else _START
        return b".%d.$FI" % what

    def commits_itself(self, is_broken: bool) -> bool:
        """Return True if the last row commits the batch, so that no end message is needed.

        Args:
            is_broken: True if that row may be lost.
        """
        return self.rows == 1 and not is_broken and self.error is None

    def last_word(self) -> bytes:
        """Return the reply subject of the end message, which the server does not store."""
        return b"%b%d.%d.$FI" % (self._replies, self.sent + 1, _END)

    def question(self) -> bytes:
        """Return the reply subject of a message that asks for the progress of the batch."""
        return b"%b%d.%d.$FI" % (self._replies, max(self.sent, 1), _PING)

    def gap_question(self) -> bytes:
        """Return the reply subject of a message that asks who records the first missing row."""
        return b"%b%d.%d.$FI" % (self._replies, self.stored + 1, _PING)

    @property
    def step(self) -> int:
        """Number of rows between two flow acks."""
        return self._step

    @property
    def room(self) -> int:
        """Number of rows that may be sent now."""
        return max(min(self.rows, self.stored + _STEPS * self._step) - self.sent, 0)

    @property
    def has_ended(self) -> bool:
        """True if the server will store no more rows of the batch."""
        return self.ack is not None or self.is_unknown or self._never_began

    @property
    def must_end(self) -> bool:
        """True if sending more rows is pointless, since the server would not store them."""
        return self.has_ended or self.error is not None or self.is_lossy

    @property
    def count(self) -> int | None:
        """Number of rows stored by a batch that has ended; None if unknown."""
        if self.ack is not None:
            return self.stored
        return 0 if self._never_began else None

    @property
    def was_cut_short(self) -> bool:
        """True if the server ended the batch before the last row sent, without refusing a row."""
        return self.ack is not None and self.stored < self.sent and self.error is None

    @property
    def _never_began(self) -> bool:
        return self.error is not None and self.error[0] == 1

    def take(
        self,
        subject: str,
        status: tuple[int, str] | None,
        data: bytes,
        records: Callable[[int], bool] = lambda row: False,  # noqa: ARG005 - unknown for every row
    ) -> None:
        """Update the state from an answer of the server. Ignores answers for other batches.

        Args:
            subject: Subject of the answer, that is, the reply subject of a row.
            status: Status code and description from the headers; None for none.
            data: Payload of the answer.
            records: Returns True if the stream is known to record the subject of a row, given the row's
                number in all the data.
        """
        words = subject.removeprefix(self._prefix).split(".")
        number = status_number(words[2]) if len(words) == 5 else None
        if not subject.startswith(self._prefix) or number is None:
            return  # an answer for an earlier batch
        asked = words[3] in (str(_END), str(_PING))
        if status is not None:
            if not asked or self._is_of_gap(number):
                self._take_status(number, status, records)
            return
        try:
            answer = json.loads(data)
            kind = answer.get("type")
            if kind == "ack":
                self._take_step(natural(answer["seq"]), natural(answer["msgs"]))
            elif kind == "err":
                error = answer["error"]
                self._take_error(natural(answer["seq"]), _error(error))
            elif kind is None:
                self._take_end(number, asked, answer, data)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as exc:
            self.is_unknown = True
            self.error = (
                0,
                JetStreamError(500, f"the server sent an invalid answer to a batch: {data[:100]!r} ({exc})"),
            )

    def _take_status(self, number: int, status: tuple[int, str], records: Callable[[int], bool]) -> None:
        code, text = status
        row = self.base + number - 1
        if code == _TOO_FAST or (code == _NO_RESPONDERS and records(row)):
            self.is_lossy = True  # no server took the message, so the batch has a gap
        else:
            text = f"no stream records the subject of row {row}" if code == _NO_RESPONDERS else text
            self._take_error(number, jetstream_error(code, 0, text))

    def _take_step(self, stored: int, step: int) -> None:
        self.stored = max(self.stored, min(stored, self.sent))
        self._step = max(step, 1)

    def _take_end(self, number: int, asked: bool, answer: Any, data: bytes) -> None:
        ack = read_ack(data)
        stream = answer.get("stream", self._stream)
        if stream != self._stream:
            text = f"the subject is recorded by stream {stream!r}"
            self._take_error(number, WrongStreamError(400, text))
        elif self.was_cut_short:
            self.is_gap_ours = self.is_gap_ours or self._is_of_gap(number)
        elif isinstance(ack, PubAck):
            self.ack = ack
            # A batch of one row is acked as a single message, without a count.
            self.stored = min(1 if ack.batch_size is None else ack.batch_size, self.sent)
        elif ack.err_code == _UNKNOWN_BATCH:
            self.is_unknown = True
        elif not asked:
            self._take_error(number, ack)
        else:  # the server accepts no more of the batch, for example because batches are no longer allowed
            self.is_unknown = True
            self.error = self.error or (0, ack)

    def _is_of_gap(self, number: int) -> bool:
        """Return True if the row with this number is the first missing one of a batch cut short."""
        return self.was_cut_short and number == self.stored + 1

    def _take_error(self, number: int, error: JetStreamError) -> None:
        if self._is_of_gap(number) or (self.ack is None and (self.error is None or number < self.error[0])):
            self.error = number, error


def _error(error: Any) -> JetStreamError:
    return jetstream_error(
        int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description", ""))
    )
