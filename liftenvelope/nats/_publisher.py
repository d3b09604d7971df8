"""Publish envelopes over NATS, one at a time or in whole batches."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, SupportsIndex, cast, overload

from liftenvelope._checks import as_count, as_seconds
from liftenvelope.envelope import Ack, AckPolicy, new_message
from liftenvelope.errors import EnvelopeTooLargeError, TransportError, UsageError
from liftenvelope.nats._ack_inbox import AckInbox
from liftenvelope.nats._batch_acks import BatchAcks
from liftenvelope.nats._batch_run import BatchRun
from liftenvelope.nats._batches import BatchRows
from liftenvelope.nats.link import Link
from liftenvelope.nats.subjects import framed, publish_subject
from liftenvelope.partition import Partitioner, make_partitioner, partition_subject
from liftenvelope.types import as_request_policy

if TYPE_CHECKING:
    from nats.aio.client import Client
    from typing_extensions import Buffer, TypeVar

    # The annotation EnvelopePublisher alone is a publisher with an inbox. At run time, TypeVar has no default
    # before Python 3.13.
    _Answer = TypeVar("_Answer", default=Ack)
    _Answers = TypeVar("_Answers", default=BatchAcks)
else:
    from typing import TypeVar

    _Answer = TypeVar("_Answer")
    _Answers = TypeVar("_Answers")

__all__ = ["EnvelopePublisher"]

PartitionBy = Literal["key", "round_robin"] | Callable[[bytes, bytes, int], int]


class EnvelopePublisher(Generic[_Answer, _Answers]):
    """Publishes envelopes on the subject of a stream, over an existing NATS connection.

    The connection stays the caller's: it is never closed, and its callbacks are not touched. Use a publisher
    from the event loop's thread only; several tasks may publish at once.

    To type checkers, ``EnvelopePublisher`` is a publisher with an inbox, and
    ``EnvelopePublisher[None, None]`` one without.

    Args:
        nc: A connected nats-py client.
        subject: Subject that the stream records.
        inbox: Inbox on the same connection that receives the acks; None, the default, publishes without acks.
        ack_policy: Time of the server's ack. Default LEADER; without an inbox there are no acks.
        partitions: Number of partitions of the stream. Partition 0 is ``subject``, partition ``i`` is
            ``subject.i``, as in the server. Default 1.
        partition_by: Choice of the partition: ``"key"``, the default, by CRC-32 (IEEE) of the key, unsigned,
            modulo ``partitions``, as in Liftbridge's clients; ``"round_robin"``; or a function of key, value
            and number of partitions.
        crc: Protect the payloads by a CRC-32C. Default false.
        timeout: Seconds to wait for an ack, or for room in the connection's buffer. Default 5.

    Raises:
        UsageError: The subject cannot be published on, or another argument is invalid.

    Example::

        async with AckInbox(nc) as inbox:
            publisher = EnvelopePublisher(nc, "sensors.temperature", inbox=inbox)
            acks = await publisher.publish_batch([b"21.5", b"19.0"], keys=[b"s1", b"s2"])
            print((await acks).offsets)
    """

    # Overloads for the type checker: acks with an inbox, None without.
    @overload
    def __init__(
        self: EnvelopePublisher[Ack, BatchAcks],
        nc: Client,
        subject: str,
        *,
        inbox: AckInbox,
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
        partitions: int = 1,
        partition_by: PartitionBy = "key",
        crc: bool = False,
        timeout: float = 5.0,
    ) -> None: ...
    @overload
    def __init__(
        self: EnvelopePublisher[None, None],
        nc: Client,
        subject: str,
        *,
        inbox: None = None,
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
        partitions: int = 1,
        partition_by: PartitionBy = "key",
        crc: bool = False,
        timeout: float = 5.0,
    ) -> None: ...
    def __init__(
        self,
        nc: Client,
        subject: str,
        *,
        inbox: AckInbox | None = None,
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
        partitions: int = 1,
        partition_by: PartitionBy = "key",
        crc: bool = False,
        timeout: float = 5.0,
    ) -> None:
        partitions = as_count("partitions", partitions)
        #: The caller's connection, and the inbox that receives the acks.
        self.nc, self.inbox = nc, inbox
        self._link = Link(nc)
        self.subject = publish_subject(subject)
        self._subjects = [partition_subject(subject, i).encode() for i in range(partitions)]
        self._heads = [b"PUB %b " % name for name in self._subjects]
        self._partitioner: Partitioner = make_partitioner(partition_by)
        self._policy = as_request_policy("ack_policy", ack_policy)
        if inbox is not None and self._policy == AckPolicy.NONE:
            raise UsageError(
                "ack_policy must be LEADER or ALL with an inbox, got NONE, which gets no ack: drop the inbox"
            )
        if inbox is not None and inbox.nc is not nc:
            raise UsageError("inbox must be an AckInbox on the publisher's connection, got one on another")
        self._crc = crc
        self._timeout = as_seconds("timeout", timeout)
        # Epoch of the connection when the first message since the last flush was published.
        self._unflushed: int | None = None
        # The same of the flushes in progress.
        self._flushing: list[int | None] = []

    async def publish(
        self,
        value: Buffer,
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        partition: int | None = None,
        expected_offset: SupportsIndex = -1,
        correlation_id: str | None = None,
        timeout: float | None = None,
    ) -> _Answer:
        """Publish one message; with an inbox, wait for its ack.

        Args:
            value: Payload, any bytes-like object.
            key: Key, any bytes-like object.
            headers: Mapping from names to bytes-like values.
            partition: Partition of the message. Default: chosen by ``partition_by``.
            expected_offset: Required offset of the message (optimistic concurrency); -1, the default, accepts
                any.
            correlation_id: Id that the ack repeats. Default: a new one with an inbox, none without.
            timeout: Seconds to wait. Default: the timeout of the publisher.

        Returns:
            The ack, or None without an inbox. In the latter case the message is in the connection's buffer;
            await :meth:`flush` to know that the server has received it.

        Raises:
            PublishError: The ack reports that the message was not stored.
            PermissionDeniedError: With an inbox, the user may not publish on the subject; nothing was stored.
            AckTimeoutError: No ack arrived. Unless ``sent`` is false, the outcome is unknown.
            TransportError: The connection is closed or draining, or down with its buffer full.
            UsageError: An argument is invalid; nothing was sent.
            EnvelopeTooLargeError: The message is larger than the server accepts; nothing was sent.
        """
        chosen = 0 if len(self._heads) == 1 and partition is None else self._choose(key, value, partition)
        if self.inbox is not None:
            ack = await self.inbox.publish(
                self._subjects[chosen].decode(),
                value,
                key=key,
                headers=headers,
                ack_policy=self._policy,
                expected_offset=expected_offset,
                correlation_id=correlation_id,
                crc=self._crc,
                timeout=self._timeout if timeout is None else timeout,
            )
            return cast(_Answer, ack)
        payload = new_message(
            value,
            key=key,
            headers=headers,
            ack_policy=self._policy,
            expected_offset=expected_offset,
            correlation_id=correlation_id,
            crc=self._crc,
        )
        await self._send(chosen, payload, timeout)
        return cast(_Answer, None)

    async def _send(self, chosen: int, payload: bytes, timeout: float | None) -> None:
        link, size = self._link, len(payload)
        if size > link.max_payload:
            raise EnvelopeTooLargeError(f"the envelope must be at most {link.max_payload} bytes, got {size}")
        frame = framed(self._heads[chosen], payload)
        if not link.fits(len(frame)):
            await link.room(len(frame), self._deadline(timeout))
        if self._unflushed is None:
            self._unflushed = link.epoch
        if link.direct:
            link.write(frame, 1, size)
        else:
            await link.publish(self._subjects[chosen].decode(), payload)

    async def publish_batch(
        self,
        values: Any,
        *,
        keys: Any = None,
        headers: Any = None,
        partitions: Sequence[int] | None = None,
        expected_offsets: Any = -1,
        correlation_ids: Any = None,
        timeout: float | None = None,
    ) -> _Answers:
        """Publish many messages, built and framed in Cython.

        The whole batch is checked before any message is sent. With an inbox at most its ``max_outstanding``
        messages are in flight at a time. The call returns when the last message has been handed to the
        connection.

        Args:
            values: Payloads: an Arrow array, or any iterable of bytes-like objects. Or all columns at once:
                an Arrow record batch or table with a column ``value`` and optionally ``key``, ``headers``,
                ``partition``, ``expected_offset`` and ``correlation_id``.
            keys: Key of each message, in the same forms; null or None for no key.
            headers: Headers of each message: mappings, or an Arrow map array; null or None for no headers.
            partitions: Partition of each message. Default: chosen by ``partition_by``.
            expected_offsets: Required offset of each message, or one for all; -1, the default, accepts any.
            correlation_ids: Ids that the acks repeat. Default: new ones with an inbox, none without.
            timeout: Seconds to wait for each ack, and for room in the connection's buffer. Default: the
                timeout of the publisher.

        Returns:
            With an inbox, an awaitable of the summary of the acks, which need not be awaited. None without
            an inbox.

        Raises:
            TransportError: The connection is closed, or down for longer than the timeout with its buffer
                full. Without an inbox, ``published`` is the number of messages handed to the connection,
                which may have arrived. With an inbox, the error is raised only if no message was handed over;
                otherwise it becomes the outcome of the remaining messages.
            UsageError: A row is invalid; the error names the row, and nothing was sent.
            EnvelopeTooLargeError: A row is too large; the error names the row, and nothing was sent.
        """
        rows = BatchRows.of(values, keys, headers, partitions, expected_offsets, correlation_ids)
        run = BatchRun(
            self._link,
            rows,
            inbox=self.inbox,
            subjects=self._subjects,
            which=self._choose_all(rows),
            policy=self._policy,
            crc=self._crc,
            timeout=self._timeout if timeout is None else as_seconds("timeout", timeout),
        )
        try:
            await run.run()
        finally:
            if self._unflushed is None:
                self._unflushed = run.epoch
        return cast(_Answers, run.acks)

    async def flush(self, timeout: float = 10.0) -> None:
        """Wait until the server has processed everything that was published before.

        Unlike nats-py's ``flush()``, this is a true barrier. It does not imply that a stream has stored the
        messages; only acks do.

        Args:
            timeout: Seconds to wait. Default 10.

        Raises:
            TransportError: The connection is closed, or does not answer within the timeout; or the connection
                was lost since the last flush, so messages written before may be lost.
        """
        seconds = as_seconds("timeout", timeout)
        # What other flushes wait for was published before, too.
        began = min((e for e in (self._unflushed, *self._flushing) if e is not None), default=None)
        self._unflushed = None
        self._flushing.append(began)
        try:
            await self._link.barrier(seconds)
        except BaseException:
            if began is not None:
                self._unflushed = began  # the next flush has to tell
            raise
        finally:
            self._flushing.remove(began)
        if began is not None and began != self._link.epoch:
            raise TransportError(
                "the NATS connection was lost since the last flush: what was published may not have arrived"
            )

    def _deadline(self, timeout: float | None) -> float:
        seconds = self._timeout if timeout is None else as_seconds("timeout", timeout)
        return asyncio.get_running_loop().time() + seconds

    def _choose(self, key: Any, value: Any, partition: int | None) -> int:
        if partition is None:
            return self._partitioner.partition(
                self.subject, None if key is None else bytes(key), bytes(value), len(self._heads)
            )
        return self._checked(partition, "partition")

    def _checked(self, partition: int, what: str) -> int:
        if not 0 <= partition < len(self._heads):
            raise UsageError(f"{what} must be from 0 to {len(self._heads) - 1}, got {partition!r}")
        return partition

    def _choose_all(self, rows: BatchRows) -> array[int] | None:
        """Return the partition of each row; None if no choice is needed: one partition, and none given."""
        if rows.partitions is not None:
            return array(
                "i", [self._checked(p, f"row {i}: partition") for i, p in enumerate(rows.partitions)]
            )
        count = len(self._heads)
        if count == 1:
            return None
        choose, subject = self._partitioner.partition, self.subject
        return array("i", [choose(subject, key, value, count) for key, value in rows.pairs()])
