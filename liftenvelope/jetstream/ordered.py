"""A reader of a stream that misses nothing and gets nothing twice, without acks or state at the server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

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
from liftenvelope.jetstream._names import check_filter, check_stream_name
from liftenvelope.jetstream._ordered_fetch import Amount, OrderedFetches
from liftenvelope.jetstream._ordered_places import Places
from liftenvelope.jetstream.consumer import Consumer
from liftenvelope.jetstream.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy, ReplayPolicy
from liftenvelope.jetstream.consuming import Consumption, Handler, Messages
from liftenvelope.jetstream.events import MissedHeartbeats, NoResponders, OrderedReset, PullEvent, Reconnected
from liftenvelope.jetstream.fetching import Batch, first_of
from liftenvelope.jetstream.message import Message
from liftenvelope.jetstream.pull_options import PullPlan, consume_plan, whole
from liftenvelope.nats._outcomes import positive

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = ["OrderedConsumer"]

#: After how many seconds the server removes a consumer that nobody reads from.
_INACTIVE: Final = 300.0
#: Seconds that a pull waits at the server. A drain can lose nothing: the next reading begins where it ended.
_EXPIRES: Final = 30.0
#: The first and the longest pause between tries to make a consumer anew, in seconds.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
#: What goes away by itself while a server or JetStream comes back.
_PASSING: Final = (CallTimeoutError, NoJetStreamError, ConsumerExistsError, TransportError)
#: What a lost consumer ends its pulls by.
_LOST: Final = (ConsumerDeletedError, ConsumerNotFoundError, NoJetStreamError)


class OrderedConsumer:
    """Reads a stream in order, each message once. Made by ``Stream.ordered_consumer``.

    Every reading has a consumer of its own at the server, in memory, without acks. When it is lost, or has
    lost a message, another is made that begins after the last message that was delivered here. Each
    :meth:`messages` and :meth:`consume` is a reading; :meth:`fetch`, :meth:`next` and their like are one
    together.

    Args:
        api: The way to the server.
        stream: The stream's name.
        filter_subjects: Deliver only what matches one of them. Default: everything.
        deliver_policy: Where to begin. Default: at the first message.
        opt_start_seq: The sequence that BY_START_SEQUENCE begins at.
        opt_start_time: The moment that BY_START_TIME begins at, with a time zone.
        headers_only: Whether to leave out the payloads. Default false.
        replay_policy: How fast. Default INSTANT.

    Raises:
        UsageError: An option makes no sense.

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
            raise UsageTypeError(f"filter_subjects must be a sequence of str, not {filter_subjects!r}")
        for subject in filter_subjects:
            check_filter(subject)
        if opt_start_seq is not None:
            whole("opt_start_seq", opt_start_seq, 1)
        if (opt_start_seq is not None) != (deliver_policy is DeliverPolicy.BY_START_SEQUENCE):
            raise UsageError(f"opt_start_seq {opt_start_seq!r} does not go with {deliver_policy!s}")
        if (opt_start_time is not None) != (deliver_policy is DeliverPolicy.BY_START_TIME):
            raise UsageError(f"opt_start_time {opt_start_time!r} does not go with {deliver_policy!s}")
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
        """Iterate over the messages as they come.

        Args:
            max_messages: How many may be asked for and buffered. Default 500.
            max_bytes: How many bytes may be, instead.
            expires: How long one pull waits at the server, in seconds. Default 30.
            idle_heartbeat: How often the server says so, in seconds. Default: half of ``expires``.
            on_event: Called with everything that happens and does not end it;
                :class:`~liftenvelope.jetstream.events.OrderedReset` whenever the consumer was made anew.

        Raises:
            UsageError: An option makes no sense.
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
        """Have a handler called with each message, one after the other.

        Args:
            handler: A plain function, or a coroutine function, which is awaited.
            max_messages: As for :meth:`messages`.
            max_bytes: As for :meth:`messages`.
            expires: As for :meth:`messages`.
            idle_heartbeat: As for :meth:`messages`.
            on_event: As for :meth:`messages`.

        Raises:
            UsageError: An option makes no sense.
            StreamNotFoundError: There is no such stream.
            JetStreamError, CallTimeoutError, TransportError: The consumer could not be made.
        """
        if not callable(handler):
            raise UsageTypeError(f"handler must be a function, not {type(handler).__name__}")
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
        """Get the next messages: all of them, or what has come when the time is up.

        Each call goes on where the last one ended, and uses the same consumer at the server while that is
        of use. One may be under way at a time. When it is cancelled, the next one begins at the same place.

        Args:
            max_messages: How many at most.
            expires: How long to wait for them, in seconds. Default 30.
            idle_heartbeat: How often the server says that it waits, in seconds: as for
                :meth:`Consumer.fetch`.

        Raises:
            UsageError: An option makes no sense, or another fetch is under way.
            StreamNotFoundError: There is no such stream.
            LiftEnvelopeError: As for :meth:`Consumer.fetch`, when what it says was so until the time was up.

        Example::

            consumer = stream.ordered_consumer()
            while batch := await consumer.fetch(100, expires=1):
                print(batch[0].metadata.stream_sequence)
        """
        whole("max_messages", max_messages, 1)
        return await self._fetches.fetch(Amount(max_messages, None, expires, idle_heartbeat))

    async def fetch_bytes(
        self, max_bytes: int, *, expires: float = 30.0, idle_heartbeat: float | None = None
    ) -> Batch:
        """Get the next messages, of so many bytes at most; fewer come when the consumer had to be made anew.

        Args:
            max_bytes: How many: as for :meth:`Consumer.fetch_bytes`.
            expires: As for :meth:`fetch`.
            idle_heartbeat: As for :meth:`fetch`.

        Raises: As for :meth:`fetch`.
        """
        whole("max_bytes", max_bytes, 1)
        return await self._fetches.fetch(Amount(None, max_bytes, expires, idle_heartbeat))

    async def fetch_no_wait(self, max_messages: int) -> Batch:
        """Get the next messages that are there now.

        Args:
            max_messages: How many at most.

        Raises: As for :meth:`fetch`.
        """
        whole("max_messages", max_messages, 1)
        return await self._fetches.fetch(Amount(max_messages))

    async def next(self, timeout: float = 30.0) -> Message:
        """Get the next message.

        Args:
            timeout: How long to wait for it, in seconds. Default 30.

        Raises:
            CallTimeoutError: None came in time. It is a :class:`TimeoutError`.
            LiftEnvelopeError: As for :meth:`fetch`.
        """
        return first_of(await self._fetches.fetch(Amount(1, None, positive("timeout", timeout))), timeout)

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
    """The feed of an ordered consumer: feeds of ordinary ones, one after the other."""

    def __init__(
        self,
        api: Api,
        stream: str,
        config: ConsumerConfig,
        plan: PullPlan,
        on_event: Callable[[PullEvent], None] | None,
    ) -> None:
        self._nc: Any = api.nc
        self._places = Places(api, stream, config)
        self._plan = plan
        self._user_hooks = Hooks(on_event)
        self.unpin = True
        #: Always empty: whoever reads has to come through :meth:`next`, which looks at the order.
        self.buffer: deque[Message] = deque()
        self._feed: PullFeed | None = None
        self._consumer: Consumer | None = None
        self._expected = 1
        self._sequence = 0
        self._generation = 0
        #: How many consumers in a row have delivered nothing.
        self._fruitless = 0
        self._reason = ""
        self._stopped = False
        self._reading = False
        self._error: LiftEnvelopeError | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def buffered(self) -> int:
        """How many messages wait to be taken."""
        return 0 if self._feed is None else self._feed.buffered

    async def start(self) -> None:
        """Make the first consumer and pull.

        Raises:
            UsageError: It was started before.
        """
        if self._generation or self._stopped:
            raise UsageError("this was started, or stopped, before: make a new one")
        await self._begin()

    def pop(self) -> Message:
        """Nothing can be taken without :meth:`next`."""
        return self.buffer.popleft()

    async def next(self) -> Message:
        """The next message in order.

        Raises:
            StopAsyncIteration: It was stopped or drained.
            LiftEnvelopeError: It has ended by an error.
            UsageError: Another task is waiting for it.
        """
        if self._reading:
            raise UsageError("another task waits for the next message: one may at a time")
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
        """The next message, or why the consumer is of no use any more."""
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
            if self._stopped:  # drained: what comes after a gap is not in order
                raise StopAsyncIteration
            return None, f"delivery {self._expected} was lost: {metadata.consumer_sequence} came"
        self._expected += 1
        self._sequence = metadata.stream_sequence
        self._fruitless = 0
        return message, ""

    async def _make_anew(self, reason: str) -> None:
        self._forget()
        try:
            if self._fruitless:  # the last one was of no use either
                await self._pause(min(_FIRST_PAUSE * 2 ** min(self._fruitless, 10), _LONGEST_PAUSE))
            self._fruitless += 1
            await self._begin_patiently()
        except LiftEnvelopeError as exc:
            self._end(exc)
            raise
        if not self._stopped:
            self._user_hooks.tell(OrderedReset(self._sequence + 1, reason))

    async def _begin_patiently(self) -> None:
        pause = _FIRST_PAUSE
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
            await self._pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE) if self._nc.is_connected else _FIRST_PAUSE

    async def _pause(self, seconds: float) -> None:
        """Wait, unless it is stopped meanwhile."""
        await asyncio.wait({self._ended}, timeout=seconds)

    async def _begin(self) -> None:
        """Make a consumer that begins where the last one was left, and pull from it."""
        self._close_feed()
        self._expected, self._reason = 1, ""
        consumer = self._consumer = await self._places.make(self._sequence)
        self._generation += 1
        hooks = Hooks(partial(self._on_event, self._generation))
        feed = PullFeed(consumer, self._plan, hooks)
        self._feed = feed
        try:
            await feed.start()
        except BaseException:  # cancelled, for one: this feed would never deliver anything
            self._close_feed()
            raise
        if self._stopped:
            self._close_feed()

    def _on_event(self, generation: int, event: PullEvent) -> None:
        self._user_hooks.tell(event)
        if self._stopped or generation != self._generation:
            return  # it tells of a consumer that was given up before
        if isinstance(event, Reconnected):
            # What was on its way is lost, of which the consumer knows nothing: it does not wait for acks.
            self._reason = "the connection was lost"
            self._close_feed()
        elif isinstance(event, MissedHeartbeats):
            # It lives on one server. When that is gone, pulls are not even refused.
            self._reason = f"its server was silent for {event.silent_for:.1f} s"
            self._close_feed()
        elif isinstance(event, NoResponders):
            self._reason = "nobody answers its pulls"
            self._close_feed()

    def _close_feed(self) -> None:
        """Stop the present feed; whoever waits for its next message finds out."""
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
        """End now; what is buffered is dropped."""
        self._end(None)

    async def drain(self, timeout: float) -> None:
        """Pull nothing more; what the server has sent is still delivered.

        Args:
            timeout: Seconds to wait for the server.
        """
        self._stopped = True
        try:
            if self._feed is not None:
                await self._feed.drain(timeout)
        finally:  # also of a drain that is cancelled
            if not self.buffered:  # else whoever takes the last one ends it
                self._end(None)

    def release(self) -> None:
        """Do nothing: the consumer is this reading's own, and has no groups."""

    async def released(self) -> None:
        """Return at once."""

    async def wait_ended(self) -> None:
        """Wait until it has ended.

        Raises:
            LiftEnvelopeError: What it was ended by.
        """
        await asyncio.shield(self._ended)
        if self._error is not None:
            raise self._error
