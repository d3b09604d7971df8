"""Checkpoints: store a reader's cursor in the background, with few calls to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Generic, Self, TypeVar, overload

from liftenvelope._checks import MAX_INT64, as_count, as_seconds
from liftenvelope._deadlines import Deadline
from liftenvelope.client._consuming.checkpoints import Checkpoints
from liftenvelope.client._events import CheckpointFailed
from liftenvelope.client.core import check_partition
from liftenvelope.client.cursor_names import cursor_key
from liftenvelope.consumers.locks import holding
from liftenvelope.envelope import Message
from liftenvelope.errors import LiftEnvelopeError, UsageError, UsageTypeError

if TYPE_CHECKING:
    from types import TracebackType

    from liftenvelope.client._parts import ClientParts
    from liftenvelope.client.cursor_names import CursorName

__all__ = ["CheckpointWriter", "Checkpointer"]

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


class CheckpointWriter(Generic[_K]):
    """Stores checkpoints in a background task when they are due, and immediately on :meth:`flush`.

    ``_lock`` serializes the rounds of the background task and of :meth:`flush`, so that an older offset
    cannot be written after a newer one.

    Args:
        checkpoints: Offsets to store and their due times.
        store: Stores one offset. Returns the stored offset, which is larger if another reader stored a later
            one.
        on_failure: Called with each checkpoint that the background task failed to store. The task retries it.
        timeout: Seconds for one round.
        allowed: Called before each round; returns the checkpoints that may be stored. Default: all.
    """

    def __init__(
        self,
        checkpoints: Checkpoints[_K],
        store: Callable[[_K, int, Deadline], Awaitable[int]],
        on_failure: Callable[[_K, int, LiftEnvelopeError], object],
        timeout: float,
        allowed: Callable[[list[tuple[_K, int]], Deadline], Awaitable[list[tuple[_K, int]]]] | None = None,
    ) -> None:
        self.checkpoints = checkpoints
        self._store = store
        self._on_failure = on_failure
        self._allowed = allowed
        self._timeout = timeout
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._clock = asyncio.get_running_loop().time

    @property
    def is_running(self) -> bool:
        """True while the background task runs."""
        return self._task is not None and not self._task.done()

    def start(self, on_done: Callable[[asyncio.Task[None]], object] = lambda _: None) -> None:
        """Start the background task. ``on_done`` is called when the task ends."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(on_done)

    async def stop(self) -> None:
        """Cancel the background task and raise its failure, if any. Pending offsets are not stored.

        Raises:
            Exception: Raised by ``on_failure``, for example a warning under ``-W error``.
        """
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure

    def processed(self, key: _K, offset: int) -> None:
        """Note that a message was processed."""
        if self.checkpoints.processed(key, offset, self._clock()):
            self._wake.set()

    async def flush(self, keys: Collection[_K] | None = None, timeout: float | None = None) -> None:
        """Store the processed offsets of the given partitions now; None for all partitions.

        Raises:
            LiftEnvelopeError: An offset could not be stored: the first error. Every offset was attempted.
            CallTimeoutError: An earlier write did not end in time.
        """
        deadline = Deadline(timeout or self._timeout)
        async with self.alone(deadline):
            errors = await self._round(self.checkpoints.pending(keys), deadline)
        if errors:
            raise errors[0][2]

    def alone(self, deadline: Deadline) -> AbstractAsyncContextManager[None]:
        """Keep other rounds from writing.

        Raises:
            CallTimeoutError: An earlier write did not end before the deadline.
        """
        text = f"the cursors were not written in {deadline.timeout} s: an earlier write has not ended"
        return holding(self._lock, deadline, text)

    async def _run(self) -> None:
        while True:
            wait = self.checkpoints.wait(self._clock())
            if wait is None or wait > 0:
                await self._pause(wait)
                continue
            async with self._lock:
                due = self.checkpoints.due(self._clock())
                failed = await self._round(due, Deadline(self._timeout))
            for key, offset, error in failed:
                self._on_failure(key, offset, error)

    async def _pause(self, seconds: float | None) -> None:
        """Wait until the timeout, or until a due time may have changed."""
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _round(
        self, chosen: list[tuple[_K, int]], deadline: Deadline
    ) -> list[tuple[_K, int, LiftEnvelopeError]]:
        """Store the chosen offsets one by one, since servers serialize cursor writes; return the failures."""
        failed: list[tuple[_K, int, LiftEnvelopeError]] = []
        try:
            allowed = await self._allowed(chosen, deadline) if self._allowed and chosen else chosen
        except LiftEnvelopeError as exc:
            failed = [(key, offset, exc) for key, offset in chosen]
            allowed = []
        for key, offset in allowed:
            token = self.checkpoints.token(key)
            try:
                stored = await self._store(key, offset, deadline)
            except LiftEnvelopeError as exc:
                failed.append((key, offset, exc))
            else:
                # A seek or reset during the write starts a new history: this offset is not part of it.
                if self.checkpoints.token(key) is token:
                    self.checkpoints.stored(key, stored, self._clock())
        refused = {key for key, _ in chosen} - {key for key, _ in allowed}
        for key in refused | {key for key, _, _ in failed}:
            self.checkpoints.failed(key, self._clock())
        return failed


class Checkpointer:
    """Keeps the cursor of a stream's reader. Made by :meth:`Client.checkpointer`; used with ``async with``.

    The cursor is the offset of the last processed message: call :meth:`processed` after each message. The
    checkpointer stores the cursor in the background, and when the block ends. After a crash, a reader
    rereads up to ``every_messages`` messages, or those of ``every_seconds`` seconds.

    Each write first reads the stored cursor, and the larger offset wins, so the cursor does not move back.
    Servers cannot compare and set in one step, so two readers of one cursor can still race. Readers that
    share a stream belong in a consumer group.

    Example:
        >>> async with client.checkpointer("billing", "orders") as checkpoints:  # doctest: +SKIP
        ...     start = await checkpoints.start(0)
        ...     async with client.subscribe("orders", start=start) as messages:
        ...         async for message in messages:
        ...             ...
        ...             checkpoints.processed(message)
    """

    def __init__(
        self,
        parts: ClientParts,
        cursor_id: str,
        stream: str,
        *,
        every_messages: int,
        every_seconds: float,
    ) -> None:
        cursor_key(cursor_id, stream, 0)
        self._parts = parts
        self._cursor_id = cursor_id
        self._stream = stream
        self._checkpoints = Checkpoints[int](
            as_count("every_messages", every_messages), as_seconds("every_seconds", every_seconds)
        )
        self._writer: CheckpointWriter[int] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        if self._writer is not None:
            raise UsageError("the checkpointer was entered before: make a new one")
        timeout = self._parts.context.deadline(None).timeout
        self._writer = CheckpointWriter(self._checkpoints, self._store, self._report, timeout)
        self._writer.start()
        self._parts.context.open_resources.add(self)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is None:
            await self.close()
            return
        try:
            await self.close()
        except LiftEnvelopeError as failure:
            # The block's own error, such as a cancellation, must not be replaced.
            exc.add_note(
                f"what was processed could not be stored as the cursor {self._cursor_id!r}: {failure}"
            )

    async def start(self, partition: int, default: _T | str = "earliest") -> int | _T | str:
        """Return the offset after the cursor, to pass as ``start`` of :meth:`Client.subscribe`.

        Args:
            partition: Number of the partition.
            default: Value to return if there is no cursor. Default: ``"earliest"``.

        Raises:
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        stored = await self._parts.cursors.fetch_cursor(self._cursor_id, self._stream, partition)
        if stored is None:
            return default
        self._running().checkpoints.stored(partition, stored, asyncio.get_running_loop().time())
        return stored + 1

    @overload
    def processed(self, message: Message, /) -> None: ...
    @overload
    def processed(self, partition: int, offset: int, /) -> None: ...

    def processed(self, message: Message | int, offset: int | None = None, /) -> None:
        """Mark a message, and all earlier messages of its partition, as processed.

        This only records the offset; the background task sends it. An offset smaller than an earlier one has
        no effect. If messages of one partition are processed concurrently and may finish out of order,
        announce each message with :meth:`delivered` first.

        Args:
            message: The message, or the number of its partition.
            offset: Offset of the message, if ``message`` is a partition number.

        Raises:
            UsageError: The message is of another stream, a number is out of range, or the checkpointer is not
                open.
        """
        self._running().processed(*self._place(message, offset))

    @overload
    def delivered(self, message: Message, /) -> None: ...
    @overload
    def delivered(self, partition: int, offset: int, /) -> None: ...

    def delivered(self, message: Message | int, offset: int | None = None, /) -> None:
        """Announce a message before processing: the cursor stays below it until :meth:`processed`.

        Call it in the order of offsets.

        Args:
            message: The message, or the number of its partition.
            offset: Offset of the message, if ``message`` is a partition number.

        Raises:
            UsageError: The message is of another stream, a number is out of range, or the checkpointer is not
                open.
        """
        self._running().checkpoints.delivered(*self._place(message, offset))

    async def flush(self, *, timeout: float | None = None) -> None:
        """Store the processed offsets now. Offsets that failed in the background are retried.

        Args:
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            LiftEnvelopeError: An offset could not be stored, as for :meth:`Client.set_cursor`.
        """
        limit = None if timeout is None else as_seconds("timeout", timeout)
        await self._running().flush(timeout=limit)

    async def close(self) -> None:
        """Store the processed offsets and stop. Closing twice has no effect.

        Raises:
            LiftEnvelopeError: An offset could not be stored. The checkpointer is closed anyway.
        """
        writer = self._writer
        if self._closed or writer is None:
            return
        self._closed = True
        try:
            await writer.flush()
        finally:
            self._parts.context.open_resources.discard(self)
            await writer.stop()

    async def lag(self, partition: int, *, timeout: float | None = None) -> int:
        """Return the reader's lag in offsets: the partition's newest offset minus the last processed one.

        If this checkpointer has no processed offset, the stored cursor is used. Without a stored cursor,
        every message counts.

        Args:
            partition: Number of the partition.
            timeout: Seconds for each call. Default: the client's ``timeout``.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: The stream has no such partition.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        last = self._checkpoints.last(check_partition(partition))
        if last is None:
            last = await self._parts.cursors.fetch_cursor(
                self._cursor_id, self._stream, partition, timeout=timeout
            )
        info = await self._parts.streams.fetch_partition_metadata(self._stream, partition, timeout=timeout)
        return info.newest_offset - (-1 if last is None else last)

    async def reset(self, partition: int, *, timeout: float | None = None) -> None:
        """Delete the cursor and forget the processed offsets of a partition.

        Args:
            partition: Number of the partition.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            LiftEnvelopeError: As for :meth:`Client.reset_cursor`.
        """
        writer = self._running()
        deadline = self._parts.context.deadline(timeout)
        async with writer.alone(deadline):
            self._checkpoints.forget(partition)
            await self._parts.cursors.reset_cursor(
                self._cursor_id, self._stream, partition, timeout=deadline.left
            )

    def _running(self) -> CheckpointWriter[int]:
        if self._writer is None or self._closed:
            raise UsageError("the checkpointer is not open: use it in a 'with' block")
        return self._writer

    def _place(self, message: Message | int, offset: int | None) -> tuple[int, int]:
        if not isinstance(message, Message):
            partition = check_partition(message)
            if offset is None:
                raise UsageTypeError("offset must be given with a partition, got None")
            return partition, as_count("offset", offset, 0, MAX_INT64)
        if message.stream != self._stream:
            raise UsageError(f"message must be of stream {self._stream!r}, got one of {message.stream!r}")
        return message.partition, message.offset

    def _name(self, partition: int) -> CursorName:
        return self._cursor_id, self._stream, partition

    async def _store(self, partition: int, offset: int, deadline: Deadline) -> int:
        return await self._parts.cursors.advance(self._name(partition), offset, deadline)

    def _report(self, partition: int, offset: int, error: LiftEnvelopeError) -> None:
        event = CheckpointFailed(self._cursor_id, self._stream, partition, offset, error)
        self._parts.context.options.notify(event)
