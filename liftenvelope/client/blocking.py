"""Blocking client: the methods of the async client, for callers without an event loop.

``liftenvelope.client.binding`` binds the methods at run time. Those that differ from their async
counterparts are written here. ``blocking.pyi`` is for type checkers, made by ``protos/generate_blocking.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from liftenvelope.client._consuming.checkpointer import Checkpointer
from liftenvelope.client._consuming.consumer import Consumer
from liftenvelope.client._reading.merged import MergedSubscription
from liftenvelope.client._reading.subscription import Subscription
from liftenvelope.client.activity import ActivityStream
from liftenvelope.client.binding import (
    Blocking,
    BlockingReader,
    blocking_text,
    open_portal,
    with_signature_of,
)
from liftenvelope.client.client import Client, connect
from liftenvelope.envelope import Ack, AckPolicy

if TYPE_CHECKING:
    from types import TracebackType

    from liftenvelope.client._publish_many import Item
    from liftenvelope.client._publish_summary import PublishSummary
    from liftenvelope.partition import PartitionChoice, Partitioner

__all__ = [
    "BlockingActivityStream",
    "BlockingCheckpointer",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingMergedSubscription",
    "BlockingSubscription",
    "connect_blocking",
]


class BlockingCheckpointer(Blocking, of=Checkpointer):
    """Keeps the cursor of a stream's reader. Use it with ``with``.

    The cursor is the offset of the last processed message: call :meth:`processed` after each message. The
    checkpointer stores the cursor in the background, and when the block ends. After a crash, a reader
    rereads up to ``every_messages`` messages, or those of ``every_seconds`` seconds.

    Each write first reads the stored cursor, and the larger offset wins, so the cursor does not move back.
    Servers cannot compare and set in one step, so two readers of one cursor can still race. Readers that
    share a stream belong in a consumer group.

    Example:
        >>> with client.checkpointer("billing", "orders") as checkpoints:  # doctest: +SKIP
        ...     start = checkpoints.start(0)
        ...     with client.subscribe("orders", start=start) as messages:
        ...         for message in messages:
        ...             ...
        ...             checkpoints.processed(message)
    """


class BlockingSubscription(BlockingReader, of=Subscription):
    """Messages of one partition. Made by :meth:`BlockingClient.subscribe`; open it with ``with``.

    Iterate over single messages, or take lists with :meth:`batches`, or Arrow with :meth:`arrow_batches`.
    Each continues where the others stopped. Messages come in the order of their offsets, each once. If the
    connection is lost, the subscription tries to regain it for up to ``resubscribe_wait`` seconds. Threads
    may share an iteration, and no more.

    Iteration ends when the stop is reached, or after :meth:`close`. Iteration raises the errors below.

    Raises:
        StreamDeletedError: The stream was deleted.
        PartitionPausedError: The partition was paused.
        ReadonlyPartitionError: The partition is read-only, and all its messages were read before the stop was
            reached.
        SubscriptionLostError: The connection was lost and not regained in time.
        OffsetOutOfRangeError: The partition has lost messages that were read already.
        UnsupportedByServerError: The server can't read backwards.
    """


class BlockingMergedSubscription(BlockingReader, of=MergedSubscription):
    """Messages of several partitions. Made by :meth:`BlockingClient.subscribe` with ``partition="all"``.

    Works as a :class:`BlockingSubscription`, except for the order: messages of one partition come in the
    order of their offsets, those of different partitions in any order. A slow partition does not block the
    others. Iteration ends when all partitions have ended; the first error of a partition ends it too.
    """


class BlockingActivityStream(Blocking, of=ActivityStream):
    """Iterates over the events of a cluster in order. Made by :meth:`BlockingClient.activity`.

    Open it with ``with``. It reconnects like a :class:`BlockingSubscription`, and raises the same errors.
    For one thread at a time.
    """


class BlockingConsumer(Blocking, of=Consumer):
    """A member of a consumer group. Made by :meth:`BlockingClient.consumer`; use it with ``with``.

    Iteration returns the messages of all partitions assigned to this member, in order within each partition.
    A message counts as processed when the next one is requested, or when it is passed to :meth:`commit`.
    Processed offsets are committed periodically, and the partition's next owner continues there.

    Delivery is at least once: messages since the last checkpoint are redelivered after a crash, and when a
    partition moves to a member that joins. For one thread at a time.

    Example:
        >>> with client.consumer("billing", ["orders"]) as consumer:  # doctest: +SKIP
        ...     for message in consumer:
        ...         ...
    """


class BlockingClient(Blocking, of=Client, without=("open",)):
    """A client of a Liftbridge cluster. Made by :func:`connect_blocking`.

    Any number of threads may use it.
    """

    _async: Client

    def close(self) -> None:
        """Close every subscription, publish and consumer of this client, its connections, and its thread.

        Closing twice has no effect. Calls of other threads that are under way end with ``TransportError``.
        """
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

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
        """Publish as :meth:`publish_many` does, and iterate over the acks in the order of the input.

        A slow loop slows the sending. Leaving the loop early leaves the rest unsent. Arguments and errors are
        those of :meth:`publish_many`.

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


def connect_blocking(*addresses: Any, **options: Any) -> BlockingClient:
    """Connect to a Liftbridge cluster. Close the client in the end: ``with`` does it."""
    return BlockingClient(*open_portal(lambda: connect(*addresses, **options)))


def _connect_doc() -> str | None:
    """Return the docstring of ``connect_blocking``, with the arguments and the example of ``connect``."""
    # Python 3.13 compiles docstrings without their indentation, and earlier versions with it.
    text = blocking_text(inspect.getdoc(connect))
    if text is None or connect_blocking.__doc__ is None:  # python -OO
        return None
    arguments = text[text.index("Args:") : text.index("Returns:")]
    example = text[text.index("Example:") :]
    return f"{connect_blocking.__doc__}\n\n{arguments}{_CONNECTED}\n{example}"


_CONNECTED: Final = """\
Returns:
    The client, connected.

Raises:
    UsageError: An argument makes no sense; it is named.
    TransportError: No broker could be reached.
    CallTimeoutError: No broker answered in time.
"""
_doc = _connect_doc()
with_signature_of(connect, connect_blocking, "connect_blocking").__doc__ = _doc
