"""Where the rows of a task stand in a partition that checks expected offsets: each once, whoever else writes.

Sans-io. A task may run more than once, and an attempt that Spark has given up may go on writing. So that no
row is stored twice, every attempt has to come to the same place for it. Each row carries a mark that says
which row of which batch it is; an attempt reads what the partition has of them before it writes.

- The first row is sent alone, and only with an offset before which everything is known. Where it gets stored,
  at ``base``, is the same for every attempt.
- As long as nobody else writes there, row ``i`` belongs at ``base + i``. Many of them can be on their way at
  once: whichever attempt comes first, the other's is refused.
- Once somebody else has written in between, rows are sent one by one, in their order, each with an offset
  before which everything is known, so that it can't be there already. None of them gets below ``base + i``,
  because the ``i`` rows before it are stored: what an attempt that does not know yet still has on its way
  for ``base + i`` is refused, or is the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from liftenvelope.spark.errors import BatchChangedError, OptionError

__all__ = ["NO_OFFSET", "PROBE", "ROW_HEADER", "RowMark", "RowPlaces"]

#: The header of the mark.
ROW_HEADER: Final = "liftenvelope-row"
#: An offset that no message gets.
NO_OFFSET: Final = 2**62
#: In place of a row's number: it was sent with that offset, and only a partition that checks none has it.
PROBE: Final = -1


@dataclass(frozen=True, slots=True)
class RowMark:
    """Which row a message is.

    Attributes:
        query: Id of the query.
        batch: Number of the micro-batch.
        task: Number of the Spark partition.
        row: Number of the row, among those of the task that go to the same partition of the stream.
        checksum: CRC-32 of its key and value, by which rows are noticed that are others than before.
    """

    query: str
    batch: int
    task: int
    row: int
    checksum: int

    def __str__(self) -> str:
        return f"{self.query}:{self.batch}:{self.task}:{self.row}:{self.checksum:08x}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the mark that a header has, None if it is none."""
        query, *numbers = text.rsplit(":", 4)
        try:
            batch, task, row = (int(number) for number in numbers[:3])
            return cls(query, batch, task, row, int(numbers[3], 16))
        except (ValueError, IndexError):
            return None


class RowPlaces:
    """What one attempt knows of the rows of its task in one partition.

    Args:
        query: Id of the query.
        batch: Number of the micro-batch.
        task: Number of the Spark partition.
        name: What to call the partition in the text of errors.

    Attributes:
        end: Everything before this offset is known.
        base: Where the first row is, None as long as it is nowhere.
        checked: Whether the partition is known to refuse messages with a wrong expected offset.
    """

    def __init__(self, query: str, batch: int, task: int, name: str) -> None:
        self.end = 0
        self.base: int | None = None
        self.checked = False
        self._me = (query, batch, task)
        self._name = name
        # Rows that were found, with their checksums; those that this attempt has stored are the ones below.
        self._found: dict[int, int] = {}
        self._below = 0
        self._count = 0
        self._is_shifted = False

    def learn(self, marks: Iterable[tuple[int, RowMark]], end: int) -> None:
        """Take in what the partition has from what was known up to another offset.

        Args:
            marks: Offsets of messages with a mark, in their order, and the marks.
            end: Everything before it is known now.

        Raises:
            BatchChangedError: The first row is gone, and others are there.
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
        """The error for a partition that takes messages whatever offset they expect."""
        text = f"deliveryGuarantee='effectively-once': {self._name} does not check expected offsets"
        hint = "one of the rows is stored; take a stream that was created with optimistic_concurrency=True"
        return OptionError(f"{text}: {hint}")

    def _has(self, row: int) -> bool:
        return row < self._below or row in self._found

    def _put(self, row: int, offset: int) -> None:
        if row == 0:
            self.base = offset
        if self.base is None:
            text = f"{self._name}: row {row} of the batch is there, and the first one is gone"
            raise BatchChangedError(f"{text}: retention has to be longer than it takes to run a batch again")
        self._count += 1
        self._is_shifted = self._is_shifted or offset != self.base + row

    def is_stored(self, row: int, checksum: int) -> bool:
        """Whether a row is stored.

        Raises:
            BatchChangedError: Another row of this number is.
        """
        found = self._found.get(row)
        if found is not None and found != checksum:
            text = f"{self._name}: row {row} of the batch is not the one that was stored when it ran before"
            raise BatchChangedError(
                f"{text}: expected the same rows in the same order; sort within partitions before the sink"
            )
        return self._has(row)

    @property
    def is_alone(self) -> bool:
        """Whether nobody else has written since the first row."""
        return self.base is None or (not self._is_shifted and self._count == self.end - self.base)

    def plan(self, missing: Sequence[int]) -> list[tuple[int, int]]:
        """Return the rows to send now, and the offsets that they must get.

        Args:
            missing: Rows that are not stored, in their order; all before the first of them are.
        """
        if not missing:
            return []
        if not self.checked:
            return [(missing[0], NO_OFFSET)]
        if self.base is not None and self.is_alone:
            return [(row, self.base + row) for row in missing]
        return [(missing[0], self.end)]

    def plan_unseen(self, missing: Sequence[int], end: int) -> list[tuple[int, int]]:
        """Likewise, of a partition that does not show all that it has.

        Args:
            missing: As for :meth:`plan`.
            end: Offset that the next message gets.
        """
        if self.base is None or not self.is_alone:
            return []
        # No row is stored below its place: one whose place is the next one can't be there yet.
        return [(row, self.base + row) for row in missing if self.base + row == end]

    def stored(self, row: int, offset: int) -> None:
        """Note that a row was stored, all of the planned ones before it, too."""
        if not self._has(row):
            self._put(row, offset)
        self._below, self.end = row + 1, offset + 1

    def check_rows(self, rows: int) -> None:
        """Raise BatchChangedError if more rows are stored than the batch has."""
        more = max(self._found, default=-1)
        if more >= rows:
            text = f"{self._name}: {more + 1} rows were stored when the batch ran before, and it has {rows}"
            raise BatchChangedError(f"{text}: expected the same rows in the same order")
