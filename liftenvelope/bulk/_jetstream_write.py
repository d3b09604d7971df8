"""Rows onto subjects that a JetStream stream records, many without their ack at a time."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from liftenvelope import _backend
from liftenvelope.arrow import encode_batch
from liftenvelope.bulk.errors import WriteFailedError
from liftenvelope.bulk.outgoing import Written
from liftenvelope.client.retries import pause_before
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    TransportError,
    UsageError,
    WrongStreamError,
)
from liftenvelope.jetstream._publish_frames import PubAck, header_block, read_ack
from liftenvelope.nats._subjects import publish_subject

if TYPE_CHECKING:
    from liftenvelope.bulk._jetstream import JetStreamSource
    from liftenvelope.bulk._nats_socket import NatsSocket
    from liftenvelope.bulk.outgoing import Rows

__all__ = ["JetStreamWrite"]

#: How many bytes are sent at once.
_PIECE: Final = 128 * 1024


class JetStreamWrite:
    """One write.

    Args:
        source: The stream.
        subject: Where rows go that name no subject.
        envelope: Whether to put each row into a Liftbridge envelope.
        message_id: What the message ids begin with; None for none.
        max_in_flight: How many rows may be without their ack.
    """

    def __init__(
        self,
        source: JetStreamSource,
        *,
        subject: str | None,
        envelope: bool,
        message_id: str | None,
        max_in_flight: int,
    ) -> None:
        self._source = source
        self._subject = None if subject is None else publish_subject(subject).encode()
        self._envelope = envelope
        self._message_id = message_id
        self._limit = max_in_flight
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._subjects: dict[str, bytes] = {}
        self._link: NatsSocket | None = None
        # Frames that were sent or are to be, by number, until they are acked; and what was not sent yet.
        self._pending: dict[int, bytes] = {}
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._acks = re.compile(b"")
        self._read_ack = _backend.jet.AckReader(PubAck, read_ack)
        self._number = self._acked = self._bytes = self._duplicates = 0
        self._first = self._last = -1
        self._waiting_since = 0.0

    @property
    def acked(self) -> int:
        """How many rows are stored for sure."""
        return self._acked

    def open(self) -> None:
        """Connect, and make sure that there is such a stream.

        Raises:
            StreamNotFoundError: There is none.
            TransportError: No server could be reached.
        """
        self._connect()

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.close()
        self._link = None

    def add(self, rows: Rows) -> None:
        """Publish rows. Returns when all but so many as may be in flight are acked.

        Raises:
            UsageError: A row can't be published; nothing of the batch was sent.
            WriteFailedError: A row was refused, or its outcome is unknown.
        """
        for frame, size in list(self._frames(rows)):
            self._pending[self._number] = frame
            self._number += 1
            self._bytes += size
            self._unsent.append(frame)
            self._unsent_bytes += len(frame)
            if self._unsent_bytes >= _PIECE:
                self._guarded(self._send)
            if len(self._pending) >= self._limit:
                self._guarded(self._wait, self._limit * 3 // 4)

    def finish(self) -> Written:
        """Wait for all acks.

        Raises:
            WriteFailedError: A row was refused, or its outcome is unknown.
        """
        self._guarded(self._wait, 0)
        offsets = {0: (self._first, self._last)} if self._acked else {}
        return Written(self._acked, self._bytes, self._duplicates, offsets)

    # Frames

    def _frames(self, rows: Rows) -> Iterator[tuple[bytes, int]]:
        """What each row is on the wire, and how many bytes its value has."""
        payloads, limit = self._payloads(rows), self._max_payload
        subjects = self._targets(rows)
        inbox = self._inbox.encode()
        for i, payload in enumerate(payloads):
            number = self._number + i
            headers = self._headers(rows, i, number)
            size = len(headers) + len(payload)
            if size > limit:
                raise UsageError(f"row {number} has {size} bytes; the server takes {limit}")
            if headers:
                line = b"HPUB %b %b.%d %d %d\r\n" % (subjects[i], inbox, number, len(headers), size)
            else:
                line = b"PUB %b %b.%d %d\r\n" % (subjects[i], inbox, number, size)
            yield b"%b%b%b\r\n" % (line, headers, payload), len(rows.values[i])

    @property
    def _max_payload(self) -> int:
        assert self._link is not None
        return self._link.max_payload

    def _payloads(self, rows: Rows) -> list[bytes]:
        if self._envelope:
            encoded = encode_batch(rows.values, keys=rows.keys, headers=rows.headers)
            found: list[bytes] = encoded.to_pylist()
            return found
        if rows.keys is not None and any(rows.keys):
            raise UsageError(
                "data has keys, and a NATS message has none: pass envelope=True, or drop the column"
            )
        return rows.values

    def _targets(self, rows: Rows) -> list[bytes]:
        if rows.subjects is None:
            if self._subject is None:
                raise UsageError("data has no column 'subject': expected one, or subject=...")
            return [self._subject] * len(rows.values)
        return [self._target(i, name) for i, name in enumerate(rows.subjects)]

    def _target(self, row: int, name: str | None) -> bytes:
        if self._subject is not None:
            return self._subject
        if name is None:
            raise UsageError(f"row {self._number + row} has no subject")
        known = self._subjects.get(name)
        if known is None:
            known = self._subjects[name] = publish_subject(name).encode()
        return known

    def _headers(self, rows: Rows, row: int, number: int) -> bytes:
        if self._envelope or rows.headers is None or not rows.headers[row]:
            if self._message_id is None:
                return b""
            return b"NATS/1.0\r\nNats-Msg-Id: %b-%d\r\n\r\n" % (self._message_id.encode(), number)
        try:
            headers = {name: value.decode() for name, value in rows.headers[row].items()}
        except UnicodeDecodeError as exc:
            raise UsageError(f"row {number}: a header value is no text, which NATS can't carry") from exc
        if self._message_id is not None:
            headers["Nats-Msg-Id"] = f"{self._message_id}-{number}"
        return header_block(headers.items())

    # The connection

    def _connect(self) -> NatsSocket:
        link = self._source.connect()
        try:
            link.ask(f"{self._source.prefix}.STREAM.INFO.{self._source.stream}")
            sid = link.subscribe(f"{self._inbox}.*")
        except BaseException:
            link.close()
            raise
        self._acks = re.compile(
            rb"MSG %b\.(\d+) %d \d+\r\n([^\r\n]*)\r\n" % (re.escape(self._inbox.encode()), sid)
        )
        self._waiting_since = time.monotonic()
        self._link = link
        return link

    def _guarded(self, step: object, *arguments: int) -> None:
        """Do something over the connection; if it fails, over another one, where rows are sent again."""
        assert callable(step)
        failing_since, attempt = 0.0, 0
        while True:
            acked = self._acked
            try:
                if self._link is None:
                    self._connect()
                    self._unsent = list(self._pending.values())
                    self._unsent_bytes = sum(map(len, self._unsent))
                step(*arguments)
            except (TransportError, CallTimeoutError, AckTimeoutError, NoJetStreamError) as exc:
                self.close()
                now = time.monotonic()
                failing_since = now if attempt == 0 or self._acked > acked else failing_since
                lost = now - failing_since >= self._source.access.reconnect_wait
                if self._message_id is None or lost or isinstance(exc, NoJetStreamError):
                    raise self._failed(exc) from exc
                attempt += 1
                time.sleep(pause_before(attempt))
            else:
                return

    def _failed(self, error: LiftEnvelopeError) -> WriteFailedError:
        hint = "" if self._message_id is not None else "; with message_id=... rows could be sent again safely"
        text = (
            f"{self._source.stream}: {self._acked} rows are stored, of {len(self._pending)} it is "
            f"unknown{hint}: {error}"
        )
        return WriteFailedError(text, self._acked, len(self._pending))

    def _send(self) -> None:
        assert self._link is not None
        data, self._unsent, self._unsent_bytes = b"".join(self._unsent), [], 0
        if data:
            self._link.send(data)
        while self._link.fill(0):
            self._take_acks()

    def _wait(self, most: int) -> None:
        """Wait until no more rows than that are without their ack."""
        self._send()
        assert self._link is not None
        self._waiting_since = time.monotonic()
        while True:
            self._take_acks()
            if len(self._pending) <= most:
                return
            if not self._link.fill(0.5):
                silence = time.monotonic() - self._waiting_since
                if silence >= self._source.access.timeout:
                    raise AckTimeoutError(f"no ack came for {silence:.1f} s", "")
            else:
                self._waiting_since = time.monotonic()

    def _take_acks(self) -> None:
        """Take what has come: acks nearly always."""
        link = self._link
        assert link is not None
        while True:
            for found in self._acks.finditer(link.view, link.start, link.end):
                if found.start() != link.start:
                    break
                link.start = found.end()
                self._ack(int(found[1]), found[2])
            frame = link.next_frame()
            if frame is None:
                return
            number = frame.subject.rpartition(".")[2]
            if not number.isdigit() or int(number) not in self._pending:
                continue
            if (status := frame.status) is None:
                self._ack(int(number), frame.payload)  # an ack all the same, behind a PING for one
            else:
                text = f"no stream records the subject of row {number}"
                raise NoJetStreamError(status.code, text if status.code == 503 else str(status))

    def _ack(self, number: int, data: bytes) -> None:
        ack = self._read_ack(data)
        if number not in self._pending:
            return  # of a row that was sent twice
        if not isinstance(ack, PubAck):
            raise self._refused(number, ack)
        if ack.stream != self._source.stream:
            text = f"the subject is recorded by stream {ack.stream!r}"
            raise self._refused(number, WrongStreamError(400, text))
        del self._pending[number]
        self._acked += 1
        self._duplicates += ack.duplicate
        offset = ack.sequence - 1
        self._first = offset if self._first < 0 else min(self._first, offset)
        self._last = max(self._last, offset)

    def _refused(self, number: int, error: JetStreamError) -> WriteFailedError:
        text = f"{self._source.stream}: row {number} was not stored: {error}"
        failure = WriteFailedError(text, self._acked, len(self._pending) - 1)
        failure.__cause__ = error
        return failure
