"""Made of client/publishing.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import Blocking
from liftenvelope.envelope import AckPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Literal

    from typing_extensions import Buffer

    from liftenvelope.client.client import Client
    from liftenvelope.client.publish_many import Item
    from liftenvelope.client.publish_summary import PublishSummary
    from liftenvelope.envelope import Ack
    from liftenvelope.partition import PartitionChoice, Partitioner

__all__ = ["BlockingPublish"]


class BlockingPublish(Blocking):
    """Part of a client: publishes on the streams to the brokers, or by unary calls.

    Attributes:
        streams: Publish streams with the messages in flight.
    """

    _async: Client

    def publish(
        self,
        stream: str,
        value: Buffer,
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
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
            ack_inbox: A NATS subject of your own that gets the ack too.
            correlation_id: Id that the ack repeats. Default: a new id.
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
                request is larger than the server accepts (4 MiB).
            EnvelopeTooLargeError: A header name is so long that the server would crash on it.
            PermissionDeniedError: The server does not let this client publish to the stream. If ``sent`` of
                the error is true, the message may be stored.
            PublishError: The server did not store the message for another reason.
            AckTimeoutError: No ack came in time. If ``sent`` of the error is true, the message may be stored.
            CallTimeoutError: No broker returned the partitions of the stream in time. Nothing was sent.
            TransportError: The broker was lost before the ack came. If ``sent`` of the error is true, the
                message may be stored.
            UsageError: An argument is invalid. Nothing was sent.

        Example::

            ack = client.publish("orders", b"one tea", key=b"customer-8", headers={"shop": b"7"})
        """
        return self._portal.call(
            self._async.publish(
                stream,
                value,
                key=key,
                headers=headers,
                partition=partition,
                partitioner=partitioner,
                ack_policy=ack_policy,
                ack_inbox=ack_inbox,
                correlation_id=correlation_id,
                expected_offset=expected_offset,
                timeout=timeout,
                retry_unacked=retry_unacked,
            )
        )

    def publish_async(
        self,
        stream: str,
        value: Buffer,
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
        ack_inbox: str | None = None,
        correlation_id: str | None = None,
        expected_offset: int = -1,
        timeout: float | None = None,
        retry_unacked: bool = False,
        max_outstanding: int = 10000,
    ) -> concurrent.futures.Future[Ack | None]:
        """Publish one message without waiting for its ack.

        The call applies backpressure: it waits while ``max_outstanding`` messages have no outcome, or while
        the transport is behind. Messages for one partition are stored in the order of the calls.

        Args:
            stream: Name of the stream. All arguments but ``max_outstanding`` are as in :meth:`publish`.
            value: Payload, any bytes-like.
            key: Key, any bytes-like.
            headers: Names to bytes-like values.
            partition: Number of the partition.
            partitioner: Choice of the partition.
            ack_policy: When the server acks.
            ack_inbox: A NATS subject of your own that gets the ack too.
            correlation_id: Id that the ack repeats.
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
            acks = [future.result() for future in futures]
        """
        return self._portal.future(
            lambda: self._async.publish_async(
                stream,
                value,
                key=key,
                headers=headers,
                partition=partition,
                partitioner=partitioner,
                ack_policy=ack_policy,
                ack_inbox=ack_inbox,
                correlation_id=correlation_id,
                expected_offset=expected_offset,
                timeout=timeout,
                retry_unacked=retry_unacked,
                max_outstanding=max_outstanding,
            )
        )

    def publish_many(
        self,
        stream: str,
        messages: Iterable[Item],
        *,
        max_in_flight: int = 1000,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
        timeout: float | None = None,
        retry_unacked: bool = False,
        on_error: Literal["raise", "collect"] = "raise",
    ) -> PublishSummary:
        """Publish what an iterable gives, many in flight, in bounded memory; wait for the acks.

        Args:
            stream: Name of the stream.
            messages: An iterable, which is asked in the thread of the caller, of values, of ``(key,
                value)``, of :class:`OutgoingMessage`, or of :class:`Message` (its value, key and headers).
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
            What became of them. :meth:`publish_acks` hands out the acks. An error of the iterable or the
            partitioner is raised when every message taken has an outcome.

        Raises:
            UsageError: An argument is invalid. The error names the argument.

        Example::

            summary = client.publish_many("orders", (b"order %d" % i for i in range(100_000)))
        """
        return self._portal.feed(
            messages,
            lambda feed: self._async.publish_many(
                stream,
                feed,
                max_in_flight=max_in_flight,
                partition=partition,
                partitioner=partitioner,
                ack_policy=ack_policy,
                timeout=timeout,
                retry_unacked=retry_unacked,
                on_error=on_error,
            ),
        )

    def publish_acks(
        self,
        stream: str,
        messages: Iterable[Item],
        *,
        max_in_flight: int = 1000,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
        timeout: float | None = None,
        retry_unacked: bool = False,
        on_error: Literal["raise", "collect"] = "raise",
    ) -> Iterator[tuple[int, Ack]]:
        """As :meth:`publish_many`, but hand out the acks, in the order of the input.

        A slow loop slows the sending. Leaving it early leaves the rest unsent.

        Args and Raises: as :meth:`publish_many` has them.

        Yields:
            The index of a message, and its ack.
        """
        return self._portal.feed_and_iterate(
            messages,
            lambda feed: self._async.publish_many(
                stream,
                feed,
                max_in_flight=max_in_flight,
                partition=partition,
                partitioner=partitioner,
                ack_policy=ack_policy,
                timeout=timeout,
                retry_unacked=retry_unacked,
                on_error=on_error,
            ),
        )

    def publish_to_subject(
        self,
        subject: str,
        value: Buffer,
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
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
            ack_inbox: A NATS subject of your own that gets the ack too.
            correlation_id: Id that the ack repeats. Default: a new id.
            timeout: Seconds to wait for the ack. Default: the client's ``ack_wait``.

        Returns:
            The ack; None for the ack policy NONE.

        Raises:
            PublishError: The ack says that the message was not stored. Subclasses name the reason.
            MessageTooLargeError: The message is larger than the server replicates or accepts.
            PermissionDeniedError: The server does not let this client publish on the subject.
            AckTimeoutError: No ack came in time. If ``sent`` of the error is true, the message may be stored.
            TransportError: The broker was lost. If ``sent`` of the error is true, the message may be stored.
            UsageError: An argument is invalid. Nothing was sent.
        """
        return self._portal.call(
            self._async.publish_to_subject(
                subject,
                value,
                key=key,
                headers=headers,
                ack_policy=ack_policy,
                ack_inbox=ack_inbox,
                correlation_id=correlation_id,
                timeout=timeout,
            )
        )

    def flush(self) -> None:
        """Wait until every message published before this call has an outcome: its ack, or an error.

        The wait takes no longer than the timeout of the last message.
        """
        self._portal.call(self._async.flush())
