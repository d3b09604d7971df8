"""The client: :func:`connect`, and :class:`Client`, which is made of the parts of this package.

Each part owns its state, and gets the state that all parts share, a
:class:`~liftenvelope.client.core.ClientContext`, by its constructor. The client forwards its methods to them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from liftenvelope.client._consuming.checkpointer import Checkpointer
from liftenvelope.client._consuming.consumer import Consumer
from liftenvelope.client._consuming.options import ConsumerOptions, check_streams
from liftenvelope.client._cursors import Cursors
from liftenvelope.client._forwarding import forward
from liftenvelope.client._health import HealthChecks
from liftenvelope.client._parts import ClientParts
from liftenvelope.client._publishing import Publisher
from liftenvelope.client._reading.subscribing import Subscriptions
from liftenvelope.client._streams import Streams
from liftenvelope.client.activity import ACTIVITY_STREAM, Activity, ActivityStream
from liftenvelope.client.core import ClientContext
from liftenvelope.client.options import BrokerSelection, Options

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from liftenvelope.client._consuming.options import PartitionsCallback
    from liftenvelope.client._events import EventHandler
    from liftenvelope.client._reading.merged import MergedSubscription
    from liftenvelope.client._reading.subscription import Subscription
    from liftenvelope.client.positions import Start, Stop

__all__ = ["Client", "connect"]


class Client:
    """A client of a Liftbridge cluster. Made by :func:`connect`; it belongs to one event loop."""

    def __init__(self, options: Options) -> None:
        self._context = context = ClientContext(options)
        self._publisher = Publisher(context)
        self._streams = Streams(context)
        self._cursors = Cursors(context)
        self._subscriptions = Subscriptions(context, self._streams, self._cursors)
        self._health = HealthChecks(context)
        self._parts = ClientParts(context, self._streams, self._cursors, self._subscriptions)

    # Opening and closing

    async def open(self) -> Self:
        """Connect to the cluster and fetch its brokers. ``async with`` and ``await`` do it.

        Raises:
            TransportError: No broker could be reached.
            CallTimeoutError: No broker answered in time.
        """
        await self._context.cluster.fetch([], deadline=self._context.deadline(None))
        return self

    async def close(self) -> None:
        """Close every subscription, publish and consumer of this client, and its connections.

        Closing twice has no effect.

        Raises:
            UsageError: The client belongs to another event loop than the running one.
        """
        await self._context.close()

    @property
    def reconnects(self) -> int:
        """Number of connections to brokers that were made in place of one that was lost."""
        return self._context.cluster.connections.reconnects

    @property
    def publish_async_pending(self) -> int:
        """Number of messages of :meth:`publish_async` and :meth:`publish_many` without an outcome."""
        return self._publisher.streams.count

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # Publishing

    publish = forward("_publisher", Publisher.publish)
    publish_async = forward("_publisher", Publisher.publish_async)
    publish_many = forward("_publisher", Publisher.publish_many)
    publish_to_subject = forward("_publisher", Publisher.publish_to_subject)
    flush = forward("_publisher", Publisher.flush)

    # Streams

    create_stream = forward("_streams", Streams.create_stream)
    delete_stream = forward("_streams", Streams.delete_stream)
    pause_stream = forward("_streams", Streams.pause_stream)
    set_stream_readonly = forward("_streams", Streams.set_stream_readonly)
    fetch_metadata = forward("_streams", Streams.fetch_metadata)
    fetch_partition_metadata = forward("_streams", Streams.fetch_partition_metadata)
    check_health = forward("_health", HealthChecks.check_health)

    # Cursors

    set_cursor = forward("_cursors", Cursors.set_cursor)
    reset_cursor = forward("_cursors", Cursors.reset_cursor)
    fetch_cursor = forward("_cursors", Cursors.fetch_cursor)

    def checkpointer(
        self, cursor_id: str, stream: str, *, every_messages: int = 1000, every_seconds: float = 5.0
    ) -> Checkpointer:
        """Return a checkpointer, which keeps the cursor of a stream's reader with few calls to the server.

        Args:
            cursor_id: Id of the cursor: any text without a comma.
            stream: Name of the stream.
            every_messages: Store the cursor after this many processed messages of a partition. Default 1000.
            every_seconds: Store the cursor at the latest this many seconds after the first unstored message
                was processed. Default 5.

        Returns:
            The checkpointer, for use with ``async with``: leaving the block stores the processed offsets.

        Raises:
            UsageError: An argument is invalid, or the id or the stream's name contains a comma.
        """
        return Checkpointer(
            self._parts, cursor_id, stream, every_messages=every_messages, every_seconds=every_seconds
        )

    # Reading

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        partition: int = 0,
        start: Start | None = None,
        stop: Stop = None,
        read_isr_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> Subscription: ...

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        partition: Literal["all"],
        start: Start | None = None,
        stop: Stop = None,
        read_isr_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> MergedSubscription: ...

    @overload
    def subscribe(
        self,
        stream: str,
        *,
        partitions: Literal["all"] | Iterable[int],
        start: Start | None = None,
        stop: Stop = None,
        read_isr_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> MergedSubscription: ...

    def subscribe(
        self,
        stream: str,
        *,
        partition: int | Literal["all"] = 0,
        partitions: Literal["all"] | Iterable[int] | None = None,
        start: Start | None = None,
        stop: Stop = None,
        read_isr_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> Subscription | MergedSubscription:
        """Make a subscription: a read of one, several or all partitions. ``async with`` opens it.

        Args:
            stream: Name of the stream.
            partition: Number of the partition, or ``"all"``. Default 0.
            partitions: ``"all"``, or the numbers of several partitions to merge into one subscription;
                instead of ``partition``.
            start: Start of the read. ``"new"`` (the default): after the newest message. ``"earliest"``: at
                the oldest message. ``"latest"``: at the newest message. An offset: at that message, which may
                not exist yet. A :class:`~datetime.datetime` or :class:`Timestamp`: at the first message at or
                after that time. A :class:`~datetime.timedelta`: that long ago. A :class:`Cursor`: after the
                cursor's message. With ``reverse``: ``"latest"`` (the default) or an offset.
            stop: End of the read, inclusive. None (the default): no end. ``"latest"``: at the message that is
                the newest one when the read begins, or at once if there is none. An offset, or a time in the
                past. With ``reverse``: the lowest offset, or the earliest time, to read.
            read_isr_replica: Whether any in-sync replica may serve the read. Replicas may lag behind the
                leader. Default False: the leader only.
            resume: Whether to wake the partition if it is paused. Default False.
            reverse: Whether to read from newer to older messages. Needs a Liftbridge server from 2026 on.

        Returns:
            The subscription, not open yet: a :class:`Subscription` for one ``partition``, else a
            :class:`MergedSubscription`.

        Raises:
            UsageError: An argument is invalid. The error names the argument.

        Example:
            >>> import asyncio, liftenvelope
            >>> from liftenvelope.testing import run_liftbridge
            >>> async def main(addresses):
            ...     async with liftenvelope.connect(addresses) as client:
            ...         await client.create_stream("numbers", "numbers")
            ...         for number in range(3):
            ...             await client.publish("numbers", str(number).encode())
            ...         async with client.subscribe("numbers", start=1, stop="latest") as messages:
            ...             return [message.value async for message in messages]
            >>> with run_liftbridge() as cluster:
            ...     asyncio.run(main(cluster.addresses))
            [b'1', b'2']
        """
        return self._subscriptions.subscribe(
            stream,
            partition=partition,
            partitions=partitions,
            start=start,
            stop=stop,
            read_isr_replica=read_isr_replica,
            resume=resume,
            reverse=reverse,
        )

    def activity(self, *, start: Start | Activity = "new", stop: Stop = None) -> ActivityStream:
        """Read the events of streams and consumer groups. ``async with`` opens the read.

        Servers record events only if ``activity.stream.enabled`` is set in their configuration. A server
        records an operation soon after it is done. The server's configuration sets the retention.

        Args:
            start: First event to read, as in :meth:`subscribe`: ``"new"`` after the newest event,
                ``"earliest"``, ``"latest"``, an offset, a time, or a cursor. An event continues after that
                event, without the copies of it that a server may have recorded since.
            stop: Last event to read: None for no end, ``"latest"`` for the newest event at the start of the
                read, an offset, or a time in the past.

        Returns:
            The activity stream, not open yet.

        Raises:
            UsageError: An argument is invalid; the message names it.

        Example:
            >>> import asyncio, liftenvelope
            >>> from liftenvelope.client.activity import StreamCreated
            >>> from liftenvelope.testing import run_liftbridge
            >>> async def main(addresses):
            ...     async with liftenvelope.connect(addresses) as client:
            ...         async with client.activity(start="earliest") as events:
            ...             await client.create_stream("orders", "orders", partitions=2)
            ...             async for event in events:
            ...                 if isinstance(event, StreamCreated) and event.stream == "orders":
            ...                     return event.partitions
            >>> with run_liftbridge() as cluster:
            ...     asyncio.run(main(cluster.addresses))
            (0, 1)
        """
        after = start if isinstance(start, Activity) else None
        first = start.offset + 1 if isinstance(start, Activity) else start
        return ActivityStream(self.subscribe(ACTIVITY_STREAM, start=first, stop=stop), after)

    def consumer(
        self,
        group: str,
        streams: str | Iterable[str],
        *,
        consumer_id: str | None = None,
        auto_commit_interval: float | None = 5.0,
        auto_offset: Literal["new", "earliest", "latest", "error"] = "new",
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        resume: bool = False,
    ) -> Consumer:
        """Return a member of a consumer group. The members of a group share the partitions of streams.

        Args:
            group: Name of the group, created by its first member. Any text without a comma.
            streams: Names of the streams to read, or one name. Members may read different streams.
            consumer_id: Id of the member; None for a new unique id. If two members have the same id, the
                later one removes the earlier one from the group.
            auto_commit_interval: Maximum seconds from processing a message to storing its offset. None:
                offsets are stored only by :meth:`Consumer.commit`, on revocation, and on close.
            auto_offset: Start of a partition for which the group has no cursor: ``"new"`` for messages
                published from then on, ``"earliest"`` for the oldest message, ``"latest"`` for the newest
                existing message, ``"error"`` to raise :class:`NoCursorError`.
            on_assigned: Called with the list of newly assigned (stream, partition) before the consumer reads
                them: the place for :meth:`Consumer.seek`. A function or a coroutine function.
                Functions of a blocking client run in its own thread, and may use only what does not wait:
                seek, pause, resume, position.
            on_revoked: Called with the list of revoked (stream, partition) after their readers have stopped,
                and before their processed offsets are stored for the last time.
            resume: True to resume paused partitions. False: the consumer reads a paused partition once a
                publish or another client resumes it.

        Returns:
            The consumer, for use with ``async with``: entering it joins the group.

        Raises:
            UsageError: An argument is invalid; the message names it.
        """
        options = ConsumerOptions(
            group=group,
            streams=check_streams(streams),
            consumer_id=consumer_id,
            auto_commit_interval=auto_commit_interval,
            auto_offset=auto_offset,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            resume=resume,
        )
        return Consumer(self._parts, options)


def connect(
    addresses: str | Iterable[str],
    *,
    tls: ssl.SSLContext | bool | None = None,
    tls_server_name: str | Mapping[str, str] | None = None,
    timeout: float = 10.0,
    ack_wait: float = 5.0,
    resubscribe_wait: float = 30.0,
    connect_timeout: float = 5.0,
    max_conns_per_broker: int = 2,
    keep_alive_time: float = 30.0,
    ping_interval: float | None = 30.0,
    metadata_max_age: float = 60.0,
    max_message_bytes: int = 4 * 1024 * 1024,
    max_request_bytes: int = 4 * 1024 * 1024,
    max_header_bytes: int = 64 * 1024,
    max_brokers: int = 1_000,
    max_partitions: int = 100_000,
    prefetch_bytes: int = 8 * 1024 * 1024,
    prefetch_messages: int | None = None,
    broker_selection: BrokerSelection = "random",
    address_map: Mapping[str, str] | None = None,
    on_event: EventHandler | None = None,
) -> Client:
    """Make a client of a Liftbridge cluster; ``async with`` or ``await`` connects it.

    Args:
        addresses: ``host:port`` of one or more seed brokers, with brackets around an IPv6 host. The client
            discovers the other brokers through these.
        tls: An :class:`ssl.SSLContext` for TLS (load a client certificate into it for mTLS), True for
            Python's default context, None for plain TCP.
        tls_server_name: Name to verify in the brokers' certificates, if it differs from the advertised host:
            one name for all brokers, or a mapping from ``host:port``, as the cluster advertises it, to a
            name. Default: the host of each address. Needs ``tls``.
        timeout: Seconds for a call including all retries, unless the call has its own timeout.
        ack_wait: Seconds to wait for the ack of a published message, unless the call has its own timeout.
        resubscribe_wait: Seconds to keep trying to restore a lost subscription; 0 disables resubscribing.
        connect_timeout: Seconds for one connection attempt.
        max_conns_per_broker: Maximum number of connections to each broker.
        keep_alive_time: Seconds after which an idle connection is closed.
        ping_interval: Seconds without data on a connection with open calls before the client sends a ping.
            The client pings less often where a Go server with default settings would close the connection.
            None disables pings.
        metadata_max_age: Seconds for which stream metadata is cached.
        max_message_bytes: Maximum message size in bytes. A larger message ends its call with
            RESOURCE_EXHAUSTED.
        max_request_bytes: Maximum size of a publish request in bytes. A larger message raises
            MessageTooLargeError and is not sent. Default 4 MiB: Liftbridge ends the call that all messages
            share at a larger request. Raise it for gateways with a larger ``max_message_bytes``.
        max_header_bytes: Maximum size of a response header list in bytes. A larger list ends the connection.
        max_brokers: Maximum number of brokers in one metadata response. More raise ServerProtocolError.
        max_partitions: Maximum number of partitions in one metadata response, over all streams. More raise
            ServerProtocolError.
        prefetch_bytes: Flow-control window in bytes of each subscription: the server sends at most this far
            ahead of the reader.
        prefetch_messages: Maximum number of messages sent ahead of the reader; None for as many as
            ``prefetch_bytes`` holds. Servers limit bytes, so this grants 40 bytes (the smallest message) per
            message.
        broker_selection: Strategy to choose among several brokers that can answer: ``"random"``,
            ``"latency"`` (shortest connection time), ``"workload"`` (fewest partitions), or a function from a
            sequence of :class:`BrokerInfo` to one of these. Brokers that could not be reached in the last 5
            seconds are left out, if there are others.
        address_map: Mapping from an advertised address to the address to connect to, for networks in which
            the advertised address is not reachable.
        on_event: Called with every :data:`ClientEvent`, in the thread of the event loop. A blocking client
            runs its loop in a thread of its own, where calls to the client raise UsageError. By default,
            events that need attention are issued as Python warnings (:class:`LiftEnvelopeWarning`).

    Returns:
        The client, not connected yet.

    Raises:
        UsageError: An argument makes no sense; it is named.

    Example:
        >>> import asyncio, liftenvelope
        >>> from liftenvelope.testing import run_liftbridge
        >>> async def main(addresses):
        ...     async with liftenvelope.connect(addresses) as client:
        ...         await client.create_stream("greetings", "greetings")
        ...         ack = await client.publish("greetings", b"hello")
        ...         async with client.subscribe("greetings", start="earliest") as messages:
        ...             async for message in messages:
        ...                 return ack.offset, message.value
        >>> with run_liftbridge() as cluster:
        ...     asyncio.run(main(cluster.addresses))
        (0, b'hello')
    """
    options = Options(
        addresses=addresses,
        tls=tls,
        tls_server_name=tls_server_name,
        timeout=timeout,
        ack_wait=ack_wait,
        resubscribe_wait=resubscribe_wait,
        connect_timeout=connect_timeout,
        max_conns_per_broker=max_conns_per_broker,
        keep_alive_time=keep_alive_time,
        ping_interval=ping_interval,
        metadata_max_age=metadata_max_age,
        max_message_bytes=max_message_bytes,
        max_request_bytes=max_request_bytes,
        max_header_bytes=max_header_bytes,
        max_brokers=max_brokers,
        max_partitions=max_partitions,
        prefetch_bytes=prefetch_bytes,
        prefetch_messages=prefetch_messages,
        broker_selection=broker_selection,
        address_map=address_map or {},
        on_event=on_event,
    )
    return Client(options)
