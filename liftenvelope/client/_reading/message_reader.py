"""Common base of all message readers: messages one by one, in lists, or as Arrow."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, Self

from liftenvelope._checks import MOST_BATCH_BYTES, as_count, as_seconds
from liftenvelope.client.partition_read import read_messages
from liftenvelope.envelope import Message
from liftenvelope.errors import LiftEnvelopeError, UsageError
from liftenvelope.rpc.status import RpcError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from types import TracebackType

    import pyarrow as pa

    from liftenvelope.payload import PayloadChoice
    from liftenvelope.payload.typed_rows import TypedRows

__all__ = ["MessageReader", "readable"]

#: Seconds to pause between reads of a server that sends messages one by one, and the shortest ``max_wait`` of
#: lists and batches that are read with pauses.
_PAUSE: Final = 0.001
_PATIENT: Final = 0.01


class MessageReader:
    """Hands out messages that come in lists. For one task at a time."""

    # Messages that were received and not handed out are in two places, in this order: decoded in _buffer,
    # then encoded in _unread. _chunk holds the encoded form of _buffer, so that a switch from single messages
    # to lists or Arrow loses none: its last len(_buffer) items were not handed out.

    def __init__(self) -> None:
        #: Decoded messages that were not handed out, the next one last.
        self._buffer: list[Message] = []
        # Encoded messages: those that _buffer was decoded from, and those not decoded yet.
        self._chunk: list[bytes] = []
        self._unread: list[bytes] = []
        #: Encoded messages of the list or Arrow batch that was handed out last.
        self._given: list[bytes] = []
        self._failure: LiftEnvelopeError | None = None
        self._over = False
        # Set while a task waits for messages: a second task would take them from it.
        self._is_awaited = False
        #: Seconds to pause between small reads; 0 for no pauses.
        self._pause = 0.0
        self.closed = False

    @property
    def finished(self) -> bool:
        """True if the read has ended or was closed, and every message was handed out."""
        return self._over and not self._buffer and not self._unread

    @property
    def buffered(self) -> int:
        """Number of messages received and not yet handed out."""
        return len(self._buffer) + len(self._unread)

    def _kept(self) -> Iterator[Message]:
        """Yield the messages that were received and not handed out, the next one first."""
        yield from reversed(self._buffer)
        yield from readable(self._unread)

    async def _next_payloads(self) -> list[bytes] | None:
        """Wait for one or more messages and return them encoded; None when the read is over."""
        raise NotImplementedError

    async def open(self) -> Self:
        """Open the reader; ``async with`` does it."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the read and drop messages that were not handed out. Closing twice is fine."""
        self.closed = self._over = True
        self._buffer.clear()
        self._chunk, self._unread = [], []

    async def next(self, timeout: float | None = None) -> Message | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait for the message; None, the default, for no limit.

        Returns:
            The message. None if no message came in time, or the read has ended: see :attr:`finished`.

        Raises:
            LiftEnvelopeError: Any error that iteration raises.
        """
        if not self._buffer:
            limit = None if timeout is None else as_seconds("timeout", timeout, zero=True)
            try:
                async with asyncio.timeout(limit):
                    await self._fill()
            except LiftEnvelopeError:
                raise
            except TimeoutError:
                return None
        return self._buffer.pop() if self._buffer else None

    def _take_back(self, item: Message | list[Message] | pa.RecordBatch | None) -> None:
        """Keep what was handed out last for the next read: the caller was interrupted before it came."""
        if isinstance(item, Message):
            self._buffer.append(item)
        elif item is not None:
            self._unread, self._given = self._given + self._unread, []

    async def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> AsyncIterator[list[Message]]:
        """Iterate over lists of messages.

        Args:
            max_messages: Maximum messages per list. Default 1,000.
            max_wait: Seconds to wait for more messages after the first one of a list. Default 0.1.

        Yields:
            Lists of at least one message. The last list may be shorter.

        Raises:
            UsageError: An argument is out of range.
            LiftEnvelopeError: Any error that iteration raises, after all messages that came before the error.
        """
        as_count("max_messages", max_messages)
        as_seconds("max_wait", max_wait, zero=True)
        while (payloads := await self._collect(max_messages, max_wait)) is not None:
            messages = await self._decode(payloads)
            self._given = payloads
            yield messages

    async def arrow_batches(
        self,
        max_rows: int = 65_536,
        *,
        max_wait: float = 1.0,
        max_bytes: int = 64 * 1024 * 1024,
        payload: PayloadChoice = None,
        on_bad: Literal["fail", "column"] = "fail",
    ) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over Arrow record batches of messages. Needs the ``[arrow]`` extra.

        Args:
            max_rows: Maximum rows per batch. Default 65,536.
            max_wait: Seconds to wait for more messages after the first one of a batch. Default 1.
            max_bytes: Maximum bytes of encoded messages per batch; a larger message is a batch of its own.
                Default 64 MiB.
            payload: Format of the values, which replaces the column ``value`` by typed columns, as for
                :func:`liftenvelope.bulk.read`. A schema that is not given is that of the first batch. A
                message of ``"arrow"`` becomes a batch of its own. Needs the ``[payload]`` extra.
            on_bad: ``"fail"`` (default) or ``"column"``, as for :func:`liftenvelope.bulk.read`.

        Yields:
            Batches of at least one row, with the columns of :func:`liftenvelope.arrow.stored_batch`.

        Raises:
            UsageError: An argument is out of range, or a field of the payload has the name of a column.
            BadPayloadError: A message does not fit the payload. The rows of the messages before it were
                yielded, and the next read begins with it.
            MissingExtraError: pyarrow is not installed.
            LiftEnvelopeError: Any error that iteration raises, after all messages that came before the error.
        """
        from liftenvelope import arrow

        as_count("max_rows", max_rows)
        as_seconds("max_wait", max_wait, zero=True)
        as_count("max_bytes", max_bytes, 1, MOST_BATCH_BYTES)
        typed = None if payload is None and on_bad == "fail" else _typed_rows(payload, on_bad)
        while (payloads := await self._collect(max_rows, max_wait, max_bytes)) is not None:
            # Until rows are yielded, none of the messages is handed out.
            self._unread = left = payloads + self._unread
            batch = arrow.stored_batch(payloads)
            pieces = [(len(payloads), [batch])] if typed is None else typed.pieces(batch, apart=True)
            done = 0
            for reached, rows in pieces:
                self._given = left[: reached - done]
                del left[: reached - done]
                done = reached
                for each in rows:
                    yield each
                if self._unread is not left:  # the caller has read further, or closed the reader
                    break

    async def _fill(self) -> None:
        """Decode more messages into the buffer, which stays empty when the read is over."""
        self._pause = 0.0
        self._chunk = await self._take() or []
        self._buffer = (await self._decode(self._chunk))[::-1]

    async def _refill(self) -> bool:
        """Fill the empty buffer; return False if the read is over. For readers that pop in another thread."""
        await self._fill()
        return bool(self._chunk)  # other threads may have popped all of the buffer already

    async def _decode(self, payloads: list[bytes]) -> list[Message]:
        try:
            return read_messages(payloads)
        except LiftEnvelopeError as exc:
            self._unread[:0] = payloads  # none of them is handed out
            await self._fail(exc)
            raise

    async def _fail(self, error: LiftEnvelopeError) -> None:
        """End the read with an error, which every later attempt to read raises again."""
        self._failure = self._failure or error
        await self.close()

    async def _take(self) -> list[bytes] | None:
        """Return encoded messages: those kept here, or else the next ones; None when the read is over."""
        if self._buffer:  # the first ones of the chunk may have been handed out
            payloads, self._chunk = self._chunk[-len(self._buffer) :], []
            self._buffer.clear()
            return payloads
        if self._unread:
            payloads, self._unread = self._unread, []
            return payloads
        if self._failure is not None:
            raise self._failure
        if self._over:
            return None
        if self._is_awaited:
            raise UsageError("another task waits for the next message: read in one task at a time")
        self._is_awaited = True
        try:
            found = await self._next_payloads()
        except UsageError:  # not open yet: it can still be opened
            raise
        except LiftEnvelopeError as exc:
            await self._fail(exc)
            raise
        finally:
            self._is_awaited = False
        if found is None:
            await self.close()
        return found

    async def _collect(self, limit: int, max_wait: float, max_bytes: int | None = None) -> list[bytes] | None:
        """Return up to ``limit`` encoded messages of at most ``max_bytes``; None when the read is over."""
        self._pause = _PAUSE if max_wait >= _PATIENT else 0.0
        payloads = await self._take()
        if payloads is None:
            return None
        try:
            await self._add(payloads, limit, max_wait, max_bytes)
        except BaseException:
            self._unread = payloads  # the next read returns them
            raise
        rows = _rows_within(payloads, limit, max_bytes)
        self._unread = payloads[rows:] + self._unread
        del payloads[rows:]
        return payloads

    async def _add(self, payloads: list[bytes], limit: int, max_wait: float, max_bytes: int | None) -> None:
        if len(payloads) >= limit or not max_wait:
            return
        size = sum(map(len, payloads))
        try:
            async with asyncio.timeout(max_wait):
                while (
                    len(payloads) < limit
                    and (max_bytes is None or size < max_bytes)
                    and (more := await self._take()) is not None
                ):
                    payloads += more
                    size += sum(map(len, more))
        except LiftEnvelopeError:
            return  # _fail keeps the error: it is raised after these messages were handed out
        except TimeoutError:
            return

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if not self._buffer:
            await self._fill()
            if not self._buffer:
                raise StopAsyncIteration
        return self._buffer.pop()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _typed_rows(payload: PayloadChoice, on_bad: str) -> TypedRows | None:
    from liftenvelope.arrow import STORED_SCHEMA
    from liftenvelope.payload.typed_rows import typed_rows

    return typed_rows(payload, on_bad, STORED_SCHEMA, "stream")


def readable(payloads: Iterable[bytes]) -> Iterator[Message]:
    """Yield the messages among encoded ones; a read of the others raises the error."""
    for payload in payloads:
        with suppress(RpcError):
            yield from read_messages([payload])


def _rows_within(payloads: list[bytes], limit: int, max_bytes: int | None) -> int:
    """Return the number of messages for a batch of at most ``max_bytes``; one may be larger."""
    rows = min(limit, len(payloads))
    if max_bytes is None or sum(map(len, payloads)) <= max_bytes:
        return rows
    size = 0
    for row in range(rows):
        size += len(payloads[row])
        if size > max_bytes:
            return max(row, 1)
    return rows
