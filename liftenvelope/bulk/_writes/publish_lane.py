"""Publish rows to a Liftbridge stream through one broker, without a Python object per row."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from liftenvelope import _native
from liftenvelope.bulk.errors import ServerProtocolError
from liftenvelope.client.failures import publish_async_error
from liftenvelope.client.publish_codec import read_publish_responses
from liftenvelope.client.retries import Fate, fate_of
from liftenvelope.errors import (
    AckTimeoutError,
    LiftEnvelopeError,
    MessageTooLargeError,
    TransportError,
    publish_error,
)
from liftenvelope.rpc.framing import DEFAULT_MAX_MESSAGE
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.types import AckError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftenvelope.rpc.blocking import BlockingChannel, Conversation

__all__ = ["PublishLane"]

_METHOD: Final = "/proto.API/PublishAsync"
#: Bytes of requests to encode at a time, and bytes that may wait for the server's flow-control windows.
_PIECE: Final = 128 * 1024
#: Seconds to wait for acks before checking the ack timeout.
_LOOK: Final = 0.5
#: Seconds to let acks accumulate while the server is busy, to leave it more of the processor.
_GATHER: Final = 0.001


class PublishLane:
    """One PublishAsync call to one broker.

    Rows are numbered per call, in the order of sending; a correlation id is ``ident`` plus that number.
    ``_rows`` maps these numbers back to rows of the table. An entry is dropped once all its rows have an
    outcome.

    Args:
        channel: Connection to the broker; closed with the lane.
        stream: Name of the stream.
        ident: Prefix of the correlation ids.
        window: Maximum number of rows in flight.
        partitions: Number of partitions of the stream.
        ack_wait: Seconds without any ack after which outstanding acks count as lost.
        max_request_bytes: Largest request to send. A row with a larger one is refused.

    Attributes:
        ident: Prefix of the correlation ids.
        acks: Outcomes of the rows, by their numbers on this call.
        refusals: Refused rows and their errors. A row whose error has ``sent`` true may be stored.
        end: Error that ended the call cleanly, that is, without outstanding acks; None before.

    Raises:
        TransportError: The broker can't be reached.
    """

    def __init__(
        self,
        channel: BlockingChannel,
        stream: str,
        ident: str,
        window: int,
        partitions: int,
        ack_wait: float,
        max_request_bytes: int,
    ) -> None:
        self.ident = ident
        self._channel = channel
        self._stream = stream
        self._ack_wait = ack_wait
        self._window = window
        self._longest = max_request_bytes
        self.acks = _native.bulk.PublishAcks(
            stream.encode(), ident.encode(), window, partitions, DEFAULT_MAX_MESSAGE, bytearray
        )
        self.refusals: list[tuple[int, LiftEnvelopeError]] = []
        self.end: TransportError | None = None
        # First number on this call, and the table rows that have the numbers from there on.
        self._rows: deque[tuple[int, Sequence[int]]] = deque()
        self._heard = time.monotonic()
        self._call: Conversation = channel.conversation(_METHOD, sink=self.acks)

    def close(self) -> None:
        """End the call and close its connection."""
        self._call.close()
        self._channel.close()

    def publish(self, requests: _native.batch.Requests, partitions: Any, rows: Sequence[int]) -> int:
        """Send rows as the window permits; return the number of rows sent.

        Fewer rows than given are sent if a row was refused, or if the call ended cleanly, that is, every row
        sent has its outcome.

        Args:
            requests: The rows, encoded as requests.
            partitions: Partition of each row, as a buffer of 32-bit integers.
            rows: Number of each row in the table.

        Raises:
            TransportError: The call ended, and the outcome of some rows is unknown.
            AckTimeoutError: No ack came for ``ack_wait`` seconds.
        """
        self._rows.append((self.acks.next, rows))
        self._heard = time.monotonic()
        self._take(came=self._call.poll())
        at = 0
        while at < requests.length and not self.refusals:
            if not self._wait_for_room(min(requests.length - at, max(1, self._window // 4))):
                return at
            stop = min(at + self.acks.room, requests.length)
            end, frames = requests.frames(at, stop, self.acks.next, _PIECE, self._longest)
            if end == at:
                self._refuse_long(rows[at])
                break
            self.acks.sent(partitions, at, end)
            self._call.send_framed(frames, timeout=self._ack_wait)
            at = end
        return at

    def _refuse_long(self, row: int) -> None:
        text = (
            f"its request must be at most {self._longest} bytes"
            ": raise max_request_bytes (in Spark, maxRequestBytes) if the server accepts more"
        )
        self.refusals.append((row, MessageTooLargeError(AckError.TOO_LARGE, text)))

    def flush(self) -> None:
        """Wait until no row waits for the server's flow-control windows. Acks may still be outstanding.

        Raises:
            TransportError, AckTimeoutError: As for :meth:`publish`.
        """
        self._heard = time.monotonic()
        while self._call.unsent and self._receive():
            pass

    def settle(self) -> None:
        """Wait until every row sent has its outcome.

        Raises:
            TransportError, AckTimeoutError: As for :meth:`publish`.
        """
        self._heard = time.monotonic()
        while self.acks.pending and self._receive():
            pass

    def _wait_for_room(self, wanted: int) -> bool:
        """Wait until ``wanted`` rows may be sent; return False if the call has ended cleanly."""
        while self.acks.room < wanted or self._call.unsent > _PIECE or self._call.ended:
            if not self._receive():
                return False
        return True

    def _receive(self) -> bool:
        """Wait for acks; return False if the call has ended cleanly, without outstanding acks."""
        if self.acks.pending > self._window // 2 and not self._call.unsent:
            time.sleep(_GATHER)
        try:
            came = self._call.wait(timeout=_LOOK)
        except RpcError as exc:
            if self._call.ended:
                return self._ended(exc)
            came = False
        except TransportError as exc:
            return self._ended(exc)
        if not came and self._call.ended:
            return self._ended(None)
        self._take(came=came)
        return True

    def _ended(self, error: RpcError | TransportError | None) -> bool:
        """Return False if the call has ended cleanly, so that a new call can continue.

        A server that stops ends the call with a status or by closing the connection. A refusal, such as
        RESOURCE_EXHAUSTED, is not clean: a new call would be refused as well.
        """
        why = error or RpcError(StatusCode.UNAVAILABLE, "the server stopped")
        text, pending = f"{self._stream}: the publish stream ended: {why}", self.acks.pending
        if not pending and fate_of(why) is not Fate.REFUSED:
            self.end = TransportError(text)
            return False
        raise TransportError(f"{text}; {pending} rows have no ack", pending, pending > 0) from error

    def _take(self, *, came: bool) -> None:
        """Look at the acks, of which more came or not."""
        now = time.monotonic()
        if self.acks.state == _native.bulk.BROKEN:
            raise ServerProtocolError(f"{self._stream}: the server sent an invalid answer: {self.acks.bad!r}")
        if came:
            self._heard = now
        self._take_refusals()
        if self.acks.pending and now - self._heard >= self._ack_wait:
            text = f"{self._stream}: no ack came for {now - self._heard:.1f} s"
            raise AckTimeoutError(text)

    def _take_refusals(self) -> None:
        for number, answer in self.acks.refused():
            [(correlation_id, ack, code, text)] = read_publish_responses([answer])
            if code >= 0:  # an error, which comes with an empty ack
                error: LiftEnvelopeError = publish_async_error(code, text, self._stream, correlation_id)
            else:
                assert ack is not None  # an answer has an error or an ack
                error = publish_error(ack)
            self.refusals.append((self._row(number), error))
        while len(self._rows) > 1 and self._rows[1][0] <= self.acks.oldest:
            self._rows.popleft()

    def _row(self, number: int) -> int:
        """Return the table row for a number on this call."""
        first, rows = next(found for found in reversed(self._rows) if found[0] <= number)
        return rows[number - first]
