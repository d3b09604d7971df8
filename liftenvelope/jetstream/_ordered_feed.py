"""Feed of an ordered consumer: recreates the consumer at the server whenever a message may be missing.

Invariant: ``OrderedFeed._sequence`` is the stream sequence of the last message handed to the caller. The
consumer at the server is disposable. A gap in its deliveries, a reconnect, missed heartbeats or a lost
consumer end it, and the next one starts at ``_sequence + 1``. Messages buffered by the old one are dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._backoff import Backoff, pause_before
from liftenvelope._native import frames
from liftenvelope.errors import (
    CallTimeoutError,
    ConnectionClosedError,
    ConsumerDeletedError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    LiftEnvelopeError,
    NoJetStreamError,
    TransportError,
    UsageError,
)
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._consumer_config import ConsumerConfig
from liftenvelope.jetstream._events import (
    Disconnected,
    MissedHeartbeats,
    NoResponders,
    OrderedReset,
    PullEvent,
    Reconnected,
)
from liftenvelope.jetstream._feed import Hooks, PullFeed
from liftenvelope.jetstream._ordered_places import OrderedPlaces
from liftenvelope.jetstream._pull_options import PullPlan
from liftenvelope.jetstream.message import Message, sequences_of

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = ["OrderedFeed"]

#: Transient errors, expected while a server or JetStream comes back.
_PASSING: Final = (CallTimeoutError, NoJetStreamError, ConsumerExistsError, TransportError)
#: Errors that end the pulls of a lost consumer.
_LOST: Final = (ConsumerDeletedError, ConsumerNotFoundError, NoJetStreamError)


class OrderedFeed:
    """A chain of pull feeds, one for each consumer at the server."""

    def __init__(
        self,
        api: Api,
        stream: str,
        config: ConsumerConfig,
        plan: PullPlan,
        on_event: Callable[[PullEvent], None] | None,
    ) -> None:
        self._nc: Any = api.nc
        self._places = OrderedPlaces(api, stream, config)
        self._plan = plan
        self._user_hooks = Hooks(on_event, consumer=f"{stream}/ordered")
        self.unpin = True
        #: Always empty: readers must go through :meth:`next`, which checks the order.
        self.buffer: deque[Message] = deque()
        self._feed: PullFeed | None = None
        self._consumer: Consumer | None = None
        self._expected = 1
        self._sequence = 0
        self._generation = 0
        #: Number of consecutive consumers that delivered nothing.
        self._fruitless = 0
        self._reason = ""
        #: True if the user was told that the connection is lost, and not yet that it is back.
        self._told_lost = False
        self._stopped = False
        self._reading = False
        self._making: asyncio.Task[None] | None = None
        self._error: LiftEnvelopeError | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def buffered(self) -> int:
        """Number of buffered messages."""
        return 0 if self._feed is None else self._feed.buffered

    async def start(self) -> None:
        """Create the first consumer and start pulling.

        Raises:
            UsageError: The feed was started or stopped before.
        """
        if self._generation or self._stopped:
            raise UsageError(
                "the feed was started, or stopped, before: call messages() or consume() for a new one"
            )
        await self._begin()

    def pop(self) -> Message:
        """Raise IndexError: the buffer is always empty."""
        return self.buffer.popleft()

    async def next(self) -> Message:
        """Wait for the next message in order and return it.

        Raises:
            StopAsyncIteration: The feed was stopped or drained.
            LiftEnvelopeError: The feed ended with an error.
            UsageError: Another task is waiting for the next message.
        """
        if self._reading:
            raise UsageError("another task waits for the next message: read in one task at a time")
        self._reading = True
        try:
            return await self._next()
        finally:
            self._reading = False

    async def next_many(self, limit: int) -> tuple[list[int], list[Message]]:
        """Wait for the next message; return it and the messages buffered behind it, in order.

        A cancelled call loses no message, because nothing is awaited after the first one.

        Args:
            limit: Maximum number of messages, at least 1.

        Returns:
            Stream sequences and messages, in two lists: a pair for each message would be one more object for
            the garbage collector to visit.

        Raises: As for :meth:`next`.
        """
        first = await self.next()
        sequences, messages = [self._sequence], [first]
        self._add_buffered(sequences, messages, limit - 1)
        return sequences, messages

    def _add_buffered(self, sequences: list[int], messages: list[Message], limit: int) -> None:
        """Take buffered messages up to the first one that is out of order or malformed.

        That one ends the consumer or the feed as in :meth:`_try_next`; the next call finds it so.
        """
        feed = self._feed
        if feed is None:
            return
        taken = feed.buffer.pop_many(limit)
        found = frames.in_order(taken, self._expected)
        count = len(found)
        if found:
            self._expected += count
            self._sequence = found[-1]
            sequences += found
            messages += taken[:count]
        if count < len(taken):
            self._refuse(taken[count])

    def _refuse(self, message: Message) -> None:
        """End the consumer, or the feed if the message does not come from a consumer."""
        try:
            _, delivery = sequences_of(message.reply)
        except UsageError as exc:
            self._end(exc)
            return
        self._reason = self._gap(delivery)
        self._close_feed()

    def _gap(self, delivery: int) -> str:
        return f"delivery {self._expected} was lost: {delivery} came"

    async def _next(self) -> Message:
        while True:
            if self._making is not None:
                await self._until_made()
            if self._error is not None:
                raise self._error
            try:
                message, reason = await self._try_next()
            except LiftEnvelopeError as exc:
                self._end(exc)
                raise
            except StopAsyncIteration:
                self._end(None)
                raise
            if message is not None:
                return message
            self._making = asyncio.get_running_loop().create_task(self._make_anew(reason))

    async def _until_made(self) -> None:
        """Wait until the next consumer is created, which is under way.

        A cancelled wait does not cancel the creation. Otherwise a reader with short timeouts would start over
        with each call, and never get beyond a longer pause.
        """
        assert self._making is not None
        await asyncio.wait({self._making})
        making, self._making = self._making, None
        if not making.cancelled():  # cancelled by _end()
            making.result()

    async def _try_next(self) -> tuple[Message | None, str]:
        """Return the next message, or None and the reason why the consumer must be recreated."""
        feed = self._feed
        if feed is None:
            if self._stopped:
                raise StopAsyncIteration
            return None, self._reason or "it was not there"
        try:
            message = feed.pop() if feed.buffer else await feed.next()
        except StopAsyncIteration:
            if self._stopped or not self._reason:
                raise
            return None, self._reason
        except _LOST as exc:
            if self._stopped:  # drained
                raise StopAsyncIteration from None
            return None, str(exc)
        if found := frames.in_order([message], self._expected):
            sequence = found[0]
        else:
            sequence, delivery = sequences_of(message.reply)
            if delivery != self._expected:
                if self._stopped:  # drained: messages after a gap are out of order
                    raise StopAsyncIteration
                return None, self._gap(delivery)
        self._expected += 1
        self._sequence = sequence
        self._fruitless = 0
        return message, ""

    async def _make_anew(self, reason: str) -> None:
        self._forget()
        try:
            if self._fruitless:  # the previous consumer delivered nothing
                await self._pause(pause_before(self._fruitless, first=0.2, longest=5.0))
            self._fruitless += 1
            await self._begin_patiently()
        except LiftEnvelopeError as exc:
            self._end(exc)
        if not self._stopped:
            self._user_hooks.tell(OrderedReset(self._sequence + 1, reason))

    async def _begin_patiently(self) -> None:
        backoff = Backoff(first=0.1, longest=5.0)
        while not self._stopped:
            if self._nc.is_closed or self._nc.is_draining:
                raise ConnectionClosedError("the NATS connection is closed or being drained")
            try:
                if self._nc.is_connected:
                    self._tell_connection(lost=False)
                    await self._begin()
                    return
            except _PASSING as exc:
                if isinstance(exc, ConnectionClosedError):
                    raise
            if not self._nc.is_connected:
                self._tell_connection(lost=True)
                backoff.reset()
            await self._pause(backoff.next())

    def _tell_connection(self, *, lost: bool) -> None:
        """Tell the user that the connection is lost or back, which pulls tell only while there are some."""
        if lost is not self._told_lost:
            self._told_lost = lost
            self._user_hooks.tell(Disconnected() if lost else Reconnected())

    async def _pause(self, seconds: float) -> None:
        """Sleep until the time is over or the feed has ended."""
        await asyncio.wait({self._ended}, timeout=seconds)

    async def _begin(self) -> None:
        """Create a consumer that starts after the last delivered message, and pull from it."""
        self._close_feed()
        self._expected, self._reason = 1, ""
        consumer = self._consumer = await self._places.make(self._sequence)
        self._generation += 1
        hooks = Hooks(partial(self._on_event, self._generation))
        feed = PullFeed(consumer, self._plan, hooks)
        self._feed = feed
        try:
            await feed.start()
        except BaseException:  # such as a cancellation: this feed would never deliver anything
            self._close_feed()
            raise
        if self._stopped:
            self._close_feed()
            self._forget()

    def _on_event(self, generation: int, event: PullEvent) -> None:
        if isinstance(event, Disconnected | Reconnected):
            self._told_lost = isinstance(event, Disconnected)
        self._user_hooks.tell(event)
        if self._stopped or generation != self._generation:
            return  # the event is of an abandoned consumer
        if isinstance(event, Reconnected):
            # Messages in flight are lost, and without acks the consumer does not redeliver them.
            self._reason = "the connection was lost"
            self._close_feed()
        elif isinstance(event, MissedHeartbeats):
            # The consumer lives on one server. If that server is gone, pulls are not even refused.
            self._reason = f"its server was silent for {event.silent_for:.1f} s"
            self._close_feed()
        elif isinstance(event, NoResponders):
            self._reason = "nobody answers its pulls"
            self._close_feed()

    def _close_feed(self) -> None:
        """Stop the current feed, which wakes a task waiting for its next message."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.stop()

    def _forget(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._places.forget(consumer)

    def _end(self, error: LiftEnvelopeError | None) -> None:
        if self._ended.done():
            return
        self._stopped, self._error = True, error
        self._close_feed()
        self._forget()
        if self._making is not None and self._making is not asyncio.current_task():
            self._making.cancel()
        self._ended.set_result(None)

    def stop(self) -> None:
        """Stop now and drop the buffered messages."""
        self._end(None)

    async def drain(self, timeout: float) -> None:
        """Stop pulling; messages that the server has sent are still delivered.

        Args:
            timeout: Seconds to wait for the server.
        """
        self._stopped = True
        try:
            if self._feed is not None:
                await self._feed.drain(timeout)
        finally:  # also after a cancelled drain
            if not self.buffered:  # otherwise next() ends the feed after the last message
                self._end(None)

    def release(self) -> None:
        """Do nothing: an ordered consumer has no priority groups."""

    async def released(self) -> None:
        """Return at once."""

    async def wait_ended(self) -> None:
        """Wait until the feed has ended.

        Raises:
            LiftEnvelopeError: The error that ended the feed.
        """
        await asyncio.shield(self._ended)
        if self._error is not None:
            raise self._error
