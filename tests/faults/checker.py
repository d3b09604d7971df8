"""Compares what the servers have stored with what the package reported. No I/O."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tests.faults.ledger import PENDING, REFUSED, UNORDERED, Ledger, Span
from tests.faults.messages import Messages

__all__ = ["Checker"]

_NOBODY: Final = -1
_EXAMPLES: Final = 3
_MOST_COPIES: Final = 255


class Checker:
    """Takes the rows of a stream in the order of its log, partition by partition, and finds what is wrong.

    It keeps nine bytes for each row, and no values.

    Args:
        messages: What the messages look like.
        ledger: The outcomes that were reported.
        once: Whether no message may be stored twice.
        repeats: Whether offsets may repeat in the log, as after a SIGKILL of Liftbridge; the last row counts.
    """

    def __init__(self, messages: Messages, ledger: Ledger, *, once: bool, repeats: bool = False) -> None:
        self._messages = messages
        self._ledger = ledger
        self._once = once
        self._repeats = repeats
        self._copies = bytearray(len(ledger))
        # By partition: the index of the message at each offset, _NOBODY for none.
        self._log: dict[int, array[int]] = defaultdict(lambda: array("q"))
        self._newest: dict[int, int] = defaultdict(lambda: -1)
        # By partition and lane: the index of the last message in the log.
        self._last: dict[tuple[int, int], int] = defaultdict(lambda: -1)
        self._found: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = defaultdict(list)
        self.rows = 0

    def feed(
        self,
        partition: int,
        offsets: Sequence[int],
        keys: Iterable[bytes | None],
        values: Iterable[bytes],
        headers: Iterable[Mapping[str, bytes]],
    ) -> None:
        """Take some rows of a partition, which come after those that it was given before."""
        for offset, key, value, fields in zip(offsets, keys, values, headers, strict=True):
            self.rows += 1
            index = self._messages.index_of(value)
            self._place(partition, offset, max(index, _NOBODY))
            if index < -1 or index >= len(self._ledger):
                self._wrong("rows that nobody published", f"{value[:40]!r} at {partition}[{offset}]")
            elif index >= 0:
                self._take(partition, offset, index, (key or b"", value, dict(fields)))

    def _place(self, partition: int, offset: int, index: int) -> None:
        log = self._log[partition]
        if offset <= self._newest[partition] and not self._repeats:
            self._wrong("offsets that do not ascend", f"{partition}[{offset}]")
        if 0 <= offset < len(log):  # also above the newest, if more than one offset repeats
            log[offset] = index
        elif offset >= 0:
            log.extend(array("q", [_NOBODY]) * (offset - len(log)))
            log.append(index)
        self._newest[partition] = offset

    def _take(
        self, partition: int, offset: int, index: int, row: tuple[bytes, bytes, dict[str, bytes]]
    ) -> None:
        where = f"message {index} at {partition}[{offset}]"
        if row != self._messages.row(index):
            self._wrong("rows that differ from what was published", f"{where}: {row!r}"[:300])
        if partition != self._messages.partition(index):
            self._wrong("rows in another partition", where)
        copies = self._copies[index] = min(self._copies[index] + 1, _MOST_COPIES)
        if copies > 1:
            if self._once:
                self._wrong("rows stored twice", where)
            return
        if self._ledger.outcome[index] == REFUSED:
            self._wrong("rows that were reported as not stored", where)
        lane = self._ledger.lane[index]
        if lane == UNORDERED:
            return
        last = self._last[partition, lane]
        if index < last:
            self._wrong("rows out of order", f"{where}, after message {last}")
        self._last[partition, lane] = max(index, last)

    def finish(self) -> list[str]:
        """Return what is wrong, one line for each kind; empty if nothing is."""
        for index, outcome in enumerate(self._ledger.outcome):
            if outcome == PENDING:
                self._wrong("messages without an outcome", f"message {index}")
            elif outcome >= 0 and self._at(self._messages.partition(index), outcome) != index:
                self._miss(index, outcome)
        for span in self._ledger.spans:
            self._check_span(span)
        found = [f"{count} {kind}: {'; '.join(self._examples[kind])}" for kind, count in self._found.items()]
        return found + self._ledger.violations

    def _miss(self, index: int, offset: int) -> None:
        partition = self._messages.partition(index)
        where = f"message {index}, acked at {partition}[{offset}], where {self._at(partition, offset)} is"
        stored = self._copies[index] > 0
        self._wrong("acked messages at another offset" if stored else "acked messages that are lost", where)

    def _at(self, partition: int, offset: int) -> int | None:
        """The index of the message at an offset."""
        log = self._log[partition]
        return log[offset] if 0 <= offset < len(log) else None

    def _check_span(self, span: Span) -> None:
        copies = self._copies[span.start : span.stop]
        stored = len(copies) - copies.count(0)
        where = f"messages {span.start} to {span.stop}: {stored} stored"
        if stored < span.least:
            self._wrong("spans with lost rows", f"{where}, {span.least} acked")
        if stored > span.most:
            self._wrong("spans with more rows than can be", f"{where}, {span.most} at most")
        for partition, (first, last) in (span.offsets or {}).items():
            ends = [self._at(partition, first), self._at(partition, last)]
            members = [span.start + i for i in range(self._messages.partitions)]
            firsts = [i for i in members if self._messages.partition(i) == partition and i < span.stop]
            if not firsts or ends[0] != firsts[0] or not self._is_last(span, partition, ends[1]):
                self._wrong("spans at other offsets", f"{where}, {partition}[{first}] to [{last}]: {ends}")

    def _is_last(self, span: Span, partition: int, index: int | None) -> bool:
        step = self._messages.partitions
        inside = index is not None and span.start <= index < span.stop <= index + step
        return inside and self._messages.partition(index or 0) == partition

    def _wrong(self, kind: str, example: str) -> None:
        self._found[kind] += 1
        if len(self._examples[kind]) < _EXAMPLES:
            self._examples[kind].append(example)
