"""``messages`` and ``consume``: an iterator over messages, and a loop that calls a handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, Self

from liftenvelope._checks import as_seconds
from liftenvelope.errors import UsageError
from liftenvelope.jetstream._pulling.endings import DRAIN
from liftenvelope.jetstream.message import Message, give_back

__all__ = ["Consumption", "Handler", "MessageFeed", "Messages", "stop_feed"]

#: Handler that ``consume`` calls with each message: a plain function or a coroutine function.
Handler = Callable[[Message], Awaitable[None] | None]


class MessageFeed(Protocol):
    """Source of :class:`Messages` and :class:`Consumption`."""

    #: Release the pin at the end.
    unpin: bool

    @property
    def buffer(self) -> Any:
        """Return the buffer: true if :meth:`pop` has a message. ``async for`` over it waits for more."""

    async def start(self) -> None:
        """Start pulling."""

    async def next(self) -> Message:
        """Wait for the next message and return it."""

    def pop(self) -> Message:
        """Remove and return the first buffered message. The buffer must be true."""

    def unacked(self) -> list[Message]:
        """Return the buffered messages that the server would redeliver."""

    def stop(self) -> None:
        """Stop now."""

    async def drain(self, timeout: float) -> None:
        """Stop pulling, and wait for the pulls that are still at the server."""

    def release(self) -> None:
        """Start to release the pin."""

    async def released(self) -> None:
        """Wait until the pin is released, or the deletion of an ordered consumer is sent."""

    async def wait_ended(self) -> None:
        """Wait until the feed has ended."""

    @property
    def buffered(self) -> int:
        """Number of buffered messages."""


class Messages:
    """Asynchronous iterator over the messages of a consumer. Created by ``Consumer.messages``.

    Leaving the ``async with`` stops the iteration. It ends after :meth:`stop` or :meth:`drain`, or after
    ``stop_after`` messages. Any other end raises an error:
    :class:`~liftenvelope.errors.ConsumerDeletedError`, ``PushConsumerError``, ``BadRequestError`` or
    ``ConnectionClosedError``. Messages that were buffered before are delivered first.
    """

    def __init__(self, feed: MessageFeed) -> None:
        self._feed = feed

    async def __aenter__(self) -> Self:
        try:
            await self._feed.start()
        except UsageError:
            raise  # entered twice: the first iteration goes on
        except BaseException:
            self._feed.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._feed.stop()
        self._feed.release()
        await self._feed.released()

    def __aiter__(self) -> AsyncIterator[Message]:
        # The buffer yields its messages without a coroutine each, and waits like next() when empty.
        iterator: AsyncIterator[Message] = aiter(self._feed.buffer)
        return iterator

    async def __anext__(self) -> Message:
        feed = self._feed
        return feed.pop() if feed.buffer else await feed.next()

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message and return it.

        Args:
            timeout: Seconds to wait for the message; 0 for a message that is buffered. Default: no limit.

        Raises:
            TimeoutError: No message arrived in time. The iteration goes on.
            StopAsyncIteration: The iteration was stopped or drained, or delivered ``stop_after`` messages.
            LiftEnvelopeError: The iteration ended with an error.
            UsageError: ``timeout`` is negative, or no number.
        """
        if timeout is not None:
            as_seconds("timeout", timeout, zero=True)
        if self._feed.buffer:
            return self._feed.pop()
        async with asyncio.timeout(timeout):
            return await self._feed.next()

    def stop(self, *, nak: bool = False, unpin: bool = True) -> None:
        """Stop now and drop the buffered messages, which are redelivered after ``ack_wait``. Idempotent.

        Args:
            nak: Nak the buffered messages, so that the server redelivers them at once to any pull of the
                consumer. Each counts as a delivery, which matters if ``max_deliver`` is small. Messages
                still in flight are redelivered after ``ack_wait`` in any case. Default false.
            unpin: Release the pin of a pinned group, if this iteration holds it, so that a standby takes
                over now instead of after ``priority_timeout``. Default true.
        """
        stop_feed(self._feed, nak=nak, unpin=unpin)
        self._feed.release()

    async def drain(self, *, timeout: float = DRAIN, unpin: bool = True) -> None:
        """Stop pulling; the iteration delivers the messages that the server has sent, and ends.

        Returns when no pull is left at the server: all are filled or have expired, or the consumer has
        nothing to deliver. This takes milliseconds if no message arrived recently. While messages keep
        arriving, it lasts until the pulls are filled.

        Args:
            timeout: Seconds to wait for the server. After the timeout the remaining pulls are abandoned. A
                message that the server sends at that moment is redelivered after ``ack_wait``; with the ack
                policy NONE it is lost. Default 5.
            unpin: Release the pin of a pinned group when the iteration has ended, if the iteration holds
                the pin, so that a standby takes over then instead of after ``priority_timeout``. Default
                true.

        Raises:
            UsageError: ``timeout`` is not positive.
        """
        as_seconds("timeout", timeout)
        self._feed.unpin = self._feed.unpin and unpin
        await self._feed.drain(timeout)

    async def closed(self) -> None:
        """Wait until the iteration has ended and every message was delivered.

        Raises:
            LiftEnvelopeError: The error that ended the iteration.
        """
        await self._feed.wait_ended()

    @property
    def buffered(self) -> int:
        """Number of messages received and not yet taken by the iteration."""
        return self._feed.buffered


class Consumption:
    """Task that calls a handler with the messages of a consumer. Created by ``Consumer.consume``.

    Leaving an ``async with`` stops the consumption. Await :meth:`closed` to learn how the consumption ended.
    """

    def __init__(self, feed: MessageFeed, handler: Handler, progress: float | None) -> None:
        self._feed = feed
        self._handler = handler
        self._progress = progress
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._done)

    async def _run(self) -> None:
        """Consume, and fail if the handler ends the task with a cancellation that nobody asked for."""
        try:
            await self._consume()
        except asyncio.CancelledError as exc:
            if self._task.cancelling():
                raise
            # asyncio would take the task for cancelled: no report, and closed() would seem to be cancelled.
            raise UsageError(
                "handler must not raise CancelledError, got one without a cancellation of the consumption: "
                "catch it in the handler if a task or a future that the handler awaits may be cancelled"
            ) from exc

    async def _consume(self) -> None:
        feed, handler, buffer = self._feed, self._handler, self._feed.buffer
        while True:
            try:
                message = buffer.pop() if buffer else await feed.next()
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
        # An exception that no caller retrieves is reported by asyncio to the loop's exception handler.
        self._feed.stop()
        self._feed.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def stop(self, *, nak: bool = False, unpin: bool = True) -> None:
        """Stop now: let a running handler finish, and drop the buffered messages.

        Args:
            nak: Nak the buffered messages: see :meth:`Messages.stop`. Default false.
            unpin: Release the pin when the handler is done: see :meth:`Messages.stop`. Default true.
        """
        stop_feed(self._feed, nak=nak, unpin=unpin)

    @property
    def buffered(self) -> int:
        """Number of messages received and not yet given to the handler."""
        return self._feed.buffered

    async def aclose(self) -> None:
        """Stop, and wait for a running handler.

        Raises:
            UsageError: The handler itself awaits this method, which would deadlock.
        """
        self._check_not_inside("aclose")
        self._feed.stop()
        await asyncio.wait({self._task})
        await self._feed.released()

    async def drain(self, *, timeout: float = DRAIN, unpin: bool = True) -> None:
        """Stop pulling, call the handler with the messages that the server has sent, and end.

        Args:
            timeout: Seconds to wait for the server: see :meth:`Messages.drain`. The handler has no time
                limit. Default 5.
            unpin: Release the pin after the last message: see :meth:`Messages.drain`. Default true.

        Raises:
            UsageError: The handler itself awaits this method, which would deadlock; or ``timeout`` is not
                positive.
            LiftEnvelopeError: The error that ended the consumption meanwhile.
            Exception: The exception of the handler, which also ends the consumption.
        """
        self._check_not_inside("drain")
        as_seconds("timeout", timeout)
        self._feed.unpin = self._feed.unpin and unpin
        await self._feed.drain(timeout)
        try:
            await self.closed()
        finally:
            await self._feed.released()

    async def closed(self) -> None:
        """Wait until the consumption has ended and the handler is done.

        Raises:
            UsageError: The handler itself awaits this method, which would deadlock.
            LiftEnvelopeError: The error that ended the consumption.
            Exception: The exception of the handler, which also ends the consumption.
        """
        self._check_not_inside("closed")
        await asyncio.shield(self._task)

    def _check_not_inside(self, name: str) -> None:
        if asyncio.current_task() is self._task:
            raise UsageError(
                f"{name}() waits for the handler, and was awaited in it: call stop() there, or let another "
                f"task await {name}()"
            )


def stop_feed(feed: MessageFeed, *, nak: bool, unpin: bool) -> None:
    """Stop a feed, and nak its buffered messages if asked to."""
    feed.unpin = feed.unpin and unpin
    held = feed.unacked() if nak else []
    feed.stop()  # first: the server would redeliver the messages to this feed's own pulls
    give_back(held)
