"""Publish one batch: checks the whole batch, then hands it to the connection piece by piece."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any, Final

from liftenvelope.errors import EnvelopeTooLargeError, TransportError, UsageError
from liftenvelope.nats._ack_inbox import AckInbox
from liftenvelope.nats._batch_acks import BatchAcks
from liftenvelope.nats._batches import BatchRows
from liftenvelope.nats.link import Link
from liftenvelope.types import AckPolicy

# Bytes handed to the connection at once: enough to amortize the cost per piece, few enough to read acks in
# between.
_PIECE: Final = 128 * 1024
# Most rows whose acks are registered at once.
_ROWS: Final = 2_048
# Placeholder for a generated id in size checks; no generated id is longer.
_LONGEST_ID: Final = "0" * 12


class BatchRun:
    """State of a batch that is being published.

    Attributes:
        sent: Number of rows handed to the connection.
        epoch: Epoch of the connection when the first row was handed over; None before.
        acks: Receiver of the outcomes; None without an inbox.
    """

    def __init__(
        self,
        link: Link,
        rows: BatchRows,
        *,
        inbox: AckInbox | None,
        subjects: list[bytes],
        which: array[int] | None,
        policy: AckPolicy,
        crc: bool,
        timeout: float,
    ) -> None:
        self._link = link
        self._rows = rows
        self._inbox = inbox
        self._subjects = subjects
        self._which = which
        self._options = (None if inbox is None else inbox.subject, policy, crc)
        self._timeout = timeout
        self.sent = 0
        self.epoch: int | None = None
        # Bytes of the piece that did not fit into the buffer of a connection that is down.
        self._needed = 0
        self._whole = self._checked()
        self.acks = None if inbox is None else BatchAcks(len(rows), subjects, which, link.report)

    def _checked(self) -> Any:
        """Build and check the envelopes of the whole batch, so an invalid row is found before sending."""
        rows = self._rows
        self._link.check_open()
        if (ids := rows.ids(0, len(rows))) is not None and len(set(ids)) < len(ids):
            raise UsageError("correlation_ids must differ, got one twice in the batch")
        if ids is None and self._inbox is not None:
            ids = [_LONGEST_ID] * len(rows)
        envelopes = rows.envelopes(0, len(rows), ids, *self._options)
        if (row := envelopes.first_null()) is not None:
            raise UsageError(f"row {row}: value must not be null")
        limit = self._link.max_payload
        if (found := envelopes.oversize(limit)) is not None:
            raise EnvelopeTooLargeError(
                f"row {found[0]}: the envelope must be at most {limit} bytes, got {found[1]}"
            )
        return envelopes

    async def run(self) -> None:
        """Hand all rows to the connection.

        With an inbox, an error after the first row becomes the outcome of the unsent rows. If it were raised,
        the caller would lose the acks of the rows that were sent.

        Raises:
            TransportError: No row could be sent; or, without an inbox, not all rows could be sent.
        """
        try:
            while self.sent < len(self._rows):
                if self._inbox is None:
                    await self._send_without_acks()
                else:
                    await self._send_with_acks(self._inbox)
                await asyncio.sleep(0)  # let acks be read and other tasks run
        except (TransportError, UsageError) as error:
            if self.acks is None or not self.sent:
                raise
            for row in range(self.sent, len(self._rows)):
                self.acks.settle(row, TransportError(f"row {row} was never sent, and can be again: {error}"))

    async def _send_with_acks(self, inbox: AckInbox) -> None:
        """Hand over the next piece once the inbox and the connection's buffer have room for it.

        Invariant: every registered row is handed over in the same turn of the event loop. A row that waited
        for the buffer after its registration would spend the time for its ack there, and time out unsent.
        """
        start, stop = self.sent, self._end_of_piece()
        # Wait for a quarter of the window, not for one place: small pieces have a high cost per row.
        wanted = max(1, min(stop - start, inbox.max_outstanding // 4))
        free = await inbox.capacity(wanted)
        while not self._link.fits(self._needed):
            await self._room(self._needed)
            free = await inbox.capacity(wanted)  # other tasks may have taken the places meanwhile
        self._needed = 0
        stop = min(stop, start + free)
        assert self.acks is not None
        own = self._rows.ids(start, stop)
        ids = inbox.register_batch(self.acks, start, stop - start, own, self._timeout)
        try:
            envelopes = self._whole if own else self._rows.envelopes(start, stop, ids, *self._options)
            frames, size = self._framed(envelopes, 0 if own else start, stop)
            if not self._link.fits(len(frames)):  # the connection is down, and its buffer nearly full
                self._needed = len(frames)
                return
            self.acks.sent(start, stop)
            await self._hand_over(frames, stop, size)
        finally:
            inbox.withdraw_batch(ids[self.sent - start :])

    async def _send_without_acks(self) -> None:
        """Hand over the next piece once the connection's buffer has room for it."""
        stop = self._end_of_piece()
        frames, size = self._framed(self._whole, 0, stop)
        await self._room(len(frames))
        await self._hand_over(frames, stop, size)

    def _end_of_piece(self) -> int:
        """Return the end of the rows to hand over next."""
        if self._inbox is not None and not self._link.direct:
            return self.sent + 1  # nc.publish() may wait between two rows
        end: int = self._whole.reach(self.sent, _PIECE)[0]
        end = max(end, self.sent + 1)  # a single row larger than a piece
        return end if self._inbox is None else min(end, self.sent + _ROWS)

    def _framed(self, envelopes: Any, base: int, stop: int) -> tuple[bytes, int]:
        """Return the rows up to ``stop`` as PUB commands, and the bytes of their payloads.

        The first of ``envelopes`` is row ``base`` of the batch.
        """
        at = self.sent - base
        which = None if self._which is None else self._which[base : base + envelopes.length]
        size = envelopes.size_of(at, stop - base)
        return envelopes.frames(at, stop - base, self._subjects, which), size

    async def _hand_over(self, frames: bytes, stop: int, size: int) -> None:
        if self.epoch is None:
            self.epoch = self._link.epoch
        if self._link.direct:
            self._link.write(frames, stop - self.sent, size)
            self.sent = stop
        else:
            await self._publish_singly(frames)

    async def _publish_singly(self, frames: bytes) -> None:
        """Split the frames again and publish one by one, for connections without direct buffer access."""
        at = 0
        while at < len(frames):
            head, _, _ = frames[at : at + 4096].partition(b"\r\n")
            _, subject, size = head.split(b" ")
            begin = at + len(head) + 2
            await self._link.publish(subject.decode(), frames[begin : begin + int(size)])
            self.sent += 1
            at = begin + int(size) + 2

    async def _room(self, size: int) -> None:
        deadline = asyncio.get_running_loop().time() + self._timeout
        await self._link.room(size, deadline, self.sent)
