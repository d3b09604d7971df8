"""Ordered consumer: reads a stream in order, each message exactly once, without acks.

Invariant: ``OrderedFeed._sequence`` is the stream sequence of the last message handed to the caller. The
consumer at the server is disposable. A gap in its deliveries, a reconnect, missed heartbeats or a lost
consumer end it, and the next one starts at ``_sequence + 1``. Messages buffered by the old one are dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._backoff import Backoff, pause_before
from liftenvelope._checks import as_count, as_seconds
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
    UsageTypeError,
)
from liftenvelope.jetstream._feed import Hooks, PullFeed
from liftenvelope.jetstream._ordered_fetch import Amount, OrderedFetches
from liftenvelope.jetstream._ordered_places import OrderedPlaces
from liftenvelope.jetstream.consumer import Consumer
from liftenvelope.jetstream.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy, ReplayPolicy
from liftenvelope.jetstream.consuming import Consumption, Handler, Messages
from liftenvelope.jetstream.events import MissedHeartbeats, NoResponders, OrderedReset, PullEvent, Reconnected
from liftenvelope.jetstream.fetching import Batch, first_of
from liftenvelope.jetstream.message import Message
from liftenvelope.jetstream.names import check_filter, check_stream_name
from liftenvelope.jetstream.pull_options import PullPlan, consume_plan

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = ["OrderedConsumer"]

#: Seconds after which the server removes an unused consumer.
_INACTIVE: Final = 300.0
#: Seconds that a pull waits at the server. A drain loses nothing: the next reading begins where it ended.
_EXPIRES: Final = 30.0
#: Transient errors, expected while a server or JetStream comes back.
_PASSING: Final = (CallTimeoutError, NoJetStreamError, ConsumerExistsError, TransportError)
#: Errors that end the pulls of a lost consumer.
_LOST: Final = (ConsumerDeletedError, ConsumerNotFoundError, NoJetStreamError)


class OrderedConsumer:
    """Reads a stream in order, each message once. Created by ``Stream.ordered_consumer``.

    Every reading has its own consumer at the server, in memory and without acks. If the consumer or one of
    its messages is lost, another consumer is created, which starts after the last message delivered here.
    Each :meth:`messages` and :meth:`consume` is a reading; all fetch methods and :meth:`next` share one.

    Args:
        api: JetStream API.
        stream: Name of the stream.
        filter_subjects: Deliver only messages that match one of these subjects. Default: all messages.
        deliver_policy: Start position. Default: the first message.
        opt_start_seq: First sequence, for BY_START_SEQUENCE.
        opt_start_time: Start time, for BY_START_TIME, with a time zone.
        headers_only: Omit the payloads. Default false.
        replay_policy: Delivery rate. Default INSTANT.

    Raises:
        UsageError: An option is invalid.

    Example::

        async with stream.ordered_consumer(filter_subjects=["orders.new"]).messages() as messages:
            async for message in messages:
                print(message.metadata.stream_sequence, message.data)
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        *,
        filter_subjects: Sequence[str] = (),
        deliver_policy: DeliverPolicy = DeliverPolicy.ALL,
        opt_start_seq: int | None = None,
        opt_start_time: datetime | None = None,
        headers_only: bool = False,
        replay_policy: ReplayPolicy = ReplayPolicy.INSTANT,
    ) -> None:
        self._api = api
        self.stream_name = check_stream_name(stream)
        if isinstance(filter_subjects, str):
            raise UsageTypeError(f"filter_subjects must be a sequence of str, got {filter_subjects!r}")
        for subject in filter_subjects:
            check_filter(subject)
        if opt_start_seq is not None:
            as_count("opt_start_seq", opt_start_seq, 1)
        if (opt_start_seq is not None) != (deliver_policy is DeliverPolicy.BY_START_SEQUENCE):
            raise UsageError(
                f"opt_start_seq must be given for by_start_sequence alone, got {opt_start_seq!r} "
                f"with deliver_policy {deliver_policy!s}"
            )
        if (opt_start_time is not None) != (deliver_policy is DeliverPolicy.BY_START_TIME):
            raise UsageError(
                f"opt_start_time must be given for by_start_time alone, got {opt_start_time!r} "
                f"with deliver_policy {deliver_policy!s}"
            )
        self._config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            max_deliver=1,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_INACTIVE,
            filter_subjects=tuple(filter_subjects),
            deliver_policy=deliver_policy,
            opt_start_seq=opt_start_seq,
            opt_start_time=opt_start_time,
            headers_only=headers_only,
            replay_policy=replay_policy,
        )
        self._fetches = OrderedFetches(api, self.stream_name, self._config)

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: float | None = None,
        idle_heartbeat: float | None = None,
        on_event: Callable[[PullEvent], None] | None = None,
    ) -> Messages:
        """Iterate over the messages as they arrive.

        Args:
            max_messages: Maximum number of messages requested and buffered. Default 500.
            max_bytes: Maximum number of bytes requested and buffered, instead of ``max_messages``.
            expires: Seconds that one pull waits at the server. Default 30.
            idle_heartbeat: Seconds between heartbeats of a waiting pull. Default: half of ``expires``.
            on_event: Called with each event that does not end the iteration, among them
                :class:`~liftenvelope.jetstream.events.OrderedReset` whenever the consumer was recreated.

        Raises:
            UsageError: An option is invalid.
        """
        plan = self._plan(max_messages, max_bytes, expires, idle_heartbeat)
        return Messages(OrderedFeed(self._api, self.stream_name, self._config, plan, on_event))

    async def consume(
        self,
        handler: Handler,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: float | None = None,
        idle_heartbeat: float | None = None,
        on_event: Callable[[PullEvent], None] | None = None,
    ) -> Consumption:
        """Call a handler with each message, one at a time.

        Args:
            handler: Plain function, or coroutine function, which is awaited.
            max_messages: As for :meth:`messages`.
            max_bytes: As for :meth:`messages`.
            expires: As for :meth:`messages`.
            idle_heartbeat: As for :meth:`messages`.
            on_event: As for :meth:`messages`.

        Raises:
            UsageError: An option is invalid.
            StreamNotFoundError: The stream does not exist.
            JetStreamError, CallTimeoutError, TransportError: The consumer could not be created.
        """
        if not callable(handler):
            raise UsageTypeError(f"handler must be a function, got {type(handler).__name__}")
        plan = self._plan(max_messages, max_bytes, expires, idle_heartbeat)
        feed = OrderedFeed(self._api, self.stream_name, self._config, plan, on_event)
        try:
            await feed.start()
        except BaseException:
            feed.stop()
            raise
        return Consumption(feed, handler, None)

    async def fetch(
        self, max_messages: int, *, expires: float = 30.0, idle_heartbeat: float | None = None
    ) -> Batch:
        """Fetch the next messages; return fewer if the time is up.

        Each call continues after the last one, and reuses the consumer at the server while it is usable.
        Only one fetch may run at a time. After a cancelled fetch, the next one starts at the same position.

        Args:
            max_messages: Maximum number of messages.
            expires: Seconds to wait for the messages. Default 30.
            idle_heartbeat: Seconds between heartbeats of the waiting pull: as for :meth:`Consumer.fetch`.

        Raises:
            UsageError: An option is invalid, or another fetch is running.
            StreamNotFoundError: The stream does not exist.
            LiftEnvelopeError: As for :meth:`Consumer.fetch`, if the error lasted until the time was up.

        Example::

            consumer = stream.ordered_consumer()
            while batch := await consumer.fetch(100, expires=1):
                print(batch[0].metadata.stream_sequence)
        """
        as_count("max_messages", max_messages, 1)
        return await self._fetches.fetch(Amount(max_messages, None, expires, idle_heartbeat))

    async def fetch_bytes(
        self, max_bytes: int, *, expires: float = 30.0, idle_heartbeat: float | None = None
    ) -> Batch:
        """Fetch the next messages up to a size in bytes; a recreated consumer may yield fewer.

        Args:
            max_bytes: Maximum number of bytes: as for :meth:`Consumer.fetch_bytes`.
            expires: As for :meth:`fetch`.
            idle_heartbeat: As for :meth:`fetch`.

        Raises: As for :meth:`fetch`.
        """
        as_count("max_bytes", max_bytes, 1)
        return await self._fetches.fetch(Amount(None, max_bytes, expires, idle_heartbeat))

    async def fetch_no_wait(self, max_messages: int) -> Batch:
        """Fetch the messages that are available now.

        Args:
            max_messages: Maximum number of messages.

        Raises: As for :meth:`fetch`.
        """
        as_count("max_messages", max_messages, 1)
        return await self._fetches.fetch(Amount(max_messages))

    async def next(self, timeout: float = 30.0) -> Message:
        """Wait for the next message and return it.

        Args:
            timeout: Seconds to wait for the message. Default 30.

        Raises:
            CallTimeoutError: No message arrived in time. The error is a :class:`TimeoutError`.
            LiftEnvelopeError: As for :meth:`fetch`.
        """
        return first_of(await self._fetches.fetch(Amount(1, None, as_seconds("timeout", timeout))), timeout)

    def _plan(
        self,
        max_messages: int | None,
        max_bytes: int | None,
        expires: float | None,
        idle_heartbeat: float | None,
    ) -> PullPlan:
        return consume_plan(
            self._config,
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=_EXPIRES if expires is None else expires,
            idle_heartbeat=idle_heartbeat,
        )


class OrderedFeed:
    """Feed of an ordered consumer: a chain of pull feeds, one for each consumer at the server."""

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
        self._user_hooks = Hooks(on_event)
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
        self._stopped = False
        self._reading = False
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

    async def _next(self) -> Message:
        while True:
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
            await self._make_anew(reason)

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
            return None, str(exc)
        metadata = message.metadata
        if metadata.consumer_sequence != self._expected:
            if self._stopped:  # drained: messages after a gap are out of order
                raise StopAsyncIteration
            return None, f"delivery {self._expected} was lost: {metadata.consumer_sequence} came"
        self._expected += 1
        self._sequence = metadata.stream_sequence
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
            raise
        if not self._stopped:
            self._user_hooks.tell(OrderedReset(self._sequence + 1, reason))

    async def _begin_patiently(self) -> None:
        backoff = Backoff(first=0.1, longest=5.0)
        while not self._stopped:
            if self._nc.is_closed or self._nc.is_draining:
                raise ConnectionClosedError("the NATS connection is closed or being drained")
            try:
                if self._nc.is_connected:
                    await self._begin()
                    return
            except _PASSING as exc:
                if isinstance(exc, ConnectionClosedError):
                    raise
            if not self._nc.is_connected:
                backoff.reset()
            await self._pause(backoff.next())

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

    def _on_event(self, generation: int, event: PullEvent) -> None:
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
