"""Made of client/client.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from liftenvelope.client.blocking._base import BlockingCore, open_client
from liftenvelope.client.blocking.activity import BlockingActivityStream
from liftenvelope.client.blocking.checkpointer import BlockingCheckpointer
from liftenvelope.client.blocking.consumer import BlockingConsumer
from liftenvelope.client.blocking.cursors import BlockingCursors
from liftenvelope.client.blocking.health import BlockingHealth
from liftenvelope.client.blocking.merged import BlockingMergedSubscription
from liftenvelope.client.blocking.publishing import BlockingPublish
from liftenvelope.client.blocking.streams import BlockingStreams
from liftenvelope.client.blocking.subscription import BlockingSubscription
from liftenvelope.client.client import connect
from liftenvelope.client.subscription import Subscription

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping
    from typing import Literal

    from liftenvelope.client.client import Client
    from liftenvelope.client.consumer_options import PartitionsCallback
    from liftenvelope.client.events import EventHandler
    from liftenvelope.client.merged import MergedSubscription
    from liftenvelope.client.options import BrokerSelection
    from liftenvelope.client.positions import Start, Stop

__all__ = ["BlockingClient", "connect_blocking"]


class BlockingClient(BlockingPublish, BlockingStreams, BlockingCursors, BlockingHealth, BlockingCore):
    """A client of a Liftbridge cluster. Made by :func:`connect_blocking`.

    Any number of threads may use it.
    """

    _async: Client

    def checkpointer(
        self, cursor_id: str, stream: str, *, every_messages: int = 1000, every_seconds: float = 5.0
    ) -> BlockingCheckpointer:
        """Return a checkpointer, which keeps the cursor of a stream's reader with few calls to the server.

        Args:
            cursor_id: Id of the cursor: any text without a comma.
            stream: Name of the stream.
            every_messages: Store the cursor after this many processed messages of a partition. Default 1000.
            every_seconds: Store the cursor at the latest this many seconds after the first unstored message
                was processed. Default 5.

        Returns:
            The checkpointer, for use with ``with``: leaving the block stores the processed offsets.

        Raises:
            UsageError: An argument is invalid, or the id or the stream's name contains a comma.
        """
        return BlockingCheckpointer(
            self._portal,
            self._portal.run(
                lambda: self._async.checkpointer(
                    cursor_id, stream, every_messages=every_messages, every_seconds=every_seconds
                )
            ),
        )

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
    ) -> BlockingSubscription: ...

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
    ) -> BlockingMergedSubscription: ...

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
    ) -> BlockingMergedSubscription: ...

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
    ) -> BlockingSubscription | BlockingMergedSubscription:
        """Make a subscription: a read of one, several or all partitions. ``with`` opens it.

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
            The subscription, not open yet: a :class:`BlockingSubscription` for one ``partition``, else a
            :class:`BlockingMergedSubscription`.

        Raises:
            UsageError: An argument is invalid. The error names the argument.

        Example:
            >>> import liftenvelope
            >>> from liftenvelope.testing import run_liftbridge
            >>> def main(addresses):
            ...     with liftenvelope.connect_blocking(addresses) as client:
            ...         client.create_stream("numbers", "numbers")
            ...         for number in range(3):
            ...             client.publish("numbers", str(number).encode())
            ...         with client.subscribe("numbers", start=1, stop="latest") as messages:
            ...             return [message.value for message in messages]
            >>> with run_liftbridge() as cluster:
            ...     main(cluster.addresses)
            [b'1', b'2']
        """
        method: Callable[..., Subscription | MergedSubscription] = self._async.subscribe
        found = self._portal.run(
            lambda: method(
                stream,
                partition=partition,
                partitions=partitions,
                start=start,
                stop=stop,
                read_isr_replica=read_isr_replica,
                resume=resume,
                reverse=reverse,
            )
        )
        if isinstance(found, Subscription):
            return BlockingSubscription(self._portal, found)
        return BlockingMergedSubscription(self._portal, found)

    def activity(self, *, start: Start = "new", stop: Stop = None) -> BlockingActivityStream:
        """Read the events of streams and consumer groups. ``with`` opens the read.

        Servers record events only if ``activity.stream.enabled`` is set in their configuration. A server
        records an operation soon after it is done. The server's configuration sets the retention.

        Args:
            start: First event to read, as in :meth:`subscribe`: ``"new"`` after the newest event,
                ``"earliest"``, ``"latest"``, an offset such as ``event.offset + 1``, a time, or a cursor.
            stop: Last event to read: None for no end, ``"latest"`` for the newest event at the start of the
                read, an offset, or a time in the past.

        Returns:
            The activity stream, not open yet.

        Raises:
            UsageError: An argument is invalid; the message names it.

        Example:
            >>> import liftenvelope
            >>> from liftenvelope.client.activity import StreamCreated
            >>> from liftenvelope.testing import run_liftbridge
            >>> def main(addresses):
            ...     with liftenvelope.connect_blocking(addresses) as client:
            ...         with client.activity(start="earliest") as events:
            ...             client.create_stream("orders", "orders", partitions=2)
            ...             for event in events:
            ...                 if isinstance(event, StreamCreated) and event.stream == "orders":
            ...                     return event.partitions
            >>> with run_liftbridge() as cluster:
            ...     main(cluster.addresses)
            (0, 1)
        """
        return BlockingActivityStream(
            self._portal, self._portal.run(lambda: self._async.activity(start=start, stop=stop))
        )

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
    ) -> BlockingConsumer:
        """Return a member of a consumer group. The members of a group share the partitions of streams.

        Args:
            group: Name of the group, created by its first member. Any text without a comma.
            streams: Names of the streams to read, or one name. Members may read different streams.
            consumer_id: Id of the member; None for a new unique id. If two members have the same id, the
                later one removes the earlier one from the group.
            auto_commit_interval: Maximum seconds from processing a message to storing its offset. None:
                offsets are stored only by :meth:`BlockingConsumer.commit`, on revocation, and on close.
            auto_offset: Start of a partition for which the group has no cursor: ``"new"`` for messages
                published from then on, ``"earliest"`` for the oldest message, ``"latest"`` for the newest
                existing message, ``"error"`` to raise :class:`NoCursorError`.
            on_assigned: Called with the list of newly assigned (stream, partition) before the consumer reads
                them: the place for :meth:`BlockingConsumer.seek`. It runs in the client's own thread, and
                can use what does not wait: seek, pause, resume, position.
            on_revoked: Called with the list of revoked (stream, partition) after their readers have stopped,
                and before their processed offsets are stored for the last time.
            resume: True to resume paused partitions. False: the consumer reads a paused partition once a
                publish or another client resumes it.

        Returns:
            The consumer, for use with ``with``: entering it joins the group.

        Raises:
            UsageError: An argument is invalid; the message names it.
        """
        return BlockingConsumer(
            self._portal,
            self._portal.run(
                lambda: self._async.consumer(
                    group,
                    streams,
                    consumer_id=consumer_id,
                    auto_commit_interval=auto_commit_interval,
                    auto_offset=auto_offset,
                    on_assigned=on_assigned,
                    on_revoked=on_revoked,
                    resume=resume,
                )
            ),
        )


def connect_blocking(
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
    max_header_bytes: int = 64 * 1024,
    max_brokers: int = 1000,
    max_partitions: int = 100000,
    prefetch_bytes: int = 8 * 1024 * 1024,
    prefetch_messages: int | None = None,
    broker_selection: BrokerSelection = "random",
    address_map: Mapping[str, str] | None = None,
    on_event: EventHandler | None = None,
) -> BlockingClient:
    """Connect to a Liftbridge cluster. Close the client in the end: ``with`` does it.

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
            sequence of :class:`BrokerInfo` to one of these.
        address_map: Mapping from an advertised address to the address to connect to, for networks in which
            the advertised address is not reachable.
        on_event: Called with every :data:`ClientEvent`, in the client's own thread: it can't call the
            client. By default, events that need attention are issued as Python warnings
            (:class:`LiftEnvelopeWarning`).

    Returns:
        The client, connected.

    Raises:
        UsageError: An argument makes no sense; it is named.
        TransportError: No broker could be reached.
        CallTimeoutError: None answered in time.

    Example:
        >>> import liftenvelope
        >>> from liftenvelope.testing import run_liftbridge
        >>> def main(addresses):
        ...     with liftenvelope.connect_blocking(addresses) as client:
        ...         client.create_stream("greetings", "greetings")
        ...         ack = client.publish("greetings", b"hello")
        ...         with client.subscribe("greetings", start="earliest") as messages:
        ...             for message in messages:
        ...                 return ack.offset, message.value
        >>> with run_liftbridge() as cluster:
        ...     main(cluster.addresses)
        (0, b'hello')
    """
    return open_client(
        BlockingClient,
        lambda: connect(
            addresses,
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
            max_header_bytes=max_header_bytes,
            max_brokers=max_brokers,
            max_partitions=max_partitions,
            prefetch_bytes=prefetch_bytes,
            prefetch_messages=prefetch_messages,
            broker_selection=broker_selection,
            address_map=address_map,
            on_event=on_event,
        ),
    )
