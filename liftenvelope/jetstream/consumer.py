"""A pull consumer: its state, and the ways to get its messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Unpack

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream._feed import Hooks, PullFeed
from liftenvelope.jetstream._names import check_group
from liftenvelope.jetstream._records import moment_text
from liftenvelope.jetstream.consumer_config import AckPolicy, ConsumerConfig, PriorityPolicy
from liftenvelope.jetstream.consuming import Consumption, Handler, Messages
from liftenvelope.jetstream.events import PullEvent
from liftenvelope.jetstream.fetching import Batch, FetchInboxes, first_of
from liftenvelope.jetstream.infos import ConsumerInfo, PauseInfo
from liftenvelope.jetstream.message import Acks, Message
from liftenvelope.jetstream.pull_options import (
    ConsumeOptions,
    GroupOptions,
    PullPlan,
    consume_plan,
    fetch_plan,
    whole,
)
from liftenvelope.nats._outcomes import positive

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = ["Consumer"]

#: The server's own, where the configuration has none, in seconds.
_ACK_WAIT: Final = 30.0
#: How many sets of options of ``next`` are remembered.
_PLANS: Final = 64


class Consumer:
    """A consumer of a stream. Made by ``JetStream.consumer`` and its like.

    To take messages as they come, use :meth:`messages` or :meth:`consume`; for a batch now and then
    :meth:`fetch`, for a single one :meth:`next`. It holds nothing that has to be closed.

    Args:
        api: The way to the server.
        info: What the server has said about the consumer.
    """

    def __init__(self, api: Api, info: ConsumerInfo) -> None:
        self._api = api
        self._info = info
        self._acks = Acks(api)
        self._inboxes = FetchInboxes(self)
        self._plans: dict[str, tuple[ConsumerConfig, PullPlan]] = {}

    # -- what the parts of this package need of it

    @property
    def api(self) -> Api:
        """The way to the server."""
        return self._api

    @property
    def acks(self) -> Acks:
        """What sends the acks of its messages."""
        return self._acks

    @property
    def pull_subject(self) -> str:
        """The subject that its pulls are published to."""
        return f"{self._api.prefix}.CONSUMER.MSG.NEXT.{self._info.stream_name}.{self._info.name}"

    # -- its state

    @property
    def name(self) -> str:
        """Its name."""
        return self._info.name

    @property
    def stream_name(self) -> str:
        """The name of its stream."""
        return self._info.stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """What the server said last about it; asks nothing."""
        return self._info

    @property
    def _path(self) -> str:
        return f"{self._info.stream_name}.{self._info.name}"

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Ask the server about it.

        Args:
            timeout: How long to wait for the answer, in seconds. Default: that of the context.

        Raises:
            ConsumerNotFoundError: It is gone.
            JetStreamError, CallTimeoutError, TransportError: As for every request.
        """
        self._info = await self._api.request_as(
            ConsumerInfo.from_json, f"CONSUMER.INFO.{self._path}", timeout=timeout
        )
        return self._info

    async def delete(self, *, timeout: float | None = None) -> None:
        """Delete it. Whoever reads from it ends with a ConsumerDeletedError.

        Args:
            timeout: As for :meth:`info`.

        Raises:
            ConsumerNotFoundError: It is gone already.
            JetStreamError, CallTimeoutError, TransportError: As for every request.
        """
        self._inboxes.close()
        await self._api.request(f"CONSUMER.DELETE.{self._path}", timeout=timeout)

    async def pause(self, until: datetime | float, *, timeout: float | None = None) -> PauseInfo:
        """Have it deliver nothing for a while (server 2.11).

        Args:
            until: The moment that it goes on at, with a time zone; or after how many seconds.
            timeout: As for :meth:`info`.

        Raises:
            UsageError: It is neither, or no positive number.
            JetStreamError, CallTimeoutError, TransportError: As for every request.
        """
        if not isinstance(until, datetime):
            until = datetime.now(UTC) + timedelta(seconds=positive("until", until))
        elif until.tzinfo is None:
            raise UsageError(f"until must have a time zone, unlike {until!r}")
        body = {"pause_until": moment_text(until)}
        return await self._put_pause(body, timeout)

    async def resume(self, *, timeout: float | None = None) -> PauseInfo:
        """Have it deliver again.

        Args:
            timeout: As for :meth:`info`.

        Raises:
            JetStreamError, CallTimeoutError, TransportError: As for every request.
        """
        return await self._put_pause({}, timeout)

    async def _put_pause(self, body: dict[str, str], timeout: float | None) -> PauseInfo:
        return await self._api.request_as(
            PauseInfo.from_json, f"CONSUMER.PAUSE.{self._path}", body, timeout=timeout
        )

    async def reset(self, sequence: int | None = None, *, timeout: float | None = None) -> ConsumerInfo:
        """Have it begin anew (ADR-60, server 2.14).

        Args:
            sequence: The stream sequence to begin at. Default: after the last one that was acknowledged.
            timeout: As for :meth:`info`.

        Returns:
            Its state; ``reset_seq`` is where it begins.

        Raises:
            UsageError: The sequence is not positive.
            JetStreamError, CallTimeoutError, TransportError: As for every request.
        """
        body = None if sequence is None else {"seq": whole("sequence", sequence, 1)}
        self._info = await self._api.request_as(
            ConsumerInfo.from_json, f"CONSUMER.RESET.{self._path}", body, timeout=timeout
        )
        return self._info

    async def unpin(self, group: str, *, timeout: float | None = None) -> None:
        """Take the pin from whichever client of a group holds it; the server chooses another (ADR-42).

        Args:
            group: The priority group.
            timeout: As for :meth:`info`.

        Raises:
            UsageError: It can't be a group's name, or the consumer has none such or pins nobody.
            JetStreamError, CallTimeoutError, TransportError: As for every request.
        """
        config = self._info.config
        if check_group(group) not in config.priority_groups:
            raise UsageError(f"group {group!r} is none of the consumer's, {list(config.priority_groups)}")
        if config.priority_policy is not PriorityPolicy.PINNED_CLIENT:
            raise UsageError(
                f"group {group!r}: the consumer's policy is {config.priority_policy}, which pins nobody"
            )
        await self._api.request(f"CONSUMER.UNPIN.{self._path}", {"group": group}, timeout=timeout)

    # -- one pull

    async def fetch(
        self,
        max_messages: int,
        *,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
        **group: Unpack[GroupOptions],
    ) -> Batch:
        """Get a batch of messages: all of them, or what has come when the time is up.

        A lost connection is waited for, and the rest is pulled then; if it does not come back in time, that
        is an error. When the call is cancelled, what had come is given back to be delivered again.

        Args:
            max_messages: How many at most.
            expires: How long to wait for them, in seconds. Default 30.
            idle_heartbeat: How often the server says that the pull waits, in seconds: 0.5 to 30, at most half
                of ``expires``. Default: none up to an ``expires`` of 30, half of it beyond.
            group: What the pull says of its priority group.

        Returns:
            The messages, perhaps none. Its ``error`` says what ended it early after some had come.

        Raises:
            UsageError: An option makes no sense, or the consumer does not take it.
            PushConsumerError: The consumer can't be pulled from.
            ConsumerDeletedError: The consumer was deleted meanwhile, before anything came.
            NoJetStreamError: Nothing answers: JetStream is not up, or the consumer is gone.
            JetStreamError: The server refused the pull.
            ConnectionClosedError: The connection is closed or draining.
            TransportError: The connection was down when the time was up.
            CallTimeoutError: The server was silent for two heartbeats, or did not say that the time was up.
        """
        whole("max_messages", max_messages, 1)
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
        """Get messages of so many bytes at most: until the next one would not fit, or the time is up.

        Args:
            max_bytes: How many, of subjects, replies, headers and payloads, as the server counts them.
            expires: As for :meth:`fetch`.
            idle_heartbeat: As for :meth:`fetch`.
            group: What the pull says of its priority group.

        Returns, Raises: As for :meth:`fetch`.
        """
        whole("max_bytes", max_bytes, 1)
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
        """Get the messages that are there now.

        Args:
            max_messages: How many at most.
            group: What the pull says of its priority group.

        Returns, Raises: As for :meth:`fetch`.
        """
        whole("max_messages", max_messages, 1)
        plan = fetch_plan(
            self._info.config,
            max_messages=max_messages,
            max_bytes=None,
            expires=None,
            idle_heartbeat=None,
            **group,
        )
        return await self._inboxes.fetch(plan, self._api.timeout)

    async def next(self, timeout: float = 30.0, **group: Unpack[GroupOptions]) -> Message:
        """Get the next message.

        Args:
            timeout: How long to wait for it, in seconds. Default 30.
            group: What the pull says of its priority group.

        Raises:
            CallTimeoutError: None came in time. It is a :class:`TimeoutError`.
            LiftEnvelopeError: As for :meth:`fetch`.
        """
        # Asked for again and again with the same options, which need to be looked at once.
        key = f"{timeout!r} {group!r}"
        if (known := self._plans.get(key)) is None or known[0] is not self._info.config:
            positive("timeout", timeout)
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

    # -- pulls without end

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
        """Iterate over the messages as they come.

        Args:
            max_messages: How many may be asked for and buffered. Default 500.
            max_bytes: How many bytes may be, instead.
            on_event: Called with everything that happens and does not end it: see
                :mod:`liftenvelope.jetstream.events`.
            on_pinned: Called with the id when this iteration becomes the pinned one of its group.
            on_unpinned: Called with the id when it no longer is.
            options: See :class:`~liftenvelope.jetstream.pull_options.ConsumeOptions`.

        Raises:
            UsageError: An option makes no sense, or the consumer does not take it.
            PushConsumerError: The consumer can't be pulled from.

        Example::

            async with consumer.messages() as messages:
                async for message in messages:
                    print(message.subject, message.data)
                    message.ack()
        """
        plan = consume_plan(self._info.config, max_messages=max_messages, max_bytes=max_bytes, **options)
        return Messages(PullFeed(self, plan, Hooks(on_event, on_pinned, on_unpinned)))

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
        """Have a handler called with each message, one after the other.

        What the handler raises ends the consumption and comes out of its ``closed()``.

        Args:
            handler: A plain function, or a coroutine function, which is awaited.
            max_messages: How many may be asked for and buffered. Default 500.
            max_bytes: How many bytes may be, instead.
            auto_ack_progress: Whether to tell the server that a message is still worked on, three times in
                each ``ack_wait``, while a coroutine function runs. Default false.
            on_event: Called with everything that happens and does not end it.
            on_pinned: Called with the id when this consumption becomes the pinned one of its group.
            on_unpinned: Called with the id when it no longer is.
            options: See :class:`~liftenvelope.jetstream.pull_options.ConsumeOptions`.

        Raises:
            UsageError: An option makes no sense, or the consumer does not take it.
            PushConsumerError: The consumer can't be pulled from.
            TransportError: The connection is closed or draining.

        Example::

            def handle(message):
                print(message.data)
                message.ack()

            async with await consumer.consume(handle) as consumption:
                await consumption.closed()
        """
        if not callable(handler):
            raise UsageTypeError(f"handler must be a function, not {type(handler).__name__}")
        config = self._info.config
        if auto_ack_progress and config.ack_policy is AckPolicy.NONE:
            raise UsageError("auto_ack_progress True: the consumer takes no acks")
        progress = (config.ack_wait or _ACK_WAIT) / 3 if auto_ack_progress else None
        plan = consume_plan(config, max_messages=max_messages, max_bytes=max_bytes, **options)
        feed = PullFeed(self, plan, Hooks(on_event, on_pinned, on_unpinned))
        try:
            await feed.start()
        except BaseException:
            feed.stop()
            raise
        return Consumption(feed, handler, progress)

    def __repr__(self) -> str:
        return f"Consumer(stream={self.stream_name!r}, name={self.name!r})"
