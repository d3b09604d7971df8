"""``messages`` and ``consume``: an iterator, and a loop that calls a handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, Self

from liftenvelope._native import frames
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.jetstream._endings import DRAIN
from liftenvelope.jetstream.message import Message
from liftenvelope.nats._outcomes import positive

__all__ = ["Consumption", "Feed", "Handler", "Messages"]

#: What ``consume`` calls with each message: a plain function or a coroutine function.
Handler = Callable[[Message], Awaitable[None] | None]


class Feed(Protocol):
    """Source of :class:`Messages` and :class:`Consumption`."""

    #: Whether to give the pin back at the end.
    unpin: bool

    @property
    def buffer(self) -> Any:
        """What can be taken at once; if it is a ``MessageQueue``, by iterating over that as well."""

    async def start(self) -> None:
        """Begin to pull."""

    async def next(self) -> Message:
        """The next message."""

    def pop(self) -> Message:
        """The first message of a buffer that has one."""

    def stop(self) -> None:
        """End now."""

    async def drain(self, timeout: float) -> None:
        """Pull nothing more."""

    def release(self) -> None:
        """Begin to give the pin back."""

    async def released(self) -> None:
        """Wait until the pin is given back."""

    async def wait_ended(self) -> None:
        """Wait for the end."""

    @property
    def buffered(self) -> int:
        """How many messages wait to be taken."""


class Messages:
    """The messages of a consumer, one after the other. Made by ``Consumer.messages``.

    Leaving the ``async with`` stops it. The iteration ends after :meth:`stop` or :meth:`drain`, and raises
    what ends it otherwise: :class:`~liftenvelope.errors.ConsumerDeletedError`, ``PushConsumerError``,
    ``BadRequestError``, ``ConnectionClosedError``. What was buffered before comes first.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __aenter__(self) -> Self:
        try:
            await self._feed.start()
        except UsageError:
            raise  # it was entered before, and goes on
        except BaseException:
            self._feed.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._feed.stop()
        self._feed.release()
        await self._feed.released()

    def __aiter__(self) -> AsyncIterator[Message]:
        # The queue hands out what is there without a coroutine for each message, and else waits like next().
        buffer = self._feed.buffer
        return buffer if isinstance(buffer, frames.MessageQueue) else self

    async def __anext__(self) -> Message:
        feed = self._feed
        return feed.pop() if feed.buffer else await feed.next()

    async def next(self, timeout: float | None = None) -> Message:
        """The next message.

        Args:
            timeout: How long to wait for it, in seconds. Default: as long as it takes.

        Raises:
            TimeoutError: None came in time; the iteration goes on.
            StopAsyncIteration: It was stopped or drained.
            LiftEnvelopeError: It has ended by an error.
        """
        if self._feed.buffer:
            return self._feed.pop()
        async with asyncio.timeout(timeout):
            return await self._feed.next()

    def stop(self, *, nak: bool = False, unpin: bool = True) -> None:
        """End now; what is buffered is dropped, and comes again after ``ack_wait``. May be called again.

        Args:
            nak: Whether to give back what is buffered, so that the server delivers it again at once, to
                whoever pulls. It counts as delivered, which matters where ``max_deliver`` is small. What is
                still on its way comes after ``ack_wait`` in any case. Default false.
            unpin: Whether to give the pin of a pinned group back, if this iteration holds it, so that a
                standby takes over now and not after ``priority_timeout``. Default true.
        """
        _stop(self._feed, nak, unpin)
        self._feed.release()

    async def drain(self, *, timeout: float = DRAIN, unpin: bool = True) -> None:
        """Pull nothing more; the iteration delivers what the server has sent, and ends.

        Returns when no pull is left at the server: all are filled or have expired, or the consumer has
        nothing to deliver. That takes milliseconds if nothing has come for a moment. While messages keep
        coming it takes until the pulls are full.

        Args:
            timeout: Seconds to wait for the server. After them the pulls that are left are given up, and a
                message that the server sends in that instant comes again after ``ack_wait``; with the ack
                policy NONE it is lost. Default 5.
            unpin: Whether to give the pin of a pinned group back when the iteration has ended, if it holds
                it, so that a standby takes over then and not after ``priority_timeout``. Default true.

        Raises:
            UsageError: ``timeout`` is not positive.
        """
        positive("timeout", timeout)
        self._feed.unpin = self._feed.unpin and unpin
        await self._feed.drain(timeout)

    async def closed(self) -> None:
        """Wait until it has ended and everything was delivered.

        Raises:
            LiftEnvelopeError: What it was ended by.
        """
        await self._feed.wait_ended()

    @property
    def buffered(self) -> int:
        """How many messages have come and wait to be taken."""
        return self._feed.buffered


class Consumption:
    """A handler that is called with the messages of a consumer. Made by ``Consumer.consume``.

    Leaving an ``async with`` stops it. Await :meth:`closed` to learn how it ended.
    """

    def __init__(self, feed: Feed, handler: Handler, progress: float | None) -> None:
        self._feed = feed
        self._handler = handler
        self._progress = progress
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._done)

    async def _run(self) -> None:
        feed, handler, buffer = self._feed, self._handler, self._feed.buffer
        while True:
            try:
                message = feed.pop() if buffer else await feed.next()
            except StopAsyncIteration:
                return
            if self._progress is None:
                work = handler(message)
                if work is not None:
                    await work
            else:
                async with message.auto_ack_progress(self._progress):
                    work = handler(message)
                    if work is not None:
                        await work

    def _done(self, _: asyncio.Task[None]) -> None:
        # What the task has raised and nobody asks for, asyncio reports to the event loop's exception handler.
        self._feed.stop()
        self._feed.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def stop(self, *, nak: bool = False, unpin: bool = True) -> None:
        """End now: a handler that is running is left to finish, what is buffered is dropped.

        Args:
            nak: Whether to give back what is buffered: see :meth:`Messages.stop`. Default false.
            unpin: Whether to give the pin back when the handler is done: see :meth:`Messages.stop`. Default
                true.
        """
        _stop(self._feed, nak, unpin)

    async def aclose(self) -> None:
        """Stop, and wait for a handler that is running.

        Raises:
            UsageError: It was awaited in the handler, for which it would wait.
        """
        self._check_not_inside("aclose")
        self._feed.stop()
        await asyncio.wait({self._task})
        await self._feed.released()

    async def drain(self, *, timeout: float = DRAIN, unpin: bool = True) -> None:
        """Pull nothing more, have the handler called with what the server has sent, and end.

        Args:
            timeout: Seconds to wait for the server: see :meth:`Messages.drain`. The handler may take as long
                as it likes. Default 5.
            unpin: Whether to give the pin back after the last message: see :meth:`Messages.drain`. Default
                true.

        Raises:
            UsageError: It was awaited in the handler, for which it would wait; or ``timeout`` is not
                positive.
            LiftEnvelopeError: What it was ended by meanwhile.
            Exception: What the handler raised, which ends it too.
        """
        self._check_not_inside("drain")
        positive("timeout", timeout)
        self._feed.unpin = self._feed.unpin and unpin
        await self._feed.drain(timeout)
        try:
            await self.closed()
        finally:
            await self._feed.released()

    async def closed(self) -> None:
        """Wait until it has ended and the handler is done.

        Raises:
            UsageError: It was awaited in the handler, for which it would wait.
            LiftEnvelopeError: What it was ended by.
            Exception: What the handler raised, which ends it too.
        """
        self._check_not_inside("closed")
        await asyncio.shield(self._task)

    def _check_not_inside(self, name: str) -> None:
        if asyncio.current_task() is self._task:
            raise UsageError(
                f"{name}() waits for the handler, and was awaited in it: call stop() there, or let another "
                f"task await {name}()"
            )


def _stop(feed: Feed, nak: bool, unpin: bool) -> None:
    """Stop a feed, and perhaps give back what it holds."""
    feed.unpin = feed.unpin and unpin
    held = list(feed.buffer) if nak else []
    feed.stop()  # first: the server would deliver them again to the pulls of this very feed
    for message in held:
        try:
            message.nak()
        except TransportError:
            return  # the connection is gone, and they come again when they are due
