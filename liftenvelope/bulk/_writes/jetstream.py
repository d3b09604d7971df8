"""Write a table to a JetStream stream: pipelined, in atomic batches, or by fast ingest."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, get_args

from liftenvelope.bulk._outgoing import Written
from liftenvelope.bulk._writes.atomic import BATCH_ROWS, AtomicPublisher
from liftenvelope.bulk._writes.fast_ingest import FastPublisher
from liftenvelope.bulk._writes.pipelined import PipelinedPublisher
from liftenvelope.bulk._writes.portions import Portion, Portions, regrouped
from liftenvelope.bulk._writes.publisher import RowPublisher, WriteLink
from liftenvelope.bulk.errors import WriteFailedError
from liftenvelope.errors import LiftEnvelopeError, PermissionDeniedError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.bulk._jetstream.source import JetStreamSource

__all__ = ["MODES", "JetStreamWrite", "WriteMode"]

WriteMode = Literal["auto", "pipelined", "atomic", "fast"]
MODES: Final[tuple[str, ...]] = get_args(WriteMode)
#: Rows and bytes to prepare at a time; also the size of a fast ingest batch.
_ROWS: Final = 16_384
_BYTES: Final = 8 * 1024 * 1024
#: Bytes to keep free in a message with a content type: for the headers of a write, for those of an atomic
#: batch, and for an envelope without a key. Each is about twice what is in use.
_HEADER_BYTES: Final = 256
_ATOMIC_BYTES: Final = 256
_ENVELOPE_BYTES: Final = 128
#: Seconds without rows after which a connection is tried before more are sent. Nobody answers the pings of
#: the server meanwhile, so it ends the connection, after some minutes by default.
_PAUSE: Final = 30.0
#: Minimum rows for fast ingest in mode "auto". With fewer, a batch takes longer than one ack per row.
_FEW: Final = 1_000
_NEEDS: Final = {
    "fast": ("allow_batched", "2.14"),
    "atomic": ("allow_atomic", "2.12"),
}


class JetStreamWrite:
    """One write to a JetStream stream.

    Args:
        source: The stream.
        subject: Subject of all rows; None to use the column ``subject``.
        envelope: True to wrap each row in a Liftbridge envelope.
        message_id: Prefix of the message ids; None for no ids.
        max_in_flight: Maximum number of rows in flight.
        mode: One of MODES.
    """

    def __init__(
        self,
        source: JetStreamSource,
        *,
        subject: str | None,
        envelope: bool,
        message_id: str | None,
        max_in_flight: int,
        mode: str,
    ) -> None:
        self._link = WriteLink(source)
        self._portions = Portions(subject, envelope=envelope, message_id=message_id is not None)
        self._envelope = envelope
        self._message_id = message_id
        self._limit = max_in_flight
        self._mode = mode
        self._publisher: RowPublisher | None = None
        #: When the connection was used last.
        self._used = 0.0

    @property
    def max_payload(self) -> int:
        """Longest message in bytes that the server accepts; 0 before :meth:`open`."""
        return self._link.max_payload

    def open(self) -> None:
        """Connect and check that the stream exists and allows the mode.

        Raises:
            StreamNotFoundError: There is no such stream.
            TransportError: No server could be reached.
            UsageError: The stream's config does not allow the mode, or disables acks.
        """
        self._link.connect()
        self._used = time.monotonic()
        stream = self._link.source.stream
        if self._link.config.get("no_ack"):
            raise UsageError(f"{stream} has no_ack=True: nobody would know whether rows are stored")
        if self._mode in _NEEDS:
            setting, version = _NEEDS[self._mode]
            if not self._link.config.get(setting):
                raise UsageError(
                    f"mode must be one that {stream} allows, got {self._mode!r}: set {setting}=True in its "
                    f"config, which takes nats-server {version} or newer; this one is "
                    f"{self._link.version or 'of no version'}"
                )

    @property
    def most_bytes(self) -> int:
        """Longest value that fits into a message of the server, with all headers that a write adds."""
        added = _HEADER_BYTES + len((self._message_id or "").encode())
        if self._mode == "atomic":
            added += _ATOMIC_BYTES
        return self._link.max_payload - added - (_ENVELOPE_BYTES if self._envelope else 0)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def portions(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Portion]:
        """Split batches into the portions that :meth:`add` takes.

        Raises:
            UsageError: A row can't be published.
        """
        if self._mode == "atomic":
            for batch in regrouped(batches, BATCH_ROWS):
                yield from self._portions.of(batch, BATCH_ROWS, sys.maxsize)
        else:
            for batch in batches:
                yield from self._portions.of(batch, _ROWS, _BYTES)

    def add(self, portion: Portion) -> None:
        """Publish a portion. Some rows may still lack their ack on return.

        Raises:
            UsageError: A row is too long; nothing of the portion was sent.
            PermissionDeniedError: The server denied all rows sent so far.
            WriteFailedError: A row was refused, or its outcome is unknown.
        """
        try:
            if self._link.is_open and time.monotonic() - self._used > _PAUSE:
                self.finish()  # reads the acks that came meanwhile
                self._link.drop_if_dead()
            if self._publisher is None:
                self._publisher = self._choose(portion.commands.length)
            self._publisher.add(portion)
        except PermissionDeniedError:
            self._publisher = None  # no row is stored, and stop() has no acks to wait for
            raise
        self._used = time.monotonic()

    def settle(self) -> None:
        """Wait for the acks of all rows added.

        Raises:
            WriteFailedError: A row was refused, or its outcome is unknown.
        """
        self.finish()

    def finish(self) -> Written:
        """Wait for all acks and return the outcome.

        Raises:
            WriteFailedError: A row was refused, or its outcome is unknown.
        """
        return self._publisher.finish() if self._publisher is not None else Written(0, 0, 0, {})

    def stop(self, error: LiftEnvelopeError) -> NoReturn:
        """End a write that can't continue: wait for the acks of the rows sent, then raise.

        Args:
            error: Error of :meth:`add` or of the data.

        Raises:
            LiftEnvelopeError: ``error`` itself, if no row is stored.
            WriteFailedError: Rows are stored, or their outcome is unknown.
        """
        rows = self.finish().acked
        if not rows:
            raise error
        text = f"{self._link.source.stream}: {rows} rows are stored, and no more: {error}"
        raise WriteFailedError(text, rows, 0) from error

    def _choose(self, rows: int) -> RowPublisher:
        options: dict[str, Any] = {"max_in_flight": self._limit, "message_id": self._message_id}
        if self._mode == "atomic":
            return AtomicPublisher(self._link, **options)
        # A caller with message ids wants the number of duplicates, which fast ingest does not report.
        allowed = bool(self._link.config.get("allow_batched"))
        suits = allowed and rows >= _FEW and self._message_id is None
        if self._mode == "fast" or (self._mode == "auto" and suits):
            return FastPublisher(self._link, **options)
        return PipelinedPublisher(self._link, **options)
