"""One batch of fast ingest (ADR-50, nats-server 2.14), as far as its answers tell. No I/O.

Its rows are published with replies ``<inbox><batch>.<flow>.fail.<number>.<what>.$FI``. The server answers
only some of them: with how far it has stored the batch, and how often it will say so. It takes them in order:
when one is lost or refused it stores nothing behind it, ends the batch, and says how many rows are stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from liftenvelope.errors import JetStreamError, WrongStreamError, jetstream_error
from liftenvelope.jetstream._publish_frames import PubAck, read_ack
from liftenvelope.jetstream._statuses import status_number
from liftenvelope.jetstream.api import natural

__all__ = ["FLOW", "FastBatch"]

#: The server tells after so many messages at most.
FLOW: Final = 500
#: How many of these may be due: with fewer the server waits for us, with more it works slower on its queue.
_STEPS: Final = 3
_UNKNOWN_BATCH: Final = 10208
_TOO_FAST: Final = 429
_NO_RESPONDERS: Final = 503
_START, _APPEND, _COMMIT, _END, _PING = range(5)


class FastBatch:
    """A batch.

    Args:
        inbox: What its replies begin with, the last dot included.
        name: What tells it from others; no dots.
        stream: The stream that is to store it.
        base: The number of its first row.
        rows: How many there are to be; a single one is committed at once.
        flow: After how many rows the server is to tell.
        step: After how many it told last in another batch; None if it never has.

    Attributes:
        sent: How many rows were sent.
        stored: How many rows are stored for sure.
        ack: What the server said at its end; None before.
        error: Which row was refused, from 1, and why; None if none was. Row 0 is for what makes no sense.
        is_unknown: Whether the server said that it knows no such batch, or that it takes nothing more of it.
        is_lossy: Whether a row was lost: too many came, or the stream had no leader.
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
        self.is_unknown = self.is_lossy = False

    @property
    def reply(self) -> bytes:
        """What the reply of a row has before its number."""
        return self._replies

    @property
    def tail(self) -> bytes:
        """What the reply of the next row has behind its number."""
        what = _APPEND if self.sent else _COMMIT if self.rows == 1 else _START
        return b".%d.$FI" % what

    def commits_itself(self, is_broken: bool) -> bool:
        """Whether its last row ends it, so that nothing else need be sent for that.

        Args:
            is_broken: Whether that row may be lost.
        """
        return self.rows == 1 and not is_broken and self.error is None

    def last_word(self) -> bytes:
        """The reply of the message that ends it; it is not stored."""
        return b"%b%d.%d.$FI" % (self._replies, self.sent + 1, _END)

    def question(self) -> bytes:
        """The reply of a message that asks how far it is."""
        return b"%b%d.%d.$FI" % (self._replies, max(self.sent, 1), _PING)

    @property
    def step(self) -> int:
        """After how many rows the server tells."""
        return self._step

    @property
    def room(self) -> int:
        """How many more rows may be sent now."""
        return max(min(self.rows, self.stored + _STEPS * self._step) - self.sent, 0)

    @property
    def has_ended(self) -> bool:
        """Whether no more of it will be stored."""
        return self.ack is not None or self.is_unknown or self._never_began

    @property
    def must_end(self) -> bool:
        """Whether to send no more of it: that would not be stored."""
        return self.has_ended or self.error is not None or self.is_lossy

    @property
    def count(self) -> int | None:
        """How many rows are stored, once it has ended; None if that is unknown."""
        if self.ack is not None:
            return self.stored
        return 0 if self._never_began else None

    @property
    def was_cut_short(self) -> bool:
        """Whether the server ended it before the last row that was sent, and refused none."""
        return self.ack is not None and self.stored < self.sent and self.error is None

    @property
    def _never_began(self) -> bool:
        return self.error is not None and self.error[0] == 1

    def take(
        self,
        subject: str,
        status: tuple[int, str] | None,
        data: bytes,
        records: Callable[[int], bool] = lambda row: False,  # noqa: ARG005 - of none it is known
    ) -> None:
        """Take an answer.

        Args:
            subject: What it was sent to.
            status: What its headers say: a number, a text; None for none.
            data: Its payload.
            records: Whether the stream records the subject of a row, as far as is known, by its number in all
                the data.
        """
        words = subject.removeprefix(self._prefix).split(".")
        number = status_number(words[2]) if len(words) == 5 else None
        if not subject.startswith(self._prefix) or number is None:
            return  # of another batch, that has ended
        asked = words[3] in (str(_END), str(_PING))
        if status is not None:
            if not asked:
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
            self.error = 0, JetStreamError(500, f"this is no answer to a batch: {data[:100]!r} ({exc})")

    def _take_status(self, number: int, status: tuple[int, str], records: Callable[[int], bool]) -> None:
        code, text = status
        row = self.base + number - 1
        if code == _TOO_FAST or (code == _NO_RESPONDERS and records(row)):
            self.is_lossy = True  # nobody has taken the message, so that the batch has a gap
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
        elif isinstance(ack, PubAck):
            self.ack = ack
            # A batch of one row is acked as a single message, without a count.
            self.stored = min(1 if ack.batch_size is None else ack.batch_size, self.sent)
        elif ack.err_code == _UNKNOWN_BATCH:
            self.is_unknown = True
        elif not asked:
            self._take_error(number, ack)
        else:  # it takes nothing of the batch any more, as when batches are no longer allowed
            self.is_unknown = True
            self.error = self.error or (0, ack)

    def _take_error(self, number: int, error: JetStreamError) -> None:
        if self.ack is None and (self.error is None or number < self.error[0]):
            self.error = number, error


def _error(error: Any) -> JetStreamError:
    return jetstream_error(
        int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description", ""))
    )
