"""Publishing: single messages, many in flight, whole iterables, and messages on NATS subjects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from liftenvelope._checks import (
    as_bytes,
    as_count,
    as_optional_bytes,
    as_optional_text,
    storable_headers,
)
from liftenvelope._deadlines import Deadline, ack_timeout
from liftenvelope._pb import api_pb2
from liftenvelope.client._publish_many import Messages, Plan, PublishMany
from liftenvelope.client._sending.in_flight import Entry, Outcome
from liftenvelope.client._sending.publish_message import SingleMessage
from liftenvelope.client._sending.publish_stream import PublishStreams
from liftenvelope.client._sending.unary_publish import UnaryPublish, UnaryPublisher
from liftenvelope.client.core import ClientContext
from liftenvelope.client.publish_checks import (
    check_ack_inbox,
    check_headers,
    check_publish_subject,
    check_published_stream,
    check_size,
)
from liftenvelope.client.publish_codec import policy_of
from liftenvelope.envelope import Ack, AckPolicy
from liftenvelope.errors import (
    AckTimeoutError,
    TransportError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.partition import (
    CustomPartitioner,
    KeyPartitioner,
    PartitionChoice,
    Partitioner,
)
from liftenvelope.types import as_request_policy

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Publisher"]

_BY_KEY = KeyPartitioner()


class _AckFuture(asyncio.Future[Any]):
    """Future of the ack of one message. Cancelling it gives the message up, which may be stored if sent."""

    __slots__ = ("_streams", "entry", "retry", "stream")  # instead of a dict of its own for each future

    def __init__(self, streams: PublishStreams, stream: str, retry: bool) -> None:
        super().__init__()
        self.stream = stream
        self.retry = retry
        self._streams = streams
        self.entry: Entry | None = None

    def settle(self, _entry: Entry, outcome: Outcome) -> None:
        if self.done():
            return
        if type(outcome) is Ack:
            self.set_result(outcome)
        else:
            self.set_exception(outcome)

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done() and self.entry is not None:
            self.entry.flight.drop(self.entry)
            self._streams.wake()
        return super().cancel(msg)


class Publisher:
    """Part of a client: publishes on the streams to the brokers, or by unary calls.

    Attributes:
        streams: Publish streams with the messages in flight.
    """

    def __init__(self, context: ClientContext) -> None:
        self.streams = PublishStreams(context.cluster)
        self._context = context
        self._cluster = context.cluster
        self._unary = UnaryPublisher(context.cluster)
        context.open_resources.add(self.streams)

    async def publish(
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

            ack = await client.publish("orders", b"one tea", key=b"customer-8", headers={"shop": b"7"})
        """
        message = SingleMessage(
            stream,
            value,
            key,
            headers,
            partition,
            self._partitioner(partitioner),
            ack_policy,
            ack_inbox,
            correlation_id,
            expected_offset,
            retry_unacked,
        )
        deadline = self._ack_deadline(timeout)
        if message.is_unary:
            return await self._publish_unary(message, deadline)
        ack: Ack | None = await (await self._publish_piped(message, deadline))
        return ack

    async def publish_async(
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
        max_outstanding: int = 10_000,
    ) -> asyncio.Future[Ack | None]:
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

            futures = [await client.publish_async("orders", order) for order in orders]
            await client.flush()
            acks = [future.result() for future in futures]
        """
        message = SingleMessage(
            stream,
            value,
            key,
            headers,
            partition,
            self._partitioner(partitioner),
            ack_policy,
            ack_inbox,
            correlation_id,
            expected_offset,
            retry_unacked,
        )
        as_count("max_outstanding", max_outstanding)
        deadline = self._ack_deadline(timeout)
        if not self.streams.has_room(max_outstanding):
            await self._wait_for_room(max_outstanding, deadline)
        if message.is_unary:
            return self._start_unary(message, deadline)
        return await self._publish_piped(message, deadline)

    def publish_many(
        self,
        stream: str,
        messages: Messages,
        *,
        max_in_flight: int = 1000,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
        timeout: float | None = None,
        retry_unacked: bool = False,
        on_error: Literal["raise", "collect"] = "raise",
    ) -> PublishMany:
        """Publish what an iterable gives, many in flight, in bounded memory.

        Args:
            stream: Name of the stream.
            messages: An iterable or async iterable, which may be endless, of values, of ``(key, value)``, of
                :class:`OutgoingMessage`, or of :class:`Message` (its value, key and headers).
            max_in_flight: Maximum messages without an ack; in a loop over the acks, how many may be without
                one or not fetched. Default 1,000.
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
            What to await for the :class:`PublishSummary`, or to iterate over for ``(index, ack)`` in the
            order of the input. An error of the iterable or the partitioner is raised when every message taken
            has an outcome.

        Raises:
            UsageError: An argument is invalid. The error names the argument.

        Example::

            summary = await client.publish_many("orders", (b"order %d" % i for i in range(100_000)))
            async for index, ack in client.publish_many("orders", [(b"key", b"value")]):
                print(index, ack.offset)
        """
        plan = Plan(
            stream=check_published_stream(stream),
            partition=partition,
            partitioner=self._partitioner(partitioner),
            ack_policy=as_request_policy("ack_policy", ack_policy),
            timeout=self._ack_deadline(timeout).timeout,
            retry_unacked=retry_unacked,
            max_in_flight=max_in_flight,
            on_error=on_error,
        )
        return PublishMany(self.streams, messages, plan)

    async def publish_to_subject(
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
        check_publish_subject(subject)
        copied = storable_headers(headers)
        check_headers(copied)
        as_optional_text("correlation_id", correlation_id)
        policy = as_request_policy("ack_policy", ack_policy)
        request = api_pb2.PublishToSubjectRequest(
            subject=subject,
            value=as_bytes("value", value),
            key=as_optional_bytes("key", key),
            headers=copied,
            ackPolicy=policy_of(policy),
            ackInbox=check_ack_inbox(ack_inbox),
            correlationId=self.streams.new_id(correlation_id),
        )
        ack = await self._unary.publish(
            UnaryPublish(
                method="PublishToSubject",
                data=check_size(request.SerializeToString(), self._context.options.max_request_bytes),
                about=f"subject {subject!r}",
                correlation_id=request.correlationId,
                ack_inbox=request.ackInbox,
                has_ack=policy is not AckPolicy.NONE,
            ),
            self._ack_deadline(timeout),
        )
        if ack is None:
            return None
        ack.raise_for_error()
        return ack

    async def flush(self) -> None:
        """Wait until every message published before this call has an outcome: its ack, or an error.

        The wait takes no longer than the timeout of the last message.
        """
        self._cluster.check_loop()
        await self.streams.flush()

    # Inside

    def _ack_deadline(self, timeout: float | None) -> Deadline:
        return self._context.deadline(self._context.options.ack_wait if timeout is None else timeout)

    def _partitioner(self, given: str | PartitionChoice | Partitioner) -> Partitioner:
        if given == "key":
            return _BY_KEY
        if given == "round_robin":
            return self.streams.round_robin
        # bytes have a method "partition", too
        if isinstance(given, str | bytes) or not (callable(given) or hasattr(given, "partition")):
            problem = UsageError if isinstance(given, str) else UsageTypeError
            raise problem(f'partitioner must be "key", "round_robin" or a function, got {given!r}')
        return given if not callable(given) else CustomPartitioner(given)

    async def _choose(self, message: SingleMessage, deadline: Deadline) -> int:
        """Choose the partition of a message. A partition given by the caller is checked to exist."""
        info = await self.streams.partition_info(message.stream, deadline, message.partition)
        if message.partition is not None:
            return message.partition
        return message.partitioner.partition(message.stream, message.key, message.value, len(info.partitions))

    async def _wait_for_room(self, max_outstanding: int, deadline: Deadline) -> None:
        streams = self.streams
        try:
            async with asyncio.timeout(deadline.left):
                while not streams.has_room(max_outstanding):
                    await streams.progress()
        except TimeoutError as exc:
            text = f"no place was free in {deadline.timeout} s: {streams.count} messages are without an ack"
            raise AckTimeoutError(text, "", False) from exc

    async def _publish_piped(self, message: SingleMessage, deadline: Deadline) -> asyncio.Future[Any]:
        """Send a message on the publish stream of its partition's leader.

        A message takes a call of its own if an ack may still come for an earlier one of the same id: that
        ack could be confused with its own on the stream.
        """
        streams, stream = self.streams, message.stream
        partition = await self._choose(message, deadline)
        lane = streams.pinned(stream, partition)
        if lane is None:
            info = await streams.partition_info(stream, deadline, partition)
            lane = await streams.pin(info, partition, deadline)
        # No await from here on: otherwise another call could take the id, an earlier message of that id could
        # be given up, or another message could overtake this one.
        correlation_id = streams.new_id(message.correlation_id)
        if streams.may_be_acked_late(message.correlation_id):
            return self._start_unary(message, deadline)
        request = message.request(partition, correlation_id, self._context.options.max_request_bytes)
        future = _AckFuture(streams, stream, message.retry)
        future.entry = Entry(correlation_id, request, partition, future, 0)
        streams.submit(lane, (future.entry,), deadline.left)
        return future

    def _start_unary(self, message: SingleMessage, deadline: Deadline) -> asyncio.Task[Ack | None]:
        """Publish by a unary call, in a task that counts as in flight."""
        task = asyncio.create_task(self._publish_until_closed(message, deadline))
        self.streams.track(task)
        return task

    async def _publish_until_closed(self, message: SingleMessage, deadline: Deadline) -> Ack | None:
        """Publish by a unary call, in a task that is cancelled when the client closes."""
        try:
            return await self._publish_unary(message, deadline)
        except asyncio.CancelledError:
            if not self.streams.has_given_up:  # the user has cancelled the future
                raise
            text = f"stream {message.stream!r}: the client was closed; the message may be stored"
            raise TransportError(text, 1, True) from None

    async def _publish_unary(self, message: SingleMessage, deadline: Deadline) -> Ack | None:
        partition = await self._choose(message, deadline)
        correlation_id = self.streams.new_id(message.correlation_id)
        about = f"{message.stream}[{partition}]"
        ack = await self._unary.publish(
            UnaryPublish(
                method="Publish",
                data=message.request(partition, correlation_id, self._context.options.max_request_bytes),
                about=about,
                correlation_id=correlation_id,
                ack_inbox=message.ack_inbox or "",
                has_ack=message.ack_policy is not AckPolicy.NONE,
            ),
            deadline,
        )
        if ack is None:
            return None
        if ack.stream != message.stream:
            cause = f"stream {ack.stream!r} records the same subject, and its ack came first"
            raise ack_timeout(f"the message on {about}", correlation_id, causes=cause)
        ack.raise_for_error()
        return ack
