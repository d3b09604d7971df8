"""Consumer shell: lifecycle, tasks and readers of a member of a group.

The shell is the same for every protocol. A subclass adds its protocol: how the member joins and leaves the
group, carries out assignments, hands out messages, and stores offsets.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar
from uuid import uuid4

from liftenvelope._checks import MAX_INT64, as_count, as_seconds
from liftenvelope.consumers.options import KeyT
from liftenvelope.consumers.tasks import cancel
from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from liftenvelope.consumers.options import AssignmentCallback, ShellOptions

__all__ = ["TURN", "ConsumerShell", "ShellReader", "stop"]

#: Seconds for which messages are handed out in a row before other tasks get a turn.
TURN: Final = 0.05


class ShellReader(Protocol):
    """Reader of one assigned partition, as far as the shell uses it."""

    @property
    def waiting(self) -> int:
        """Number of messages that were read and not handed out."""

    def start(self, on_done: Callable[[asyncio.Task[None]], None], /) -> None:
        """Start reading. ``on_done`` is called when the read task ends."""

    def seek(self, offset: int, /) -> None:
        """Continue at another offset."""

    def stop(self) -> None:
        """Drop the messages read ahead, and cancel the read task."""

    async def close(self) -> None:
        """Stop, and wait until the read task has ended."""


MemberT = TypeVar("MemberT")
ReaderT = TypeVar("ReaderT", bound=ShellReader)
MessageT = TypeVar("MessageT")


class ConsumerShell(ABC, Generic[KeyT, MemberT, ReaderT, MessageT]):
    """Base of the consumers: everything that does not depend on the group's protocol.

    Its type parameters are the types of a partition, of the membership, of a partition's reader and of a
    message.
    """

    def __init__(self, options: ShellOptions[KeyT]) -> None:
        self._group = options.group
        self._consumer_id = options.consumer_id or f"consumer-{uuid4().hex}"
        self._on_assigned = options.on_assigned
        self._on_revoked = options.on_revoked
        self._member: MemberT | None = None
        #: Readers of the assigned partitions.
        self._readers: dict[KeyT, ReaderT] = {}
        #: Readers being given back: no longer read from, but their offsets can still be stored.
        self._leaving: dict[KeyT, ReaderT] = {}
        #: Set when a reader has messages, when a task fails, and when the consumer closes.
        self._wake = asyncio.Event()
        #: True while a task waits for messages.
        self._is_awaited = False
        #: The first task sends heartbeats.
        self._tasks: list[asyncio.Task[None]] = []
        #: Errors of readers, until the reader is dropped or moved by a seek; and of another task, at None.
        self._failures: dict[ReaderT | None, BaseException] = {}
        #: First of these errors, raised by the iteration.
        self._failure: BaseException | None = None
        self._closing = False
        self._closer: asyncio.Task[object] | None = None
        self._gone = asyncio.Event()
        #: Set while no callback of the user runs.
        self._told = asyncio.Event()
        self._told.set()

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._group

    @property
    def consumer_id(self) -> str:
        """Id of this member."""
        return self._consumer_id

    @property
    def assignment(self) -> frozenset[KeyT]:
        """Partitions that this member reads now."""
        return frozenset(self._readers)

    @property
    def buffered(self) -> int:
        """Number of messages of these partitions that were received and not handed out."""
        return sum(reader.waiting for reader in list(self._readers.values()))

    # Protocol of a subclass

    @abstractmethod
    async def _join(self, member: MemberT) -> None:
        """Join the group, spawn the tasks, and wait until the first assignment was carried out."""

    @abstractmethod
    async def _give_all_back(self) -> None:
        """Stop reading, call ``on_revoked``, store the processed offsets, and leave the group."""

    @abstractmethod
    async def _next(self, limit: int, max_wait: float) -> list[MessageT]:
        """Settle, and return up to ``limit`` messages; an empty list once the consumer is closing."""

    @abstractmethod
    def _forget(self, key: KeyT) -> None:
        """Drop the processed offset of a partition that is not stored yet."""

    @abstractmethod
    def _not_assigned(self, key: KeyT) -> LiftEnvelopeError:
        """Return the error about a partition that is not assigned to this member."""

    # Lifecycle

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is None:
            await self.close()
        else:
            await self._close_after(exc)

    @abstractmethod
    async def open(self) -> Self:
        """Join the group and start reading the assigned partitions."""

    async def _open(self, member: MemberT) -> None:
        if self._member is not None or self._closing:
            raise UsageError("a consumer can be opened only once; create a new one")
        self._member = member
        try:
            await self._join(member)
        except BaseException as exc:
            await self._close_after(exc)
            raise

    async def _close_after(self, error: BaseException) -> None:
        """Close after an error, such as a cancellation, that must propagate unchanged."""
        try:
            await self.close()
        except LiftEnvelopeError as failure:
            error.add_note(f"group {self.group!r}: the processed offsets could not be stored: {failure}")

    async def close(self) -> None:
        """Stop reading, call ``on_revoked``, store the processed offsets, and leave the group.

        The last message handed out counts as processed only if it was committed. ``close`` takes at most the
        default timeout of a call, plus the time of ``on_revoked``. Closing twice has no effect.

        Raises:
            LiftEnvelopeError: The processed offsets could not be stored. The consumer is closed anyway.
        """
        if self._closing:
            if self._closer is not asyncio.current_task():  # on_revoked may call close()
                await self._gone.wait()
            return
        self._closing, self._closer = True, asyncio.current_task()
        self._interrupt()
        try:
            if self._member is not None:
                await self._give_all_back()
        finally:
            try:
                await self._end()
            finally:
                self._gone.set()

    async def _end(self) -> None:
        """Stop every reader and every task."""
        readers = [*self._readers.values(), *self._leaving.values()]
        self._readers.clear()
        try:
            await stop(readers)
        finally:
            await cancel(self._tasks)

    def _running(self) -> MemberT:
        """Return the membership of an open consumer."""
        if self._member is None:
            raise UsageError("the consumer is not open: use it in a 'with' or 'async with' block")
        return self._member

    def _check(self) -> None:
        """Raise if the consumer is not open, or if a task has failed."""
        self._running()
        if self._failure is not None and not self._closing:
            raise self._failure

    # Tasks

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_done)
        self._tasks.append(task)

    def _task_done(self, task: asyncio.Task[None], reader: ReaderT | None = None) -> None:
        """Pass the failure of a task to the iterating task."""
        if task.cancelled() or (failure := task.exception()) is None:
            return
        if reader is not None and reader not in self._readers.values():
            return  # the partition's next reader meets the error itself
        self._failures.setdefault(reader, failure)
        self._failure = self._failure or failure
        self._interrupt()

    def _interrupt(self) -> None:
        """Make the iterating task look at the failure, or at the end of the consumer."""
        self._wake.set()

    def _forgive(self, readers: Iterable[ReaderT]) -> None:
        """Forget the errors of readers that are dropped, or that continue elsewhere."""
        for reader in readers:
            self._failures.pop(reader, None)
        self._failure = next(iter(self._failures.values()), None)

    # Partitions

    async def _begin(self, readers: Mapping[KeyT, ReaderT]) -> None:
        """Call ``on_assigned``, which may seek, and start the readers."""
        await self._tell(self._on_assigned, readers)
        if self._closing:  # the callback may call close()
            return
        for reader in readers.values():
            reader.start(partial(self._task_done, reader=reader))

    async def _tell(self, callback: AssignmentCallback[KeyT] | None, keys: Iterable[KeyT]) -> None:
        partitions = sorted(keys)
        if callback is None or not partitions:
            return
        self._told.clear()
        try:
            outcome = callback(partitions)
            if inspect.isawaitable(outcome):
                await outcome
        finally:
            self._told.set()

    def _reader(self, key: KeyT) -> ReaderT:
        """Return the reader of an assigned partition."""
        self._running()
        reader = self._readers.get(key)
        if reader is None:
            raise self._not_assigned(key)
        return reader

    def _seek(self, key: KeyT, offset: int) -> None:
        reader = self._reader(key)
        self._forget(key)
        reader.seek(offset)
        self._forgive([reader])

    # Messages

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[MessageT]:
        """Iterate over the messages. One counts as processed when the next one is requested."""

    async def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> AsyncIterator[list[MessageT]]:
        """Iterate over lists of messages. A list counts as processed when the next one is requested.

        Args:
            max_messages: Maximum number of messages in a list.
            max_wait: Seconds to wait for more messages after the first one of a list.

        Yields:
            Lists of at least one message from any assigned partition, in order within each partition.

        Raises:
            UsageError: An argument is invalid, or another task waits for messages.
            LiftEnvelopeError: Any error that iterating would raise.
        """
        as_count("max_messages", max_messages, most=MAX_INT64)
        as_seconds("max_wait", max_wait, zero=True)
        while messages := await self._next(max_messages, max_wait):
            yield messages

    def _check_alone(self) -> None:
        """Raise if a task waits: each of two would mark messages as processed that the other works on."""
        if self._is_awaited:
            raise UsageError("another task waits for the next message: read in one task at a time")

    async def _until_woken(self, timeout: float | None = None) -> None:
        """Wait at most ``timeout`` seconds for messages, a failure or the end of the consumer."""
        self._wake.clear()
        if self._failure is not None or self._closing:
            return
        self._check_alone()
        self._is_awaited = True
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._is_awaited = False


async def stop(readers: Collection[ShellReader]) -> None:
    """Stop readers, and wait until their read tasks have ended."""
    # A cancellation can end any wait below, so every reader is told to stop first.
    for reader in readers:
        reader.stop()
    for reader in readers:
        await reader.close()
