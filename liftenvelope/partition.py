"""Partitioners: choose the partition of a message, and its NATS subject.

The rules are those of Liftbridge's own clients, so that a key maps to the same partition with every client:
unsigned CRC-32 (IEEE) of the key, modulo the number of partitions. An absent key counts as the empty key.
(Some clients use the signed CRC; its remainder is negative for half of the keys.)
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import islice
from operator import index
from typing import Final, Protocol, TypeAlias

from liftenvelope._checks import as_optional_bytes
from liftenvelope.errors import UsageError, UsageTypeError

__all__ = [
    "CustomPartitioner",
    "KeyPartitioner",
    "PartitionChoice",
    "Partitioner",
    "RoundRobinPartitioner",
    "make_partitioner",
    "partition_subject",
]

#: User-defined choice: ``(key, value, partitions) -> partition``. An absent key is ``b""``.
PartitionChoice: TypeAlias = Callable[[bytes, bytes, int], int]
#: Maximum number of streams whose turns a :class:`RoundRobinPartitioner` remembers.
_MOST_STREAMS: Final = 10_000


class Partitioner(Protocol):
    """Chooses the partition of a message."""

    def partition(self, stream: str, key: bytes | None, value: bytes, partitions: int) -> int:
        """Return the partition for a message.

        Args:
            stream: Name of the stream, or its subject if only that is known. Round robin counts per stream.
            key: Key of the message; None if it has no key.
            value: Value of the message.
            partitions: Number of partitions of the stream, at least 1.

        Returns:
            A number from 0 to ``partitions - 1``.

        Raises:
            UsageError: ``partitions`` is less than 1, or a user-defined choice is out of range.
            UsageTypeError: The key or a user-defined choice has the wrong type.
        """
        ...


class KeyPartitioner:
    """Maps equal keys to the same partition. Messages without a key go to that of the empty key: 0.

    Example:
        >>> KeyPartitioner().partition("orders", b"customer-8", b"...", 4)
        1
        >>> KeyPartitioner().partition("orders", None, b"...", 4)
        0
    """

    def partition(self, stream: str, key: bytes | None, value: bytes, partitions: int) -> int:  # noqa: ARG002
        """Return the partition for the key; see :meth:`Partitioner.partition`."""
        _check_partitions(partitions)
        return zlib.crc32(as_optional_bytes("key", key)) % partitions


class RoundRobinPartitioner:
    """Sends the messages of each stream to its partitions in turn, starting at 0.

    Remembers the turns of the last 10,000 streams at most. A stream that was forgotten starts at 0 again.

    Example:
        >>> turns = RoundRobinPartitioner()
        >>> [turns.partition("orders", None, b"...", 3) for _ in range(4)]
        [0, 1, 2, 0]
    """

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}

    def partition(self, stream: str, key: bytes | None, value: bytes, partitions: int) -> int:  # noqa: ARG002
        """Return the next partition of the stream; see :meth:`Partitioner.partition`."""
        _check_partitions(partitions)
        turn = self._counters.pop(stream, 0)
        self._counters[stream] = turn + 1  # as the newest one
        if len(self._counters) > _MOST_STREAMS:
            # Half at once, so that the cost per stream is constant.
            self._counters = dict(islice(self._counters.items(), _MOST_STREAMS // 2, None))
        return turn % partitions


class CustomPartitioner:
    """Calls a user-defined function and checks its result.

    The check is needed because a message for a missing partition would be lost.

    Args:
        choose: Takes the key (``b""`` for none), the value and the number of partitions; returns the
            partition. Its exceptions propagate out of :meth:`partition`.

    Example:
        >>> CustomPartitioner(lambda key, value, partitions: len(value) % partitions).partition(
        ...     "orders", None, b"12345", 4
        ... )
        1
    """

    def __init__(self, choose: PartitionChoice) -> None:
        self._choose = choose

    def partition(self, stream: str, key: bytes | None, value: bytes, partitions: int) -> int:  # noqa: ARG002
        """Return the partition chosen by the function; see :meth:`Partitioner.partition`."""
        _check_partitions(partitions)
        choice = self._choose(b"" if key is None else key, value, partitions)
        try:
            number = index(choice)
        except TypeError:
            raise UsageTypeError(f"the partitioner must return an integer, got {choice!r}") from None
        if not 0 <= number < partitions:
            raise UsageError(
                f"the partitioner must return a partition from 0 to {partitions - 1}, got {choice!r}"
            )
        return number


def make_partitioner(
    partition_by: str | PartitionChoice | KeyPartitioner | RoundRobinPartitioner | CustomPartitioner,
) -> Partitioner:
    """Return the partitioner for an option ``partition_by``.

    Args:
        partition_by: ``"key"``, ``"round_robin"``, a function for :class:`CustomPartitioner`, or a
            partitioner of this module. A partitioner is returned unchanged, so that two publishers can share
            the turns of a round robin.

    Returns:
        The partitioner: a new one, unless a partitioner was given.

    Raises:
        UsageError: The name is not one of the two.
        UsageTypeError: The option is neither a name nor a function.

    Example:
        >>> make_partitioner("round_robin").partition("orders", None, b"...", 3)
        0
    """
    if isinstance(partition_by, KeyPartitioner | RoundRobinPartitioner | CustomPartitioner):
        return partition_by
    if callable(partition_by):
        return CustomPartitioner(partition_by)
    if partition_by == "key":
        return KeyPartitioner()
    if partition_by == "round_robin":
        return RoundRobinPartitioner()
    problem = UsageError if type(partition_by) is str else UsageTypeError
    raise problem(f'partition_by must be "key", "round_robin" or a function, got {partition_by!r}')


def partition_subject(subject: str, partition: int) -> str:
    """Return the NATS subject that a partition records.

    Args:
        subject: The stream's subject.
        partition: The partition's number, from 0.

    Returns:
        The subject itself for partition 0, and ``subject.i`` for partition i.

    Raises:
        UsageError: The partition is negative, or the subject is empty.

    Example:
        >>> partition_subject("orders", 0), partition_subject("orders", 2)
        ('orders', 'orders.2')
    """
    if not subject:
        raise UsageError("subject must not be empty, got ''")
    if partition < 0:
        raise UsageError(f"partition must be at least 0, got {partition}")
    return f"{subject}.{partition}" if partition else subject


def _check_partitions(partitions: int) -> None:
    if partitions < 1:
        raise UsageError(f"partitions must be at least 1, got {partitions}")
