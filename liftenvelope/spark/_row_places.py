"""Offsets of a task's rows in a partition that checks expected offsets, so that each row is stored once.

Sans-io. Spark may run a task more than once, and an attempt that Spark has given up on may keep writing.
Every attempt must therefore compute the same offset for the same row. Each row carries a mark that identifies
the row and its batch, and an attempt reads the marks in the partition before it writes.

- The first row is sent alone, with an expected offset below which this attempt has read everything. The
  offset at which it is stored, ``base``, is the same for every attempt.
- While no other writer appends to the partition, row ``i`` belongs at ``base + i``. Many rows can be in
  flight at once: the first attempt to reach an offset wins, and the server refuses the other one.
- After another writer has appended, rows are sent one at a time and in order. Each expects an offset below
  which this attempt has read everything, so the row can't be stored already. No row lands below ``base + i``,
  because the ``i`` rows before it are stored. A stale attempt may still have row ``i`` in flight for ``base +
  i``; that publish is either refused or is the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from liftenvelope.spark.errors import BatchChangedError, OptionError

__all__ = ["NO_OFFSET", "PROBE", "ROW_HEADER", "RowMark", "RowPlaces", "row_marks"]

#: Header that carries the mark.
ROW_HEADER: Final = "liftenvelope-row"
#: Expected offset that no message can have, so that a partition that checks offsets refuses it.
NO_OFFSET: Final = 2**62
#: Row number of a message sent with ``NO_OFFSET``. Only a partition that does not check offsets stores it.
PROBE: Final = -1


@dataclass(frozen=True, slots=True)
class RowMark:
    """Identity of a row, sent in a header.

    Attributes:
        query: Id of the query.
        batch: Number of the micro-batch.
        task: Number of the Spark partition.
        row: Number of the row among the task's rows for the same partition of the stream.
        checksum: CRC-32 of the key and value, which detects that a repeated batch has different rows.
    """

    query: str
    batch: int
    task: int
    row: int
    checksum: int

    def __str__(self) -> str:
        return row_marks((self.query, self.batch, self.task), [self.row], [self.checksum])[0].decode()

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the mark in a header value, or None if the value is not a mark."""
        query, *numbers = text.rsplit(":", 4)
        try:
            batch, task, row = (int(number) for number in numbers[:3])
            return cls(query, batch, task, row, int(numbers[3], 16))
        except (ValueError, IndexError):
            return None


def row_marks(task: tuple[str, int, int], rows: Iterable[int], checksums: Iterable[int]) -> list[bytes]:
    """Return the header values that mark rows of a task.

    Args:
        task: Query, batch and task of the rows.
        rows: Number of each row.
        checksums: Checksum of each row.
    """
    query, batch, number = task
    head = f"{query}:{batch}:{number}:".encode()
    return [b"%b%d:%08x" % (head, row, checksum) for row, checksum in zip(rows, checksums, strict=True)]


class RowPlaces:
    """Plans the offsets of one attempt's rows in one partition.

    Invariant: row ``i`` is never stored below ``base + i``.

    Args:
        query: Id of the query.
        batch: Number of the micro-batch.
        task: Number of the Spark partition.
        name: Name of the partition in error messages.

    Attributes:
        end: Offset up to which the partition has been read.
        base: Offset of the first row; None until it is stored.
        checked: True once the partition is known to refuse a wrong expected offset.
    """

    def __init__(self, query: str, batch: int, task: int, name: str) -> None:
        self.end = 0
        self.base: int | None = None
        self.checked = False
        self._me = (query, batch, task)
        self._name = name
        # Checksums of the rows found in the partition. Rows below ``_below`` were stored by this attempt.
        self._found: dict[int, int] = {}
        self._below = 0
        self._count = 0
        self._is_shifted = False

    def learn(self, marks: Iterable[tuple[int, RowMark]], end: int) -> None:
        """Record the marks read from the partition since the last call.

        Args:
            marks: Offsets and marks of the messages that have one, in order of offset.
            end: Offset up to which the partition has now been read.

        Raises:
            BatchChangedError: The first row is gone, but later rows are stored.
            OptionError: The partition does not check expected offsets.
        """
        for offset, mark in marks:
            if mark.query == self._me[0] and mark.row == PROBE:
                raise self.not_checked()
            self.checked = self.checked or mark.query == self._me[0]
            if (mark.query, mark.batch, mark.task) == self._me and not self._has(mark.row):
                self._found[mark.row] = mark.checksum
                self._put(mark.row, offset)
        self.end = end

    def not_checked(self) -> OptionError:
        """Return the error for a partition that ignores expected offsets."""
        text = f"deliveryGuarantee='effectively-once': {self._name} does not check expected offsets"
        hint = "one row was stored; use a stream that was created with optimistic_concurrency=True"
        return OptionError(f"{text}: {hint}")

    def _has(self, row: int) -> bool:
        return row < self._below or row in self._found

    def _put(self, row: int, offset: int) -> None:
        if row == 0:
            self.base = offset
        if self.base is None:
            text = f"{self._name}: row {row} of the batch is stored, but its first row is gone"
            raise BatchChangedError(f"{text}: retention must be longer than the time to run a batch again")
        self._count += 1
        self._is_shifted = self._is_shifted or offset != self.base + row

    def is_stored(self, row: int, checksum: int) -> bool:
        """Return True if a row is stored.

        Raises:
            BatchChangedError: A different row with this number is stored.
        """
        found = self._found.get(row)
        if found is not None and found != checksum:
            text = f"{self._name}: row {row} of the batch differs from the row that an earlier run stored"
            raise BatchChangedError(
                f"{text}: a batch must repeat the same rows in the same order; sort within partitions"
            )
        return self._has(row)

    def missing(self, first: int, checksums: Sequence[int]) -> Sequence[int]:
        """Return the rows that are not stored, in order.

        Args:
            first: Number of the first row.
            checksums: Checksum of each row from the first on.

        Raises:
            BatchChangedError: A different row with one of these numbers is stored.
        """
        stop = first + len(checksums)
        if not self._found:
            return range(min(max(first, self._below), stop), stop)
        return [row for row, checksum in enumerate(checksums, first) if not self.is_stored(row, checksum)]

    @property
    def is_alone(self) -> bool:
        """True if no other writer has appended since the first row."""
        return self.base is None or (not self._is_shifted and self._count == self.end - self.base)

    def plan(self, missing: Sequence[int]) -> list[tuple[int, int]]:
        """Return the rows to send now, each with its expected offset.

        Args:
            missing: Rows that are not stored, in order; every row before the first of them is stored.
        """
        if not missing:
            return []
        if not self.checked:
            return [(missing[0], NO_OFFSET)]
        if self.base is not None and self.is_alone:
            return [(row, self.base + row) for row in missing]
        return [(missing[0], self.end)]

    def plan_unseen(self, missing: Sequence[int], end: int) -> list[tuple[int, int]]:
        """Return the rows to send now to a partition whose newest messages can't be read yet.

        Args:
            missing: As for :meth:`plan`.
            end: Offset of the next message.
        """
        if self.base is None or not self.is_alone:
            return []
        # No row is stored below base + row, so a row whose offset is the next one can't be stored yet.
        return [(row, self.base + row) for row in missing if self.base + row == end]

    def stored(self, row: int, offset: int) -> None:
        """Record that a row was stored, and with it every planned row before it."""
        if not self._has(row):
            self._put(row, offset)
        self._below, self.end = row + 1, offset + 1

    def check_rows(self, rows: int) -> None:
        """Raise BatchChangedError if an earlier run stored more rows than the batch has."""
        more = max(self._found, default=-1)
        if more >= rows:
            text = f"{self._name}: an earlier run stored {more + 1} rows, but the batch has {rows}"
            raise BatchChangedError(f"{text}: a batch must have the same rows in the same order")
