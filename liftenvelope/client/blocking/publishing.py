"""Made of client/publishing.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import BlockingCore
from liftenvelope.envelope import AckPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Literal

    from typing_extensions import Buffer

    from liftenvelope.client.publish_many import Item
    from liftenvelope.client.publish_summary import PublishSummary
    from liftenvelope.client.publishing import PublishMixin
    from liftenvelope.envelope import Ack
    from liftenvelope.partition import PartitionChoice, Partitioner

__all__ = ["BlockingPublish"]


class BlockingPublish(BlockingCore):
    """The part of the client that publishes."""

    _async: PublishMixin

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
            stream: Name of the stream. A paused one is woken.
            value: The payload, any bytes-like.
            key: Its key, any bytes-like.
            headers: Names to bytes-like values. ``subject`` and ``reply`` are the server's.
            partition: Number of the partition; it goes before ``partitioner``.
            partitioner: ``"key"``, the default, for the CRC-32 (IEEE) of the key modulo the partitions;
                ``"round_robin"`` for one partition after the other, counted by stream for this client; or a
                function ``(key, value, partitions) -> partition``.
            ack_policy: When the server acks: LEADER (default), ALL, or NONE for never.
            ack_inbox: A NATS subject of your own that gets the ack as well.
            correlation_id: What the ack repeats. Default: a new one.
            expected_offset: The offset that the message must get, on a stream with optimistic concurrency;
                -1, the default, for any.
            timeout: Seconds until the outcome must be known. Default: the client's ``ack_wait``.
            retry_unacked: Whether to send it again when the broker was lost before the ack came: it may then
                be stored twice. Default: not. With NONE or an ``ack_inbox`` it makes no difference.

        Returns:
            The ack; None for the ack policy NONE.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: It has no such partition.
            ReadonlyPartitionError: The partition takes no messages.
            IncorrectOffsetError: The message would have got another offset than the expected one.
            MessageTooLargeError: It is longer than the server replicates (1 MiB by default) or takes (4 MiB).
            EnvelopeTooLargeError: A header name is longer than what the server survives.
            PermissionDeniedError: The server does not let this client publish to the stream. If its ``sent``
                is true the message may be stored.
            PublishError: The server did not store it for another reason.
            AckTimeoutError: No ack came in time. If its ``sent`` is true the message may be stored.
            CallTimeoutError: No broker said in time which partitions the stream has. Nothing was sent.
            TransportError: The broker was lost before the ack came. If its ``sent`` is true the message may
                be stored.
            UsageError: An argument makes no sense; nothing was sent.

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

        It waits where too much is on its way: for a place among those without an ack, and for the transport.
        Messages for one partition are stored in the order of the calls.

        Args:
            stream: This and the others as in :meth:`publish`.
            value: The payload, any bytes-like.
            key: Its key.
            headers: Names to bytes-like values.
            partition: Number of the partition.
            partitioner: What chooses it.
            ack_policy: When the server acks.
            ack_inbox: A NATS subject of your own that gets the ack as well.
            correlation_id: What the ack repeats.
            expected_offset: The offset that the message must get.
            timeout: Seconds until the outcome must be known, from this call on. Default: the client's
                ``ack_wait``.
            retry_unacked: Whether it may be sent again, and so perhaps stored twice.
            max_outstanding: How many messages of this client may be without an outcome. Default 10,000.

        Returns:
            A future of the ack, or of None for the ack policy NONE. It ends with the errors of
            :meth:`publish`, at the timeout at the latest. Cancelling it gives the message up: if it was sent
            it may be stored all the same.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: It has no such partition.
            PermissionDeniedError: The server does not let this client publish to the stream.
            AckTimeoutError: No place was free in time. Nothing was sent.
            UsageError: An argument makes no sense; nothing was sent.

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
            max_in_flight: How many may be without an ack. Default 1,000.
            partition: Number of the partition, where a message names none.
            partitioner: What chooses it otherwise, as in :meth:`publish`.
            ack_policy: When the server acks: LEADER (default) or ALL. NONE has no acks to wait for.
            timeout: Seconds for each message, from when it is taken. Default: the client's ``ack_wait``.
            retry_unacked: Whether to send again what had no ack when a broker was lost: it may then be stored
                twice, and after later ones. Default: such a message fails, as its outcome is unknown.
            on_error: ``"raise"``, the default: after a failure no more messages are taken, and when all that
                was taken has an outcome, the error of the first failure is raised, with the ``summary`` in
                it. ``"collect"``: go on, and have failures in the summary.

        Returns:
            What became of them. :meth:`publish_acks` hands out the acks. An error of the iterable or the
            partitioner is raised when all that was taken has an outcome.

        Raises:
            UsageError: An argument makes no sense; it is named.

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
        """Publish on a NATS subject, for whichever streams record it, and wait for the first ack.

        The server checks nothing: where no stream records the subject, or the partition is paused or
        read-only, no ack comes. On a stream with optimistic concurrency it works for the first message only.

        Args:
            subject: The subject, without wildcards. Partition i > 0 of a stream records ``subject.i``.
            value: The payload, any bytes-like.
            key: Its key.
            headers: Names to bytes-like values.
            ack_policy: When the server acks.
            ack_inbox: A NATS subject of your own that gets the ack as well.
            correlation_id: What the ack repeats.
            timeout: Seconds for the ack. Default: the client's ``ack_wait``.

        Returns:
            The ack; None for the ack policy NONE.

        Raises:
            PublishError: Or its subclass: the ack says that the message was not stored.
            MessageTooLargeError: It is longer than the server replicates or takes.
            PermissionDeniedError: The server does not let this client publish on the subject.
            AckTimeoutError: No ack came in time. If its ``sent`` is true the message may be stored.
            TransportError: The broker was lost. If its ``sent`` is true the message may be stored.
            UsageError: An argument makes no sense; nothing was sent.
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
        """Wait until every message that was published until now has an outcome: its ack, or an error.

        That takes no longer than the timeout of the last one.
        """
        self._portal.call(self._async.flush())
