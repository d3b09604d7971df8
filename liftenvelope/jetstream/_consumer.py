"""Pull consumer: management requests, single pulls and continuous pulls."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Unpack

from liftenvelope._checks import MAX_INT64, as_count, as_seconds
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream._consumer_config import AckPolicy, ConsumerConfig, PriorityPolicy, shortest_wait
from liftenvelope.jetstream._consumer_requests import change_consumer
from liftenvelope.jetstream._events import PullEvent
from liftenvelope.jetstream._leaders import step_down
from liftenvelope.jetstream._prefetching import Prefetchers
from liftenvelope.jetstream._pulling.feed import PullFeed
from liftenvelope.jetstream._pulling.fetching import Batch, FetchInboxes, first_of
from liftenvelope.jetstream._pulling.hooks import Hooks
from liftenvelope.jetstream._pulling.options import (
    ConsumeOptions,
    GroupOptions,
    PullPlan,
    consume_plan,
    fetch_plan,
)
from liftenvelope.jetstream._records import check_moment, moment_text
from liftenvelope.jetstream.consuming import Consumption, Handler, Messages
from liftenvelope.jetstream.infos import ConsumerInfo, PauseInfo
from liftenvelope.jetstream.message import AckSender, Message
from liftenvelope.jetstream.names import check_group

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = ["Consumer"]

#: Maximum number of cached option sets of ``next``.
_PLANS: Final = 64


class Consumer:
    """Consumer of a stream, created by ``JetStream.consumer`` and similar methods.

    Use :meth:`messages` or :meth:`consume` for a continuous flow of messages, :meth:`fetch` for an occasional
    batch, and :meth:`next` for a single message. The object holds no resources that must be closed, but for
    what ``next(prefetch=...)`` has buffered: see :meth:`give_back`.

    Args:
        api: Client for API requests.
        info: Info of the consumer from the server.
    """

    def __init__(self, api: Api, info: ConsumerInfo) -> None:
        self._api = api
        self._info = info
        self._acks = AckSender(api)
        self._inboxes = FetchInboxes(self)
        self._plans: dict[str, tuple[ConsumerConfig, PullPlan]] = {}
        self._prefetchers = Prefetchers(self, self._inboxes.pins)

    # -- for other modules of this package

    @property
    def api(self) -> Api:
        """Client for API requests."""
        return self._api

    @property
    def acks(self) -> AckSender:
        """Sender of the acks of this consumer's messages."""
        return self._acks

    @property
    def pull_subject(self) -> str:
        """Subject that pulls are published to."""
        return f"{self._api.prefix}.CONSUMER.MSG.NEXT.{self._info.stream_name}.{self._info.name}"

    # -- state and management

    @property
    def name(self) -> str:
        """Name of the consumer."""
        return self._info.name

    @property
    def stream_name(self) -> str:
        """Name of the stream."""
        return self._info.stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """Last info received from the server; sends no request."""
        return self._info

    @property
    def _path(self) -> str:
        return f"{self._info.stream_name}.{self._info.name}"

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Request the consumer's info from the server.

        Args:
            timeout: Seconds to wait for the answer. Default: the timeout of the context.

        Raises:
            ConsumerNotFoundError: The consumer no longer exists.
            JetStreamError, CallTimeoutError, TransportError: As for every request.
        """
        self._info = await self._api.request_as(
            ConsumerInfo.from_json, f"CONSUMER.INFO.{self._path}", timeout=timeout
        )
        return self._info

    async def delete(self, *, timeout: float | None = None) -> None:
        """Delete the consumer; its readers end with a ConsumerDeletedError.

        Args:
            timeout: As for :meth:`info`.

        Raises:
            ConsumerNotFoundError: The consumer no longer exists.
            JetStreamError, CallTimeoutError, TransportError: As for every request.
        """
        self._inboxes.close()
        await self._api.request(f"CONSUMER.DELETE.{self._path}", timeout=timeout)

    async def pause(self, until: datetime | float, *, timeout: float | None = None) -> PauseInfo:
        """Pause deliveries until a given time (server 2.11).

        Args:
            until: Time at which deliveries resume, with a time zone; or seconds from now.
            timeout: As for :meth:`info`.

        Raises:
            UsageError: ``until`` has no time zone, is not a positive number, or is after the year 9999.
            UnsupportedByServerError: The server is older than 2.11.
            JetStreamError, CallTimeoutError, TransportError: As for every request.
        """
        moment = until if isinstance(until, datetime) else _after("until", until)
        body = {"pause_until": moment_text(check_moment("until", moment))}
        return await self._put_pause(body, timeout)

    async def resume(self, *, timeout: float | None = None) -> PauseInfo:
        """Resume deliveries of a paused consumer.

        Args:
            timeout: As for :meth:`info`.

        Raises:
            UnsupportedByServerError, JetStreamError, CallTimeoutError, TransportError: As for :meth:`pause`.
        """
        return await self._put_pause({}, timeout)

    async def _put_pause(self, body: dict[str, str], timeout: float | None) -> PauseInfo:
        return await change_consumer(
            self._api, "PAUSE", (2, 11), self._info, PauseInfo.from_json, body, timeout
        )

    async def reset(self, sequence: int | None = None, *, timeout: float | None = None) -> ConsumerInfo:
        """Reset the consumer's position in the stream (ADR-60, server 2.14).

        Args:
            sequence: Stream sequence to start at. Default: the one after the ack floor.
            timeout: As for :meth:`info`.

        Returns:
            Info of the consumer; ``reset_seq`` is the new start sequence.

        Raises:
            UsageError: The sequence is less than 1, or does not fit in 64 bits.
            UnsupportedByServerError: The server is older than 2.14.
            JetStreamError, CallTimeoutError, TransportError: As for every request.
        """
        body = None if sequence is None else {"seq": as_count("sequence", sequence, 1, MAX_INT64)}
        self._info = await change_consumer(
            self._api, "RESET", (2, 14), self._info, ConsumerInfo.from_json, body, timeout
        )
        return self._info

    async def unpin(self, group: str, *, timeout: float | None = None) -> None:
        """Unpin the pinned client of a group; the server then pins another client (ADR-42).

        Args:
            group: Priority group.
            timeout: As for :meth:`info`.

        Raises:
            UsageError: The group name is invalid or unknown, or the consumer's policy is not PINNED_CLIENT.
            JetStreamError, CallTimeoutError, TransportError: As for every request.
        """
        config = self._info.config
        check_group(group)
        if not config.priority_groups:
            raise UsageError(f"group must be a priority group, but {self.name!r} has none, got {group!r}")
        if group not in config.priority_groups:
            raise UsageError(
                f"group must be one of the consumer's, {list(config.priority_groups)}, got {group!r}"
            )
        if config.priority_policy is not PriorityPolicy.PINNED_CLIENT:
            raise UsageError(
                f"priority_policy must be pinned_client to unpin {group!r}, got {config.priority_policy}"
            )
        await self._api.request(f"CONSUMER.UNPIN.{self._path}", {"group": group}, timeout=timeout)

    async def step_down(self, preferred: str | None = None, *, timeout: float | None = None) -> str:
        """Make the leader of the consumer step down, and wait for the next one.

        Args:
            preferred: Name of the server that should lead (server 2.11). Default: any other replica.
            timeout: Seconds for the whole call. Default: the timeout of the context.

        Returns:
            Name of the new leader. Without ``preferred`` it may be the old one, elected again.

        Raises:
            UsageError: There is a single replica, or ``preferred`` has none or leads already.
            ConsumerNotFoundError: The consumer was deleted.
            StreamNotFoundError: The stream was deleted.
            JetStreamError: The servers are no cluster.
            CallTimeoutError: No leader was elected in time, or the old one again by servers that do not tell
                ``leader_since``; or ``preferred`` was not elected in time, or lost three elections.
        """
        return await step_down(
            self._api,
            f"CONSUMER.LEADER.STEPDOWN.{self._path}",
            lambda seconds: self.info(timeout=seconds),
            preferred,
            timeout,
        )

    # -- single pulls

    async def fetch(
        self,
        max_messages: int,
        *,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
        **group: Unpack[GroupOptions],
    ) -> Batch:
        """Fetch a batch: ends with ``max_messages`` messages, or after ``expires`` seconds with fewer.

        If the connection is lost, the call waits for the next connection and pulls the rest there. If the
        call is cancelled, the messages received so far are returned to the server for redelivery.

        Args:
            max_messages: Maximum number of messages.
            expires: Seconds to wait for the messages. Default 30.
            idle_heartbeat: Seconds between heartbeats of the server: 0.5 to 30, at most half of ``expires``.
                Default: 5 for a pull of at least 10 s, otherwise none. A pull lasts for ``expires``, or less
                to keep a pin or by the consumer's ``max_expires``.
            group: Options for the consumer's priority group.

        Returns:
            Batch of messages, which may be empty. Its ``error`` is set if an error ended the batch after the
            first message.

        Raises:
            UsageError: An option is invalid, or the consumer does not allow it.
            PushConsumerError: The consumer is a push consumer.
            ConsumerDeletedError: The consumer was deleted before the first message arrived.
            NoJetStreamError: Nothing answers: JetStream is not running, or the consumer no longer exists.
            JetStreamError: The server refused the pull.
            ConnectionClosedError: The connection is closed or draining.
            TransportError: The connection was still down after ``expires`` seconds.
            CallTimeoutError: The server missed two heartbeats, as it does for a pull beyond the consumer's
                ``max_waiting``; or it did not report the end of the pull.
            UnsupportedByServerError: The server sends no headers, and so cannot tell why the pull ended.
        """
        as_count("max_messages", max_messages, 1)
        as_seconds("expires", expires)
        plan = fetch_plan(
            self._info.config,
            max_messages=max_messages,
            max_bytes=None,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            **group,
        )
        return await self._inboxes.fetch(plan, expires)

    async def fetch_bytes(
        self,
        max_bytes: int,
        *,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
        **group: Unpack[GroupOptions],
    ) -> Batch:
        """Fetch a batch limited by size: ends when the next message would not fit, or after ``expires``.

        Args:
            max_bytes: Maximum size in bytes. Servers count subjects, reply subjects, headers and payloads.
            expires: As for :meth:`fetch`.
            idle_heartbeat: As for :meth:`fetch`.
            group: Options for the consumer's priority group.

        Returns, Raises: As for :meth:`fetch`.
        """
        as_count("max_bytes", max_bytes, 1)
        as_seconds("expires", expires)
        plan = fetch_plan(
            self._info.config,
            max_messages=None,
            max_bytes=max_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            **group,
        )
        return await self._inboxes.fetch(plan, expires)

    async def fetch_no_wait(self, max_messages: int, **group: Unpack[GroupOptions]) -> Batch:
        """Fetch only the messages that are available now.

        Args:
            max_messages: Maximum number of messages.
            group: Options for the consumer's priority group.

        Returns, Raises: As for :meth:`fetch`.
        """
        as_count("max_messages", max_messages, 1)
        plan = fetch_plan(
            self._info.config,
            max_messages=max_messages,
            max_bytes=None,
            expires=None,
            idle_heartbeat=None,
            **group,
        )
        return await self._inboxes.fetch(plan, self._api.timeout)

    async def next(
        self, timeout: float = 30.0, *, prefetch: int = 1, **group: Unpack[GroupOptions]
    ) -> Message:
        """Fetch the next message.

        Args:
            timeout: Seconds to wait for the message. Default 30.
            prefetch: Messages to ask the server for at a time. Those beyond the first wait for the next calls
                with the same options. After half of ``ack_wait``, or of the shortest time of ``backoff``, at
                most 15 s, without a call for them they are given back as by :meth:`give_back`. A caller that
                is too slow for so many gets fewer at a time. Default 1: nothing is buffered.
            group: Options for the consumer's priority group.

        Raises:
            CallTimeoutError: No message came in time. CallTimeoutError is a :class:`TimeoutError`.
            UsageError: An option is invalid, or ``prefetch`` is above 1 for a consumer that does not
                redeliver: one with the ack policy NONE, or with ``max_deliver=1``.
            LiftEnvelopeError: As for :meth:`fetch`.
        """
        if prefetch != 1:
            as_seconds("timeout", timeout)
            return await self._prefetchers.of(self._info.config, prefetch, group).next(timeout)
        # Loops call ``next`` with the same options each time; the cache avoids checking them again.
        key = f"{timeout!r} {group!r}"
        if (known := self._plans.get(key)) is None or known[0] is not self._info.config:
            as_seconds("timeout", timeout)
            plan = fetch_plan(
                self._info.config,
                max_messages=1,
                max_bytes=None,
                expires=timeout,
                idle_heartbeat=None,
                **group,
            )
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            known = self._plans[key] = (self._info.config, plan)
        return first_of(await self._inboxes.fetch(known[1], timeout), timeout)

    def give_back(self) -> int:
        """Nak the messages that :meth:`next` has prefetched, so that the server redelivers them at once.

        Each counts as a delivery. Call it before a program ends that has used ``prefetch``. Otherwise the
        server redelivers them after ``ack_wait``.

        Returns:
            Number of messages given back.
        """
        return self._prefetchers.give_back()

    # -- continuous pulls

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        on_event: Callable[[PullEvent], None] | None = None,
        on_pinned: Callable[[str], None] | None = None,
        on_unpinned: Callable[[str], None] | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Messages:
        """Iterate over the messages as they arrive.

        Args:
            max_messages: Maximum number of messages requested and buffered. Default 500.
            max_bytes: Maximum number of bytes requested and buffered; excludes ``max_messages``.
            on_event: Called with each event that does not end the iteration: see
                :mod:`liftenvelope.jetstream`.
            on_pinned: Called with the pin id when this iteration is pinned.
            on_unpinned: Called with the pin id when this iteration loses the pin.
            options: See :class:`~liftenvelope.jetstream.ConsumeOptions`.

        Raises:
            UsageError: An option is invalid, or the consumer does not allow it.
            PushConsumerError: The consumer is a push consumer.

        Example::

            async with consumer.messages() as messages:
                async for message in messages:
                    print(message.subject, message.data)
                    message.ack()
        """
        plan = consume_plan(self._info.config, max_messages=max_messages, max_bytes=max_bytes, **options)
        hooks = self._hooks(on_event, on_pinned, on_unpinned)
        return Messages(PullFeed(self, plan, hooks, self._inboxes.pins))

    async def consume(
        self,
        handler: Handler,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        auto_ack_progress: bool = False,
        on_event: Callable[[PullEvent], None] | None = None,
        on_pinned: Callable[[str], None] | None = None,
        on_unpinned: Callable[[str], None] | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Consumption:
        """Call a handler with each message, one message at a time.

        An exception of the handler ends the consumption, and ``closed()`` raises the exception. A
        CancelledError of the handler becomes a UsageError, unless the consumption itself was cancelled.

        Args:
            handler: Plain function or coroutine function. A coroutine is awaited before the next message.
            max_messages: Maximum number of messages requested and buffered. Default 500.
            max_bytes: Maximum number of bytes requested and buffered; excludes ``max_messages``.
            auto_ack_progress: True to send progress acks while a coroutine function runs, three per
                ``ack_wait``, or per shortest time of ``backoff``, so that the message is not redelivered.
                Default false.
            on_event: Called with each event that does not end the consumption.
            on_pinned: Called with the pin id when this consumption is pinned.
            on_unpinned: Called with the pin id when this consumption loses the pin.
            options: See :class:`~liftenvelope.jetstream.ConsumeOptions`.

        Raises:
            UsageError: An option is invalid, or the consumer does not allow it.
            PushConsumerError: The consumer is a push consumer.
            TransportError: The connection is closed or draining.

        Example::

            def handle(message):
                print(message.data)
                message.ack()

            async with await consumer.consume(handle) as consumption:
                await consumption.closed()
        """
        if not callable(handler):
            raise UsageTypeError(f"handler must be a function, got {type(handler).__name__}")
        config = self._info.config
        if auto_ack_progress and config.ack_policy is AckPolicy.NONE:
            raise UsageError("auto_ack_progress must be False for a consumer without acks, got True")
        progress = shortest_wait(config) / 3 if auto_ack_progress else None
        plan = consume_plan(config, max_messages=max_messages, max_bytes=max_bytes, **options)
        hooks = self._hooks(on_event, on_pinned, on_unpinned)
        feed = PullFeed(self, plan, hooks, self._inboxes.pins)
        try:
            await feed.start()
        except BaseException:
            feed.stop()
            raise
        return Consumption(feed, handler, progress)

    def _hooks(
        self,
        on_event: Callable[[PullEvent], None] | None,
        on_pinned: Callable[[str], None] | None,
        on_unpinned: Callable[[str], None] | None,
    ) -> Hooks:
        return Hooks(on_event, on_pinned, on_unpinned, consumer=f"{self.stream_name}/{self.name}")

    def __repr__(self) -> str:
        return f"Consumer(stream={self.stream_name!r}, name={self.name!r})"


def _after(name: str, seconds: float) -> datetime:
    """Return the moment a number of seconds from now; raise UsageError if a datetime cannot hold it."""
    try:
        return datetime.now(UTC) + timedelta(seconds=as_seconds(name, seconds))
    except OverflowError:
        raise UsageError(f"{name} must be before the year 10000, got {seconds!r} seconds from now") from None
