"""Types of client/blocking.py. Made by protos/generate_blocking.py. Don't edit."""

import concurrent.futures
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, overload

import pyarrow as pa
from typing_extensions import Buffer

from liftenvelope.client._consuming.checkpointer import _T
from liftenvelope.client._consuming.options import PartitionsCallback
from liftenvelope.client._events import EventHandler
from liftenvelope.client._health import HealthStatus
from liftenvelope.client._publish_many import Item
from liftenvelope.client._publish_summary import PublishSummary
from liftenvelope.client.activity import Activity, ActivityEvent
from liftenvelope.client.binding import Blocking, BlockingReader
from liftenvelope.client.metadata import Metadata, PartitionInfo
from liftenvelope.client.options import BrokerSelection
from liftenvelope.client.positions import Start, Stop
from liftenvelope.envelope import Ack, AckPolicy, Message
from liftenvelope.partition import PartitionChoice, Partitioner
from liftenvelope.payload import PayloadChoice

__all__ = [
    "BlockingActivityStream",
    "BlockingCheckpointer",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingMergedSubscription",
    "BlockingSubscription",
    "connect_blocking",
]

class BlockingCheckpointer(Blocking):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def start(self, partition: int, default: _T | str = "earliest") -> int | _T | str:
        """Return the offset after the cursor, to pass as ``start`` of :meth:`BlockingClient.subscribe`.

        Args:
            partition: Number of the partition.
            default: Value to return if there is no cursor. Default: ``"earliest"``.

        Raises:
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
    @overload
    def processed(self, message: Message, /) -> None: ...
    @overload
    def processed(self, partition: int, offset: int, /) -> None: ...
    @overload
    def delivered(self, message: Message, /) -> None: ...
    @overload
    def delivered(self, partition: int, offset: int, /) -> None: ...
    def flush(self, *, timeout: float | None = None) -> None:
        """Store the processed offsets now. Offsets that failed in the background are retried.

        Args:
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            LiftEnvelopeError: An offset could not be stored, as for :meth:`BlockingClient.set_cursor`.
        """
    def close(self) -> None:
        """Store the processed offsets and stop. Closing twice has no effect.

        Raises:
            LiftEnvelopeError: An offset could not be stored. The checkpointer is closed anyway.
        """
    def lag(self, partition: int, *, timeout: float | None = None) -> int:
        """Return the reader's lag in offsets: the partition's newest offset minus the last processed one.

        If this checkpointer has no processed offset, the stored cursor is used. Without a stored cursor,
        every message counts.

        Args:
            partition: Number of the partition.
            timeout: Seconds for each call. Default: the client's ``timeout``.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: The stream has no such partition.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
    def reset(self, partition: int, *, timeout: float | None = None) -> None:
        """Delete the cursor and forget the processed offsets of a partition.

        Args:
            partition: Number of the partition.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            LiftEnvelopeError: As for :meth:`BlockingClient.reset_cursor`.
        """

class BlockingSubscription(BlockingReader):
    @property
    def finished(self) -> bool:
        """True if the read has ended or was closed, and every message was handed out."""
    @property
    def buffered(self) -> int:
        """Number of messages received and not yet handed out."""
    def open(self) -> Self:
        """Subscribe; ``with`` does it.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            PartitionPausedError: The partition is paused, and ``resume`` is false.
            ReadonlyPartitionError: The partition is read-only, and no message is left to read.
            FencedError: Another member of the consumer group has the partition.
            NotLeaderError: The partition had no leader in all that time.
            CallTimeoutError: The server did not answer in time.
            TransportError: No broker could be reached.
        """
    def close(self) -> None:
        """End the subscription and drop messages that were not handed out. Closing twice is fine."""
    def next(self, timeout: float | None = None) -> Message | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait for the message; None, the default, for no limit.

        Returns:
            The message. None if no message came in time, or the read has ended: see :attr:`finished`.

        Raises:
            LiftEnvelopeError: Any error that iteration raises.
        """
    def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> Iterator[list[Message]]:
        """Iterate over lists of messages.

        Args:
            max_messages: Maximum messages per list. Default 1,000.
            max_wait: Seconds to wait for more messages after the first one of a list. Default 0.1.

        Yields:
            Lists of at least one message. The last list may be shorter.

        Raises:
            UsageError: An argument is out of range.
            LiftEnvelopeError: Any error that iteration raises, after all messages that came before the error.
        """
    def arrow_batches(
        self,
        max_rows: int = 65536,
        *,
        max_wait: float = 1.0,
        max_bytes: int = 67108864,
        payload: PayloadChoice = None,
        on_bad: Literal["fail", "column"] = "fail",
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over Arrow record batches of messages. Needs the ``[arrow]`` extra.

        Args:
            max_rows: Maximum rows per batch. Default 65,536.
            max_wait: Seconds to wait for more messages after the first one of a batch. Default 1.
            max_bytes: Maximum bytes of encoded messages per batch; a larger message is a batch of its own.
                Default 64 MiB.
            payload: Format of the values, which replaces the column ``value`` by typed columns, as for
                :func:`liftenvelope.bulk.read`. A schema that is not given is that of the first batch. A
                message of ``"arrow"`` becomes a batch of its own. Needs the ``[payload]`` extra.
            on_bad: ``"fail"`` (default) or ``"column"``, as for :func:`liftenvelope.bulk.read`.

        Yields:
            Batches of at least one row, with the columns of :func:`liftenvelope.arrow.stored_batch`.

        Raises:
            UsageError: An argument is out of range, or a field of the payload has the name of a column.
            BadPayloadError: A message does not fit the payload. The rows of the messages before it were
                yielded, and the next read begins with it.
            MissingExtraError: pyarrow is not installed.
            LiftEnvelopeError: Any error that iteration raises, after all messages that came before the error.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    @property
    def stream(self) -> str:
        """Name of the stream."""
    @property
    def partition(self) -> int:
        """Number of the partition."""
    @property
    def position(self) -> int | None:
        """Offset of the next message, or a later one; None while it is unknown.

        With ``reverse``: of the next message, or an earlier one; None also once no message is left.
        A subscription that starts at this offset continues where this one is, also after the end of the
        ``with`` block.
        """
    @property
    def positions(self) -> dict[tuple[str, int], int | None]:
        """:attr:`position` by stream and partition."""

class BlockingMergedSubscription(BlockingReader):
    @property
    def finished(self) -> bool:
        """True if the read has ended or was closed, and every message was handed out."""
    @property
    def buffered(self) -> int:
        """Number of messages received and not yet handed out."""
    def open(self) -> Self:
        """Subscribe to every partition; ``with`` does it.

        Raises:
            LiftEnvelopeError: Any error of :meth:`BlockingSubscription.open`.
        """
    def close(self) -> None:
        """End the subscriptions and drop messages that were not handed out. Closing twice is fine."""
    def next(self, timeout: float | None = None) -> Message | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait for the message; None, the default, for no limit.

        Returns:
            The message. None if no message came in time, or the read has ended: see :attr:`finished`.

        Raises:
            LiftEnvelopeError: Any error that iteration raises.
        """
    def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> Iterator[list[Message]]:
        """Iterate over lists of messages.

        Args:
            max_messages: Maximum messages per list. Default 1,000.
            max_wait: Seconds to wait for more messages after the first one of a list. Default 0.1.

        Yields:
            Lists of at least one message. The last list may be shorter.

        Raises:
            UsageError: An argument is out of range.
            LiftEnvelopeError: Any error that iteration raises, after all messages that came before the error.
        """
    def arrow_batches(
        self,
        max_rows: int = 65536,
        *,
        max_wait: float = 1.0,
        max_bytes: int = 67108864,
        payload: PayloadChoice = None,
        on_bad: Literal["fail", "column"] = "fail",
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over Arrow record batches of messages. Needs the ``[arrow]`` extra.

        Args:
            max_rows: Maximum rows per batch. Default 65,536.
            max_wait: Seconds to wait for more messages after the first one of a batch. Default 1.
            max_bytes: Maximum bytes of encoded messages per batch; a larger message is a batch of its own.
                Default 64 MiB.
            payload: Format of the values, which replaces the column ``value`` by typed columns, as for
                :func:`liftenvelope.bulk.read`. A schema that is not given is that of the first batch. A
                message of ``"arrow"`` becomes a batch of its own. Needs the ``[payload]`` extra.
            on_bad: ``"fail"`` (default) or ``"column"``, as for :func:`liftenvelope.bulk.read`.

        Yields:
            Batches of at least one row, with the columns of :func:`liftenvelope.arrow.stored_batch`.

        Raises:
            UsageError: An argument is out of range, or a field of the payload has the name of a column.
            BadPayloadError: A message does not fit the payload. The rows of the messages before it were
                yielded, and the next read begins with it.
            MissingExtraError: pyarrow is not installed.
            LiftEnvelopeError: Any error that iteration raises, after all messages that came before the error.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    @property
    def stream(self) -> str:
        """Name of the stream."""
    @property
    def positions(self) -> dict[tuple[str, int], int | None]:
        """Offset of the next message, or a later one, by stream and partition; None while it is unknown.

        Subscriptions that start at these offsets continue where this one is, also after the end of the
        ``with`` block.
        """

class BlockingActivityStream(Blocking):
    @property
    def position(self) -> int | None:
        """Lower bound of the next event's offset; None until the start is known."""
    @property
    def finished(self) -> bool:
        """True once all events were returned: the read reached its end or was closed."""
    def open(self) -> Self:
        """Start the read; ``with`` does it.

        Raises:
            NoSuchStreamError: The cluster keeps no activity stream: ``activity.stream.enabled`` is not set
                in the configuration of its servers.
            NotLeaderError: The activity stream had no leader until the timeout.
            CallTimeoutError: The server did not answer in time.
            TransportError: No broker could be reached.
        """
    def close(self) -> None:
        """End the read. Closing twice has no effect."""
    def next(self, timeout: float | None = None) -> ActivityEvent | None:
        """Return the next event.

        Args:
            timeout: Seconds to wait for an event; None waits without limit.

        Returns:
            The event; None on timeout, or if there are no more events (:attr:`finished` is True then).

        Raises:
            LiftEnvelopeError: As iteration does.
        """
    def __iter__(self) -> Self: ...
    def __next__(self) -> ActivityEvent: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class BlockingConsumer(Blocking):
    @property
    def group(self) -> str:
        """Name of the group."""
    @property
    def consumer_id(self) -> str:
        """Id of this member."""
    @property
    def assignment(self) -> frozenset[tuple[str, int]]:
        """Partitions that this member reads now."""
    @property
    def buffered(self) -> int:
        """Number of messages of these partitions that were received and not handed out."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def open(self) -> Self:
        """Join the group and start reading the assigned partitions; ``with`` does it.

        Raises:
            NoSuchStreamError: A stream does not exist.
            CallTimeoutError: The group could not be joined within the client's ``timeout``.
            TransportError: No broker could be reached, or the consumer was closed meanwhile.
        """
    def close(self) -> None:
        """Stop reading, call ``on_revoked``, store the processed offsets, and leave the group.

        The last message handed out counts as processed only if it was committed. ``close`` takes at most the
        default timeout of a call, plus the time of ``on_revoked``. Closing twice has no effect.

        Raises:
            LiftEnvelopeError: The processed offsets could not be stored. The consumer is closed anyway.
        """
    def __iter__(self) -> Self:
        """Iterate over the messages. One counts as processed when the next one is requested."""
    def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> Iterator[list[Message]]:
        """Iterate over lists of messages. A list counts as processed when the next one is requested.

        Args:
            max_messages: Maximum number of messages in a list.
            max_wait: Seconds to wait for more messages after the first one of a list.

        Yields:
            Lists of at least one message from any assigned partition, in order within each partition.

        Raises:
            UsageError: An argument is invalid, or another task waits for messages.
            LiftEnvelopeError: Any error that iterating would raise.
        """
    @property
    def epoch(self) -> int:
        """Group epoch last seen by this member. The epoch changes when members join or leave."""
    def position(self, stream: str, partition: int) -> int | None:
        """Return a lower bound of the next message's offset; None if the start is not known yet.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
    def lag(self, *, timeout: float | None = None) -> dict[tuple[str, int], int]:
        """Return the lag of each assigned partition in offsets.

        Args:
            timeout: Seconds for each call. Default: the client's ``timeout``.

        Returns:
            Newest offset minus the last processed offset, by stream and partition.

        Raises:
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
    def __next__(self) -> Message: ...
    def commit(self, message: Message | None = None, *, timeout: float | None = None) -> None:
        """Store the processed offsets now.

        Args:
            message: Mark this message and all earlier ones of its partition as processed, and store that
                partition's offset. None: mark every returned message as processed, and store all partitions.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            FencedError: The message's partition belongs to another member now. That member gets the message
                again.
            NotMemberError: The consumer expired after missed heartbeats, and is rejoining the group. Go on
                reading: messages that were not committed are delivered again.
            LiftEnvelopeError: An offset could not be stored, as for :meth:`BlockingClient.set_cursor`.
        """
    def pause(self, stream: str, partition: int) -> None:
        """Stop returning messages of a partition until :meth:`resume`. The partition stays assigned.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
    def resume(self, stream: str, partition: int) -> None:
        """Return messages of a paused partition again.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
    def seek(self, stream: str, partition: int, offset: int) -> None:
        """Continue a partition at another offset, forward or backward.

        The group's cursor moves with the first checkpoint after a message from the new position.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            offset: Offset of the next message to return. If there is no such message, the next later one is
                returned.

        Raises:
            FencedError: The partition is not assigned to this member.
            UsageError: The offset is negative, or 2**63 or larger.
        """

class BlockingClient(Blocking):
    def close(self) -> None:
        """Close every subscription, publish and consumer of this client, its connections, and its thread.

        Closing twice has no effect. Calls of other threads that are under way end with ``TransportError``.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def publish_many(
        self,
        stream: str,
        messages: Iterable[Item],
        *,
        max_in_flight: int = 1000,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = ...,
        timeout: float | None = None,
        retry_unacked: bool = False,
        on_error: Literal["raise", "collect"] = "raise",
    ) -> PublishSummary:
        """Publish what an iterable gives, many in flight, in bounded memory; wait for the acks.

        Args:
            stream: Name of the stream.
            messages: An iterable of values, of ``(key, value)``, of :class:`OutgoingMessage`, or of
                :class:`Message` (its value, key and headers). It is iterated over in the caller's thread.
            max_in_flight: Maximum messages without an ack. Default 1,000.
            partition: Number of the partition for messages that name none.
            partitioner: Choice of the partition for messages without one, as in :meth:`publish`.
            ack_policy: When the server acks: LEADER (default) or ALL. NONE has no acks to wait for.
            timeout: Seconds for each message, from when it is taken. Default: the client's ``ack_wait``.
            retry_unacked: Whether to send messages without an ack again if their broker is lost. Such
                messages may be stored twice, and after later ones. Default False: such messages fail, because
                their outcome is unknown.
            on_error: ``"raise"``, the default: take no more messages after a failure. When every message
                taken has an outcome, raise the error of the first failure, with the ``summary`` in it.
                ``"collect"``: continue, and return the failures in the summary.

        Returns:
            The summary of the outcomes; :meth:`publish_acks` returns the acks. An error of the iterable or
            the partitioner is raised when every message taken has an outcome.

        Raises:
            UsageError: An argument is invalid. The error names the argument.

        Example::

            summary = client.publish_many("orders", (b"order %d" % i for i in range(100_000)))
        """
    def publish_acks(
        self,
        stream: str,
        messages: Iterable[Item],
        *,
        max_in_flight: int = 1000,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = ...,
        timeout: float | None = None,
        retry_unacked: bool = False,
        on_error: Literal["raise", "collect"] = "raise",
    ) -> Iterator[tuple[int, Ack]]:
        """Publish as :meth:`publish_many` does, and iterate over the acks in the order of the input.

        A slow loop slows the sending. Leaving the loop early leaves the rest unsent. Arguments and errors are
        those of :meth:`publish_many`.

        Yields:
            The index of a message, and its ack.
        """
    @property
    def reconnects(self) -> int:
        """Number of connections to brokers that were made in place of one that was lost."""
    @property
    def publish_async_pending(self) -> int:
        """Number of messages of :meth:`publish_async` and :meth:`publish_many` without an outcome."""
    def publish(
        self,
        stream: str,
        value: Buffer,
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = ...,
        ack_inbox: str | None = None,
        correlation_id: str | None = None,
        expected_offset: int = -1,
        timeout: float | None = None,
        retry_unacked: bool = False,
    ) -> Ack | None:
        """Publish one message and wait for its ack.

        Args:
            stream: Name of the stream. A paused partition is woken.
            value: Payload, any bytes-like.
            key: Key, any bytes-like.
            headers: Names to bytes-like values. ``subject`` and ``reply`` are reserved for the server.
            partition: Number of the partition; takes precedence over ``partitioner``.
            partitioner: ``"key"``, the default, for the CRC-32 (IEEE) of the key modulo the partitions;
                ``"round_robin"`` for one partition after the other, counted by stream for this client; or a
                function ``(key, value, partitions) -> partition``.
            ack_policy: When the server acks: LEADER (default), ALL, or NONE for never.
            ack_inbox: A NATS subject of your own that gets the ack too. Use an inbox that no other publisher
                uses: Liftbridge answers with the first ack on it. This client's publishes with one ack inbox
                run one after the other.
            correlation_id: Id that the ack repeats. Default: a new id. It must differ from those of the
                messages in flight. If an earlier message of that id got no ack, this one takes a call of its
                own, so that it never gets the late ack. If both have the same ``ack_inbox``, it raises
                UsageError instead.
            expected_offset: Offset that the message must get, on a stream with optimistic concurrency;
                -1, the default, for any.
            timeout: Seconds until the outcome must be known. Default: the client's ``ack_wait``.
            retry_unacked: Whether to send the message again if the broker is lost before the ack came. The
                message may then be stored twice. Default False. Has no effect with NONE or an ``ack_inbox``.

        Returns:
            The ack; None for the ack policy NONE.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            ReadonlyPartitionError: The partition is read-only.
            IncorrectOffsetError: The message would have got an offset other than the expected one.
            MessageTooLargeError: The message is larger than the server replicates (1 MiB by default), or its
                request is larger than ``max_request_bytes`` of the client (4 MiB).
            EnvelopeTooLargeError: A header name is so long that the server would crash on it.
            PermissionDeniedError: The server does not let this client publish to the stream. If ``sent`` of
                the error is true, the message may be stored.
            PublishError: The server did not store the message for another reason.
            AckTimeoutError: No ack came in time, or another message's ack came first on the ``ack_inbox``. If
                ``sent`` of the error is true, the message may be stored.
            CallTimeoutError: No broker returned the partitions of the stream in time. Nothing was sent.
            TransportError: The broker was lost before the ack came. If ``sent`` of the error is true, the
                message may be stored.
            ServerProtocolError: The server's answer could not be read. The message may be stored.
            UsageError: An argument is invalid. Nothing was sent.

        Example::

            ack = client.publish("orders", b"one tea", key=b"customer-8", headers={"shop": b"7"})
        """
    def publish_async(
        self,
        stream: str,
        value: Buffer,
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = ...,
        ack_inbox: str | None = None,
        correlation_id: str | None = None,
        expected_offset: int = -1,
        timeout: float | None = None,
        retry_unacked: bool = False,
        max_outstanding: int = 10000,
    ) -> concurrent.futures.Future[Ack | None]:
        """Publish one message without waiting for its ack.

        The call applies backpressure: it waits while ``max_outstanding`` messages have no outcome, or while
        the transport is behind. Messages for one partition are stored in the order of the calls. Exceptions:
        messages that are sent again, and messages with the ack policy NONE, an ``ack_inbox``, or the
        ``correlation_id`` of an earlier message without an ack. Each of those takes a call of its own, so
        they have no order among themselves and relative to others.

        Args:
            stream: Name of the stream. All arguments but ``max_outstanding`` are as in :meth:`publish`.
            value: Payload, any bytes-like.
            key: Key, any bytes-like.
            headers: Names to bytes-like values.
            partition: Number of the partition.
            partitioner: Choice of the partition.
            ack_policy: When the server acks.
            ack_inbox: A NATS subject of your own that gets the ack too. Use an inbox that no other publisher
                uses: Liftbridge answers with the first ack on it. This client's publishes with one ack inbox
                run one after the other.
            correlation_id: Id that the ack repeats. If an earlier message of that id got no ack, this one
                takes a call of its own. If both have the same ``ack_inbox``, the future raises UsageError.
            expected_offset: Offset that the message must get.
            timeout: Seconds until the outcome must be known, from this call on. Default: the client's
                ``ack_wait``.
            retry_unacked: Whether the message may be sent again, and so perhaps stored twice.
            max_outstanding: Maximum messages of this client without an outcome. Default 10,000.

        Returns:
            A future of the ack, or of None for the ack policy NONE. The future raises the errors of
            :meth:`publish`, at the timeout at the latest. Cancelling the future gives the message up; a
            message that was sent may be stored all the same.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            PermissionDeniedError: The server does not let this client publish to the stream.
            AckTimeoutError: The backpressure did not end in time. Nothing was sent.
            UsageError: An argument is invalid. Nothing was sent.

        Example::

            futures = [client.publish_async("orders", order) for order in orders]
            client.flush()
            acks = [future.result() for future in futures]
        """
    def publish_to_subject(
        self,
        subject: str,
        value: Buffer,
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        ack_policy: AckPolicy | int = ...,
        ack_inbox: str | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
    ) -> Ack | None:
        """Publish on a NATS subject, for all streams that record the subject, and wait for the first ack.

        The server makes no checks: if no stream records the subject, or the partition is paused or read-only,
        no ack comes. On a stream with optimistic concurrency only the first message is stored.

        Args:
            subject: The subject, without wildcards. Partition i > 0 of a stream records ``subject.i``.
            value: Payload, any bytes-like.
            key: Key, any bytes-like.
            headers: Names to bytes-like values.
            ack_policy: When the server acks: LEADER (default), ALL, or NONE for never.
            ack_inbox: A NATS subject of your own that gets the ack too. Use an inbox that no other publisher
                uses: Liftbridge answers with the first ack on it. This client's publishes with one ack inbox
                run one after the other.
            correlation_id: Id that the ack repeats. Default: a new id. It must differ from those of the
                messages in flight, and of earlier messages with the same ``ack_inbox`` that got no ack.
            timeout: Seconds to wait for the ack. Default: the client's ``ack_wait``.

        Returns:
            The ack; None for the ack policy NONE.

        Raises:
            PublishError: The ack says that the message was not stored. Subclasses name the reason.
            MessageTooLargeError: The message is larger than the server replicates or accepts.
            PermissionDeniedError: The server does not let this client publish on the subject.
            AckTimeoutError: No ack came in time, or another message's ack came first on the ``ack_inbox``. If
                ``sent`` of the error is true, the message may be stored.
            TransportError: The broker was lost. If ``sent`` of the error is true, the message may be stored.
            ServerProtocolError: The server's answer could not be read. The message may be stored.
            UsageError: An argument is invalid. Nothing was sent.
        """
    def flush(self) -> None:
        """Wait until every message published before this call has an outcome: its ack, or an error.

        The wait takes no longer than the timeout of the last message.
        """
    def create_stream(
        self,
        subject: str,
        name: str,
        *,
        group: str = "",
        partitions: int = 1,
        replication_factor: int = 1,
        retention_max_bytes: int | None = None,
        retention_max_messages: int | None = None,
        retention_max_age: float | None = None,
        cleaner_interval: float | None = None,
        segment_max_bytes: int | None = None,
        segment_max_age: float | None = None,
        compact_enabled: bool | None = None,
        compact_max_goroutines: int | None = None,
        auto_pause_time: float | None = None,
        auto_pause_disable_if_subscribers: bool | None = None,
        min_isr: int | None = None,
        optimistic_concurrency: bool | None = None,
        encryption: bool | None = None,
        timeout: float | None = None,
    ) -> None:
        """Create a stream: a durable log that records the messages on a NATS subject.

        A setting of None keeps the server's configuration; 0 means no limit. Names and settings that would
        crash a Liftbridge server, some of them permanently, are refused here.

        Args:
            subject: NATS subject to record. Partition 0 records the subject itself, partition i > 0
                ``subject.i``. Other streams whose subjects cover these record the same messages.
            name: Name of the stream.
            group: NATS queue group of the partitions; empty, the default, for none. Each message goes to one
                of the streams with the same subject and group.
            partitions: Number of partitions. Default 1.
            replication_factor: Number of brokers that hold each partition. Default 1; ``MAX_REPLICATION`` for
                all.
            retention_max_bytes: Bytes that a partition keeps. The oldest segments are removed first.
            retention_max_messages: Messages that a partition keeps.
            retention_max_age: Seconds that a message is kept.
            cleaner_interval: Seconds between runs of the cleaner, which removes segments.
            segment_max_bytes: Bytes after which a segment of the log is full. Retention removes whole
                segments.
            segment_max_age: Seconds after which a segment is full.
            compact_enabled: Keep only the last message of each key, in full segments.
            compact_max_goroutines: Maximum workers for compaction.
            auto_pause_time: Seconds without a message after which a partition is paused.
            auto_pause_disable_if_subscribers: Do not pause a partition that has subscribers.
            min_isr: Number of replicas that must be in sync for a message with ``AckPolicy.ALL``.
            optimistic_concurrency: Refuse a message if its expected offset is not the next offset.
            encryption: Encrypt values on disk. The server must have a key.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            StreamExistsError: A stream with this name exists already.
            UsageError: An argument is invalid or would break the server. The error names the argument.
            ServerError: The server refused the request, with code INVALID_ARGUMENT for a bad subject or
                replication factor.
            CallTimeoutError: No answer came in time. The stream may exist now or soon.
            TransportError: No broker could be reached.

        Example:
            >>> import liftenvelope
            >>> from liftenvelope.testing import run_liftbridge
            >>> def main(addresses):
            ...     with liftenvelope.connect_blocking(addresses) as client:
            ...         client.create_stream("orders", "orders-stream", partitions=3)
            ...         return client.fetch_metadata().partition_count("orders-stream")
            >>> with run_liftbridge() as cluster:
            ...     main(cluster.addresses)
            3
        """
    def delete_stream(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a stream and all its messages.

        Args:
            name: Name of the stream.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            NoSuchStreamError: The stream does not exist.
            CallTimeoutError: No answer came in time. The stream may be deleted now or soon.
            TransportError: No broker could be reached.
        """
    def pause_stream(
        self,
        name: str,
        *,
        partitions: Iterable[int] | None = None,
        resume_all: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Pause partitions: they close their files and their NATS subscriptions until they are woken.

        A publish through this client wakes a partition, and so does a subscription with ``resume=True``.
        Messages that are published directly on NATS in the meantime are lost.

        Args:
            name: Name of the stream.
            partitions: Numbers of the partitions; None, the default, for all.
            resume_all: Whether a publish to any partition of the stream wakes all paused ones. Default False.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            CallTimeoutError: No answer came in time. The partitions may be paused now or soon.
            TransportError: No broker could be reached.
        """
    def set_stream_readonly(
        self,
        name: str,
        *,
        partitions: Iterable[int] | None = None,
        readonly: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Make partitions read-only, or writable again. A read-only partition refuses messages.

        Subscriptions to a read-only partition end at its last message.

        Args:
            name: Name of the stream.
            partitions: Numbers of the partitions; None, the default, for all.
            readonly: True, the default, for read-only; False for writable.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            CallTimeoutError: No answer came in time. The change may take effect now or soon.
            TransportError: No broker could be reached.
        """
    def fetch_metadata(
        self,
        *,
        streams: Sequence[str] | None = None,
        groups: Sequence[str] = ...,
        timeout: float | None = None,
    ) -> Metadata:
        """Fetch the metadata of brokers, streams and consumer groups from the cluster.

        The call never answers from a cache. If a broker does not know everything that is requested, as in a
        new cluster, the call asks other brokers too and merges their answers.

        Args:
            streams: Names of streams; None, the default, for all.
            groups: Names of consumer groups. Servers list no groups that are not named.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Returns:
            The metadata, without streams and groups that do not exist.

        Raises:
            CallTimeoutError: No broker answered in time.
            TransportError: No broker could be reached.
        """
    def fetch_partition_metadata(
        self, stream: str, partition: int = 0, *, wait_for_leader: bool = True, timeout: float | None = None
    ) -> PartitionInfo:
        """Ask the leader of a partition for the partition's state.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            wait_for_leader: True (default) to wait while the partition has no leader. False to look for it
                once more and then raise NotLeaderError, such as for a partition that may be paused.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Returns:
            The state of the partition, with the leader's high watermark and newest offset.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            NotLeaderError: The partition had no leader in all that time, or at all without
                ``wait_for_leader``: the partition is paused, or its brokers are down.
            CallTimeoutError: The leader did not answer in time.
            TransportError: No broker could be reached.
        """
    def check_health(
        self, *, service: str = "proto.API", timeout: float | None = None
    ) -> dict[str, HealthStatus]:
        """Check the health of every known broker, all at the same time.

        Args:
            service: Name of the gRPC service. Default: Liftbridge's API. Empty for the broker as a whole.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Returns:
            Health of each broker, by its ``host:port``.

        Raises:
            TransportError: The client is closed.
            UsageError: An argument is invalid.

        Example:
            >>> import liftenvelope
            >>> from liftenvelope.testing import run_liftbridge
            >>> def main(addresses):
            ...     with liftenvelope.connect_blocking(addresses) as client:
            ...         return list(client.check_health().values())
            >>> with run_liftbridge() as cluster:
            ...     main(cluster.addresses)
            [<HealthStatus.SERVING: 1>]
        """
    def set_cursor(
        self, cursor_id: str, stream: str, partition: int, offset: int, *, timeout: float | None = None
    ) -> None:
        """Store a reader's offset in a partition.

        By convention this is the offset of the last processed message, so a reader continues at the next
        offset. A server writes the cursors of all readers one at a time, and each is a replicated write.
        Store cursors periodically, as :meth:`checkpointer` does, rather than after each message.

        Another reader can store a smaller offset under the same id. Cursors outlive their stream. Servers
        delete cursors that were not set for a week, unless configured otherwise.

        Args:
            cursor_id: Id of the cursor: any text without a comma.
            stream: Name of the stream.
            partition: Number of the partition.
            offset: Offset to store, 0 or more. Servers do not check that such a message exists.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            UsageError: An argument is invalid, or the id or the stream's name contains a comma.
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time. The cursor may have been stored.
            TransportError: No broker could be reached.

        Example:
            >>> client.set_cursor("billing", "orders", 0, message.offset)  # doctest: +SKIP
        """
    def reset_cursor(
        self, cursor_id: str, stream: str, partition: int, *, timeout: float | None = None
    ) -> None:
        """Delete a cursor: :meth:`fetch_cursor` returns None from then on. The cursor need not exist.

        Args:
            cursor_id: Id of the cursor.
            stream: Name of the stream.
            partition: Number of the partition.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            UsageError: An argument is invalid, or the id or the stream's name contains a comma.
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
    def fetch_cursor(
        self, cursor_id: str, stream: str, partition: int, *, timeout: float | None = None
    ) -> int | None:
        """Return the offset last stored by :meth:`set_cursor`.

        Args:
            cursor_id: Id of the cursor.
            stream: Name of the stream.
            partition: Number of the partition.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Returns:
            The stored offset; None if there is no cursor.

        Raises:
            UsageError: An argument is invalid, or the id or the stream's name contains a comma.
            CursorsUnavailableError: The cluster keeps no cursors.
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
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
    def activity(self, *, start: Start | Activity = "new", stop: Stop = None) -> BlockingActivityStream:
        """Read the events of streams and consumer groups. ``with`` opens the read.

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
                them: the place for :meth:`BlockingConsumer.seek`. A function or a coroutine function.
                Functions of a blocking client run in its own thread, and may use only what does not wait:
                seek, pause, resume, position.
            on_revoked: Called with the list of revoked (stream, partition) after their readers have stopped,
                and before their processed offsets are stored for the last time.
            resume: True to resume paused partitions. False: the consumer reads a paused partition once a
                publish or another client resumes it.

        Returns:
            The consumer, for use with ``with``: entering it joins the group.

        Raises:
            UsageError: An argument is invalid; the message names it.
        """

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
    max_message_bytes: int = 4194304,
    max_request_bytes: int = 4194304,
    max_header_bytes: int = 65536,
    max_brokers: int = 1000,
    max_partitions: int = 100000,
    prefetch_bytes: int = 8388608,
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
        The client, connected.

    Raises:
        UsageError: An argument makes no sense; it is named.
        TransportError: No broker could be reached.
        CallTimeoutError: No broker answered in time.

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
