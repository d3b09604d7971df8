"""Ordered consumer: reads a stream in order, each message exactly once, without acks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from liftenvelope._checks import as_count, as_seconds
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream._consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy, ReplayPolicy
from liftenvelope.jetstream._events import PullEvent
from liftenvelope.jetstream._ordered.blocks import OrderedBlocks
from liftenvelope.jetstream._ordered.feed import OrderedFeed
from liftenvelope.jetstream._ordered.fetch import Amount, OrderedFetches
from liftenvelope.jetstream._pulling.fetching import Batch, first_of
from liftenvelope.jetstream._pulling.options import PullPlan, consume_plan
from liftenvelope.jetstream.consuming import Consumption, Handler, Messages
from liftenvelope.jetstream.message import Message
from liftenvelope.jetstream.names import check_filter, check_stream_name

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = ["OrderedConsumer"]

#: Seconds that a pull waits at the server.
_EXPIRES: Final = 30.0


class OrderedConsumer:
    """Reads a stream in order, each message once. Created by ``Stream.ordered_consumer``.

    Every reading has its own consumer at the server, in memory and without acks. If the consumer or one of
    its messages is lost, another consumer is created, which starts after the last message delivered here.
    Reading ends with :class:`~liftenvelope.jetstream.StreamReplacedError` if the stream is then another one.
    Each :meth:`messages` and :meth:`consume` is a reading; all fetch methods and :meth:`next` share one.

    Args:
        api: JetStream API.
        stream: Name of the stream.
        filter_subjects: Deliver only messages that match one of these subjects. Default: all messages.
        deliver_policy: Start position. Default: the first message. With LAST_PER_SUBJECT, a consumer that is
            created after a loss delivers every later message, also those that newer ones on their subjects
            replaced: the last message of each subject still comes last, and none stored meanwhile is lost.
            If it was lost before its first message, the next one begins with the last messages of that time:
            those that newer ones on their subjects replaced meanwhile are not delivered.
        opt_start_seq: First sequence, for BY_START_SEQUENCE.
        opt_start_time: Start time, for BY_START_TIME, with a time zone.
        headers_only: Omit the payloads. Default false.
        replay_policy: Delivery rate. Default INSTANT.
        inactive_threshold: Seconds after which the server removes the consumer of a reader that has not
            pulled for so long, dead or alive. Default 300, or less if ``consumer_limits`` of
            the stream allow less.
        max_reset_attempts: Failed attempts in a row to create the consumer again, after which
            :meth:`messages` and :meth:`consume` end with the error of the last one. Attempts while the
            connection is down do not count. Default: no limit.

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
        inactive_threshold: float = 300.0,
        max_reset_attempts: int | None = None,
    ) -> None:
        self._api = api
        if max_reset_attempts is not None:
            as_count("max_reset_attempts", max_reset_attempts, 1)
        self._max_reset_attempts = max_reset_attempts
        self.stream_name = check_stream_name(stream)
        if isinstance(filter_subjects, str) or not isinstance(filter_subjects, Iterable):
            raise UsageTypeError(f"filter_subjects must be a sequence of str, got {filter_subjects!r}")
        for subject in filter_subjects:
            check_filter(subject)
        if opt_start_seq is not None:
            as_count("opt_start_seq", opt_start_seq, 1)
        for name, value, policy in (
            ("opt_start_seq", opt_start_seq, DeliverPolicy.BY_START_SEQUENCE),
            ("opt_start_time", opt_start_time, DeliverPolicy.BY_START_TIME),
        ):
            if (value is not None) != (deliver_policy == policy):  # the server's name is accepted, too
                raise UsageError(
                    f"{name} must be given for {policy!s} alone, got {value!r} "
                    f"with deliver_policy {deliver_policy!s}"
                )
        if deliver_policy == DeliverPolicy.LAST_PER_SUBJECT and not filter_subjects:
            filter_subjects = (">",)  # servers refuse this policy without a filter
        self._config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            max_deliver=1,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=as_seconds("inactive_threshold", inactive_threshold),
            filter_subjects=tuple(filter_subjects),
            deliver_policy=deliver_policy,
            opt_start_seq=opt_start_seq,
            opt_start_time=opt_start_time,
            headers_only=headers_only,
            replay_policy=replay_policy,
        )
        self._fetches = OrderedFetches(api, self.stream_name, self._config)

    @property
    def api(self) -> Api:
        """Client for API requests."""
        return self._api

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: float | None = None,
        idle_heartbeat: float | None = None,
        on_event: Callable[[PullEvent], None] | None = None,
        buffer_bytes: int | None = None,
        stop_after: int | None = None,
    ) -> Messages:
        """Iterate over the messages as they arrive.

        Args:
            max_messages: Maximum number of messages requested and buffered. Default 500.
            max_bytes: Maximum number of bytes requested and buffered, instead of ``max_messages``.
            expires: Seconds that one pull waits at the server. Default 30.
            idle_heartbeat: Seconds between heartbeats of a waiting pull. Default: half of ``expires``.
            on_event: Called with each event that does not end the iteration, among them
                :class:`~liftenvelope.jetstream.OrderedReset` whenever the consumer was recreated.
            buffer_bytes: As in :class:`~liftenvelope.jetstream.ConsumeOptions`.
            stop_after: As in :class:`~liftenvelope.jetstream.ConsumeOptions`.

        Raises:
            UsageError: An option is invalid.
        """
        plan = self._plan(max_messages, max_bytes, expires, idle_heartbeat, buffer_bytes, stop_after)
        return Messages(self._feed(plan, on_event))

    def feed(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        on_event: Callable[[PullEvent], None] | None = None,
        created: datetime | None = None,
    ) -> OrderedBlocks:
        """Read the messages in lists, each message with its stream sequence; or in blocks.

        The cost of a message is smaller than in :meth:`messages`. ``start`` the feed, call ``next_many`` or
        ``next_blocks``, and ``stop`` the feed.

        Args:
            max_messages: As for :meth:`messages`.
            max_bytes: Maximum number of bytes requested and buffered, besides ``max_messages``. A larger
                message is alone. Default: no limit.
            on_event: As for :meth:`messages`.
            created: Creation time of the stream, if you have just asked for its info. This saves a request.

        Raises:
            UsageError: An option is invalid.
        """
        if max_bytes is not None:
            as_count("max_bytes", max_bytes, 1)
        plan = self._plan(max_messages, None, None, None, max_bytes, None)
        return OrderedBlocks(
            self._api, self.stream_name, self._config, plan, on_event, created, self._max_reset_attempts
        )

    def _feed(self, plan: PullPlan, on_event: Callable[[PullEvent], None] | None) -> OrderedFeed:
        return OrderedFeed(
            self._api,
            self.stream_name,
            self._config,
            plan,
            on_event,
            max_reset_attempts=self._max_reset_attempts,
        )

    async def consume(
        self,
        handler: Handler,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: float | None = None,
        idle_heartbeat: float | None = None,
        on_event: Callable[[PullEvent], None] | None = None,
        buffer_bytes: int | None = None,
        stop_after: int | None = None,
    ) -> Consumption:
        """Call a handler with each message, one at a time.

        Args:
            handler: Plain function, or coroutine function, which is awaited.
            max_messages: As for :meth:`messages`.
            max_bytes: As for :meth:`messages`.
            expires: As for :meth:`messages`.
            idle_heartbeat: As for :meth:`messages`.
            on_event: As for :meth:`messages`.
            buffer_bytes: As for :meth:`messages`.
            stop_after: As for :meth:`messages`.

        Raises:
            UsageError: An option is invalid.
            StreamNotFoundError: The stream does not exist.
            JetStreamError, CallTimeoutError, TransportError: The consumer could not be created.
        """
        if not callable(handler):
            raise UsageTypeError(f"handler must be a function, got {type(handler).__name__}")
        plan = self._plan(max_messages, max_bytes, expires, idle_heartbeat, buffer_bytes, stop_after)
        feed = self._feed(plan, on_event)
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
            idle_heartbeat: Seconds between heartbeats of the waiting pull, 0.5 to 30, at most half of
                ``expires``. After two without one the next consumer is created. Default 2, or half of
                ``expires`` if that is less, or none below 0.5.

        Raises:
            UsageError: An option is invalid, or another fetch is running.
            StreamNotFoundError: The stream does not exist.
            StreamReplacedError: The stream was deleted and created again. Later calls raise the error too.
            LiftEnvelopeError: As for :meth:`Consumer.fetch`, if the error lasted until the time was up.

        Example::

            consumer = stream.ordered_consumer()
            while batch := await consumer.fetch(100, expires=1):
                print(batch[0].metadata.stream_sequence)
        """
        as_count("max_messages", max_messages, 1)
        as_seconds("expires", expires)
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
        as_seconds("expires", expires)
        return await self._fetches.fetch(Amount(None, max_bytes, expires, idle_heartbeat))

    async def fetch_no_wait(self, max_messages: int) -> Batch:
        """Fetch the messages that are available now.

        In a cluster, these are the messages of one replica, which may lag behind the leader: an empty batch
        does not prove that the stream has none.

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

    async def close(self) -> None:
        """Delete the consumer of the fetches at the server; a later fetch makes another one.

        Without this call the server deletes it after five minutes.

        Raises:
            JetStreamError, CallTimeoutError, TransportError: The consumer may not be deleted yet.
        """
        await self._fetches.close()

    def _plan(
        self,
        max_messages: int | None,
        max_bytes: int | None,
        expires: float | None,
        idle_heartbeat: float | None,
        buffer_bytes: int | None,
        stop_after: int | None,
    ) -> PullPlan:
        return consume_plan(
            self._config,
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=_EXPIRES if expires is None else expires,
            idle_heartbeat=idle_heartbeat,
            buffer_bytes=buffer_bytes,
            stop_after=stop_after,
        )
