"""What all readers of messages have in common: one by one, in lists, or as Arrow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from liftenvelope.client.options import check_count, check_seconds
from liftenvelope.client.partition_read import read_messages
from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    import pyarrow as pa

    from liftenvelope.envelope import Message

__all__ = ["MessageReader"]


class MessageReader:
    """Hands out messages that come in lists. For one task at a time."""

    def __init__(self) -> None:
        #: Messages that were read and not handed out, the next one last.
        self._buffer: list[Message] = []
        # The bytes of the list that the buffer was made of; and bytes that were not read yet.
        self._chunk: list[bytes] = []
        self._unread: list[bytes] = []
        self._failure: LiftEnvelopeError | None = None
        self._over = False
        # Whether a task waits for messages. A second one would take them from it.
        self._is_awaited = False
        self.closed = False

    @property
    def finished(self) -> bool:
        """Whether everything was handed out, the read having come to its end or been closed."""
        return self._over and not self._buffer and not self._unread

    async def _next_payloads(self) -> list[bytes] | None:
        """Wait for messages, at least one; None when the read is over."""
        raise NotImplementedError

    async def open(self) -> Self:
        """Begin; ``async with`` does it."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the read. What was not handed out is dropped. Closing twice is fine."""
        self.closed = self._over = True
        self._buffer.clear()
        self._chunk, self._unread = [], []

    async def next(self, timeout: float | None = None) -> Message | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait for it, None for as long as it takes.

        Returns:
            The message. None if none came in time, or there will be no more: see :attr:`finished`.

        Raises:
            LiftEnvelopeError: What iterating would raise.
        """
        if not self._buffer:
            limit = None if timeout is None else check_seconds("timeout", timeout, zero=True)
            try:
                async with asyncio.timeout(limit):
                    await self._fill()
            except LiftEnvelopeError:
                raise
            except TimeoutError:
                return None
        return self._buffer.pop() if self._buffer else None

    async def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> AsyncIterator[list[Message]]:
        """Iterate over lists of messages.

        Args:
            max_messages: How many a list has at most.
            max_wait: Seconds after the first message of a list that it waits for more.

        Yields:
            Lists of at least one message. The last one may be shorter.

        Raises:
            UsageError: An argument makes no sense.
            LiftEnvelopeError: What iterating would raise, after all messages that came before it.
        """
        check_count("max_messages", max_messages)
        check_seconds("max_wait", max_wait, zero=True)
        while (payloads := await self._collect(max_messages, max_wait)) is not None:
            yield await self._decode(payloads)

    async def arrow_batches(
        self, max_rows: int = 65_536, *, max_wait: float = 1.0
    ) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over Arrow record batches of messages. Needs the ``[arrow]`` extra.

        Args:
            max_rows: How many rows a batch has at most.
            max_wait: Seconds after the first message of a batch that it waits for more.

        Yields:
            Batches of at least one row, with the columns of :func:`liftenvelope.arrow.stored_batch`.

        Raises:
            UsageError: An argument makes no sense.
            MissingExtraError: pyarrow is not installed.
            LiftEnvelopeError: What iterating would raise, after all messages that came before it.
        """
        from liftenvelope import arrow

        check_count("max_rows", max_rows)
        check_seconds("max_wait", max_wait, zero=True)
        while (payloads := await self._collect(max_rows, max_wait)) is not None:
            yield arrow.stored_batch(payloads)

    async def _fill(self) -> None:
        """Read more messages into the buffer, which stays empty when the read is over."""
        self._chunk = await self._take() or []
        self._buffer = (await self._decode(self._chunk))[::-1]

    async def _decode(self, payloads: list[bytes]) -> list[Message]:
        try:
            return read_messages(payloads)
        except LiftEnvelopeError as exc:
            await self._fail(exc)
            raise

    async def _fail(self, error: LiftEnvelopeError) -> None:
        """End the read by an error, which is raised again whenever somebody reads on."""
        self._failure = self._failure or error
        await self.close()

    async def _take(self) -> list[bytes] | None:
        """Return the bytes of messages that are there or come next; None when the read is over."""
        if self._buffer:  # some of them were read already
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

    async def _collect(self, limit: int, max_wait: float) -> list[bytes] | None:
        """Return the bytes of up to so many messages; None when the read is over."""
        payloads = await self._take()
        if payloads is None:
            return None
        try:
            await self._add(payloads, limit, max_wait)
        except BaseException:
            self._unread = payloads  # whoever reads on gets them
            raise
        self._unread = payloads[limit:] + self._unread
        del payloads[limit:]
        return payloads

    async def _add(self, payloads: list[bytes], limit: int, max_wait: float) -> None:
        if len(payloads) >= limit or not max_wait:
            return
        try:
            async with asyncio.timeout(max_wait):
                while len(payloads) < limit and (more := await self._take()) is not None:
                    payloads += more
        except LiftEnvelopeError:
            return  # kept, and raised when these have been handed out
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
