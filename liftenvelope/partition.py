"""Which partition of a stream a message belongs to, and the NATS subject of that partition.

The rules are those of Liftbridge's own clients, so that a key lands in the same partition whichever of them
publishes it: CRC-32 (IEEE) of the key, an absent key being the empty one, unsigned, modulo the number of
partitions. (The remainder of the signed number, which some clients take, is negative for half of the keys.)
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from operator import index
from typing import Protocol, TypeAlias

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

#: A choice of the user's own: ``(key, value, partitions) -> partition``. An absent key is ``b""``.
PartitionChoice: TypeAlias = Callable[[bytes, bytes, int], int]


class Partitioner(Protocol):
    """What chooses the partition of a message."""

    def partition(self, stream: str, key: bytes | None, value: bytes, partitions: int) -> int:
        """Choose.

        Args:
            stream: The stream, or the subject where only that is known: what round robin counts by.
            key: The message's key, if it has one.
            value: The message's value.
            partitions: How many partitions the stream has, at least 1.

        Returns:
            A number from 0 to ``partitions - 1``.

        Raises:
            UsageError: ``partitions`` is less than 1, or a user's choice is out of range.
            UsageTypeError: The key or a user's choice has the wrong type.
        """
        ...


class KeyPartitioner:
    """Messages with the same key go to the same partition, those without one to that of the empty key: 0.

    Example:
        >>> KeyPartitioner().partition("orders", b"customer-8", b"...", 4)
        1
        >>> KeyPartitioner().partition("orders", None, b"...", 4)
        0
    """

    def partition(self, stream: str, key: bytes | None, value: bytes, partitions: int) -> int:  # noqa: ARG002
        """Choose by the key alone; see :meth:`Partitioner.partition`."""
        _check_partitions(partitions)
        try:
            return zlib.crc32(b"" if key is None else key) % partitions
        except TypeError:
            raise UsageTypeError(f"key must be bytes-like, not {type(key).__name__}") from None


class RoundRobinPartitioner:
    """Each stream's messages go to its partitions in turn, beginning with 0.

    Example:
        >>> turns = RoundRobinPartitioner()
        >>> [turns.partition("orders", None, b"...", 3) for _ in range(4)]
        [0, 1, 2, 0]
    """

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}

    def partition(self, stream: str, key: bytes | None, value: bytes, partitions: int) -> int:  # noqa: ARG002
        """Choose by what the stream has had so far; see :meth:`Partitioner.partition`."""
        _check_partitions(partitions)
        turn = self._counters.get(stream, 0)
        self._counters[stream] = turn + 1
        return turn % partitions


class CustomPartitioner:
    """A choice of the user's own, checked: a message for a partition that does not exist would be lost.

    Args:
        choose: Gets the key (``b""`` for none), the value and the number of partitions, and returns the
            partition. What it raises comes out of :meth:`partition`.

    Example:
        >>> CustomPartitioner(lambda key, value, partitions: len(value) % partitions).partition(
        ...     "orders", None, b"12345", 4
        ... )
        1
    """

    def __init__(self, choose: PartitionChoice) -> None:
        self._choose = choose

    def partition(self, stream: str, key: bytes | None, value: bytes, partitions: int) -> int:  # noqa: ARG002
        """Choose by the user's function; see :meth:`Partitioner.partition`."""
        _check_partitions(partitions)
        choice = self._choose(b"" if key is None else key, value, partitions)
        try:
            number = index(choice)
        except TypeError:
            raise UsageTypeError(f"the partitioner must return an int, not {choice!r}") from None
        if not 0 <= number < partitions:
            raise UsageError(
                f"the partitioner returned {choice!r}, which is not one of {partitions} partitions"
            )
        return number


def make_partitioner(
    partition_by: str | PartitionChoice | KeyPartitioner | RoundRobinPartitioner | CustomPartitioner,
) -> Partitioner:
    """The partitioner that an option ``partition_by`` names.

    Args:
        partition_by: ``"key"``, ``"round_robin"``, a function as :class:`CustomPartitioner` takes it, or a
            partitioner of this module, which is returned as it is: two publishers can share one's turns.

    Returns:
        The partitioner; a new one for each of the first three.

    Raises:
        UsageError: The name is none of the two.
        UsageTypeError: It is neither a name nor a function.

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
    raise problem(f'partition_by must be "key", "round_robin" or a function, not {partition_by!r}')


def partition_subject(subject: str, partition: int) -> str:
    """The NATS subject that a partition records.

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
        raise UsageError("subject must not be empty: ''")
    if partition < 0:
        raise UsageError(f"partition must not be negative: {partition}")
    return f"{subject}.{partition}" if partition else subject


def _check_partitions(partitions: int) -> None:
    if partitions < 1:
        raise UsageError(f"partitions must be at least 1, not {partitions}")
