"""Feed of an ordered consumer: recreates the consumer at the server whenever a message may be missing.

Invariant: ``buffer.sequence`` is the stream sequence of the last message handed to the caller. The consumer
at the server is disposable. A gap in its deliveries, a reconnect, missed heartbeats or a lost consumer end
it, and the next one starts after that sequence. Messages buffered by the old one are dropped.

``buffer`` itself hands out messages that have come in order. :meth:`OrderedFeed.next` does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

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
    ServerProtocolError,
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
from liftenvelope.jetstream._ordered.places import OrderedPlaces
from liftenvelope.jetstream._pulling.feed import PullFeed
from liftenvelope.jetstream._pulling.hooks import Hooks
from liftenvelope.jetstream._pulling.options import PullPlan
from liftenvelope.jetstream.message import Message, sequences_of
from liftenvelope.jetstream.watch import reason_of
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from datetime import datetime

    from liftenvelope.jetstream.api import Api

__all__ = ["OrderedFeed"]

#: Transient errors, expected while a server or JetStream comes back.
_PASSING: Final = (CallTimeoutError, NoJetStreamError, ConsumerExistsError, TransportError)
#: Errors that end the pulls of a lost consumer.
_LOST: Final = (ConsumerDeletedError, ConsumerNotFoundError, NoJetStreamError)
#: Characters of a reply subject in an error.
_SHOWN: Final = 200
_T = TypeVar("_T")
#: Takes messages of a feed that has some; returns None and a reason if the consumer must be recreated.
_Take: TypeAlias = Callable[[PullFeed], tuple[_T | None, str]]


class OrderedFeed:
    """A chain of pull feeds, one for each consumer at the server."""

    #: Whether the feeds buffer their messages in blocks.
    _in_blocks = False

    def __init__(
        self,
        api: Api,
        stream: str,
        config: ConsumerConfig,
        plan: PullPlan,
        on_event: Callable[[PullEvent], None] | None,
        created: datetime | None = None,
        max_reset_attempts: int | None = None,
    ) -> None:
        self._nc: Any = api.nc
        self._max_reset_attempts = max_reset_attempts
        self._places = OrderedPlaces(api, stream, config, created)
        self._plan = plan
        self._user_hooks = Hooks(on_event, consumer=f"{stream}/ordered")
        self.unpin = True
        #: Messages of ``_feed``, while these are in order.
        self.buffer: frames.OrderedQueue[Message] = frames.OrderedQueue(self.next)
        self._feed: PullFeed | None = None
        self._consumer: Consumer | None = None
        self._generation = 0
        #: Messages of earlier consumers that were handed out.
        self._handed_out = 0
        #: Number of consecutive consumers that delivered nothing; sequence after which the last one began.
        self._fruitless = 0
        self._began = 0
        self._reason = ""
        #: True if the user was told that the connection is lost, and not yet that it is back.
        self._told_lost = False
        self._stopped = False
        self._making: asyncio.Task[None] | None = None
        self._error: LiftEnvelopeError | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def buffered(self) -> int:
        """Number of buffered messages."""
        return 0 if self._feed is None else self._feed.buffered

    async def pending(self, leader: str) -> int | None:
        """Return the number of messages from the next one on, as the current consumer counts them.

        Args:
            leader: Name of the stream's leader. A consumer elsewhere may have fewer messages.

        Returns:
            None if there is no consumer, or if it is not on the leader.

        Raises:
            LiftEnvelopeError: JetStream did not answer, or refused the request.
        """
        consumer, feed = self._consumer, self._feed
        if consumer is None or feed is None:
            return None
        try:
            info = await consumer.info()
        except (ConsumerNotFoundError, NoJetStreamError):
            return None
        is_on_leader = info.cluster is None or info.cluster.leader == leader  # None: there is no cluster
        if self._feed is not feed or not is_on_leader:
            return None
        # Those that were delivered and not handed out are buffered here, or on their way.
        return max(info.num_pending + info.delivered.consumer_seq - (self.buffer.expected - 1), 0)

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

    def limit_bytes(self, max_bytes: int) -> None:
        """Request and buffer up to this many bytes from the next pull on, if there was a limit before."""
        self._plan = replace(self._plan, limits=replace(self._plan.limits, max_bytes=max_bytes))
        if self._feed is not None:
            self._feed.limit_bytes(max_bytes)

    def pop(self) -> Message:
        """Remove and return the next message, which must be in order."""
        return self.buffer.pop()

    async def next(self) -> Message:
        """Wait for the next message in order and return it.

        Raises:
            StopAsyncIteration: The feed was stopped or drained, or has delivered ``stop_after`` messages.
            LiftEnvelopeError: The feed ended with an error.
            UsageError: The feed was not started, or another task is waiting for the next message.
        """
        return await self._take_next(self._take_one)

    async def _take_next(self, take: _Take[_T]) -> _T:
        """Wait for the next messages, which ``take`` returns."""
        if self.buffer.is_held:
            raise UsageError("another task waits for the next message: read in one task at a time")
        if not (self._generation or self._stopped):
            raise UsageError("the iteration has not been started: use async with")
        self.buffer.is_held = True
        try:
            return await self._next(take)
        finally:
            self.buffer.is_held = False

    def _refuse(self, message: Message) -> None:
        """End the consumer, or the feed if the message does not come from a consumer."""
        try:
            reason = self._gap_before(message)
        except LiftEnvelopeError as exc:
            self._end(exc)
            return
        self._reason = reason
        self._close_feed()

    def _gap_before(self, message: Message) -> str:
        """Return the reason why a message is not the next one.

        Raises:
            UsageError: The message does not come from a consumer.
            ServerProtocolError: A number in its reply subject is too large, or is none.
        """
        _, delivery = sequences_of(message.reply)
        if delivery == self.buffer.expected:
            raise ServerProtocolError(
                f"the reply subject of a message is invalid: {message.reply[:_SHOWN]!r}"
            )
        return f"delivery {self.buffer.expected} was lost: {delivery} came"

    async def _next(self, take: _Take[_T]) -> _T:
        while True:
            if self._making is not None:
                await self._until_made()
            if self._error is not None:
                raise self._error
            try:
                taken, reason = await self._try_next(take)
            except LiftEnvelopeError as exc:
                self._end(exc)
                raise
            except StopAsyncIteration:
                self._end(None)
                raise
            if taken is not None:
                return taken
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

    async def _try_next(self, take: _Take[_T]) -> tuple[_T | None, str]:
        """Return the next messages, or None and the reason why the consumer must be recreated."""
        feed = self._feed
        if feed is None:
            if self._stopped:
                raise StopAsyncIteration
            return None, self._reason or "it was not there"
        try:
            if not feed.buffered:
                await feed.ready()
        except StopAsyncIteration:
            if self._stopped or not self._reason:
                raise
            return None, self._reason
        except _LOST as exc:
            if self._stopped:  # drained
                raise StopAsyncIteration from None
            return None, str(exc)
        return take(feed)

    def _take_one(self, feed: PullFeed) -> tuple[Message | None, str]:
        message, order = feed.pop(), self.buffer
        if not (found := frames.in_order([message], order.expected)):
            return None, self._gap_or_end(message)
        order.expected += 1
        order.sequence = found[0]
        return message, ""

    def _gap_or_end(self, message: Message) -> str:
        """Return the reason why a message is not the next one; messages after it are out of order."""
        reason = self._gap_before(message)
        if self._stopped:  # drained
            raise StopAsyncIteration
        return reason

    async def _make_anew(self, reason: str) -> None:
        self._close_feed()
        self._forget()
        if 0 < self._plan.limits.stop_after <= self._handed_out:
            self._end(None)
            return
        if self.buffer.sequence > self._began:
            self._fruitless = 0
        try:
            if self._fruitless:  # the previous consumer delivered nothing
                await self._pause(pause_before(self._fruitless, first=0.2, longest=5.0))
            self._fruitless += 1
            await self._begin_patiently()
        except LiftEnvelopeError as exc:
            self._end(exc)
        if not self._stopped:
            self._user_hooks.tell(OrderedReset(self.buffer.sequence + 1, reason))

    async def _begin_patiently(self) -> None:
        backoff, failed, link = Backoff(first=0.1, longest=5.0), 0, Link(self._nc)
        while not self._stopped:
            if reason := reason_of(self._nc):
                raise ConnectionClosedError(reason)
            epoch = link.epoch
            try:
                if self._nc.is_connected:
                    self._tell_connection(lost=False)
                    await self._begin()
                    return
            except _PASSING as exc:
                failed += link.epoch == epoch  # nats-py has its own limit of attempts to connect
                if isinstance(exc, ConnectionClosedError) or failed == self._max_reset_attempts:
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
        self._reason, self._began = "", self.buffer.sequence
        consumer = self._consumer = await self._places.make(self._began)
        self._generation += 1
        hooks = Hooks(partial(self._on_event, self._generation))
        # nats-server gives its max_request_batch to each consumer, and refuses larger pulls.
        plan = self._plan_of_rest().within(consumer.cached_info.config.max_batch)
        feed = PullFeed(consumer, plan, hooks, in_blocks=self._in_blocks)
        self._feed = feed
        try:
            await feed.start()
        except BaseException:  # such as a cancellation: this feed would never deliver anything
            self._close_feed()
            raise
        if self._stopped:
            self._close_feed()
            self._forget()
        elif self._feed is feed:
            self.buffer.switch(feed.buffer)

    def _plan_of_rest(self) -> PullPlan:
        """Return the plan for the messages that are still to be handed out."""
        limits = self._plan.limits
        if not limits.stop_after:
            return self._plan
        rest = replace(limits, stop_after=limits.stop_after - self._handed_out)
        return replace(self._plan, limits=rest)

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
        self._handed_out += self.buffer.expected - 1
        self.buffer.switch(None)
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

    def unacked(self) -> list[Message]:
        """Return nothing: an ordered consumer has no acks."""
        return []

    def release(self) -> None:
        """Do nothing: an ordered consumer has no priority groups."""

    async def released(self) -> None:
        """Wait until the consumer's deletion is sent: the caller may close the connection next."""
        await self._places.forgotten()

    async def wait_ended(self) -> None:
        """Wait until the feed has ended.

        Raises:
            LiftEnvelopeError: The error that ended the feed.
        """
        await asyncio.shield(self._ended)
        if self._error is not None:
            raise self._error
