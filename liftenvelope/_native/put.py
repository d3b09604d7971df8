r"""Encode rows of Arrow columns as NATS commands, and track their acks: the twin of ``src/_fastput.pyx``.

A command and its ack, by the NATS client protocol and ADR-50::

    PUB <subject> <reply> <size>\r\n<value>\r\n
    HPUB <subject> <reply> <size of headers> <size>\r\nNATS/1.0\r\n<lines>\r\n<value>\r\n
    MSG <inbox><number> <sid> <size>\r\n{"stream":"ORDERS","seq":17}\r\n

Columns are the buffers of Arrow's large arrays: 64-bit offsets, and data. They have no nulls.
"""

from __future__ import annotations

import re
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Acks", "Column", "Commands", "Form", "header_lines", "plain_subjects"]

_BEGIN: Final = b"NATS/1.0\r\n"
_PLAIN_SUBJECT: Final = re.compile(rb"[!-~]{1,3500}")
_HEADER_NAME: Final = re.compile(rb"[!-9;-~]+")
_LINE_END: Final = re.compile(rb"[\r\n]")


class Column:
    """Column of byte strings without nulls.

    Args:
        length: Number of rows.
        first: Index of row 0's offset.
        offsets: Start of each row and end of the last, as 64-bit integers.
        data: Data that the offsets refer to.

    Raises:
        UsageError: The offsets point outside of the data.
    """

    def __init__(self, length: int, first: int, offsets: Buffer | None, data: Buffer | None) -> None:
        self.length = length
        self.rows: list[bytes] = []
        if length == 0:
            return
        ends, raw = bytes(offsets or b""), bytes(data or b"")
        _require(length > 0 <= first < len(ends) // 8 - length, "its offsets are too short")
        found = struct.unpack_from(f"={length + 1}q", ends, first * 8)
        sound = (
            found[0] >= 0 and found[-1] <= len(raw) and all(begin <= end for begin, end in pairwise(found))
        )
        _require(sound, "its offsets point outside of its data")
        self.rows = [raw[begin:end] for begin, end in pairwise(found)]


def _require(sound: bool, what: str) -> None:
    if not sound:
        raise UsageError(f"the Arrow array is broken: {what}; its validate(full=True) says more")


class Form:
    """Parts of a command that do not come from the columns: reply subject and added headers.

    Args:
        reply: Reply subject for the ack, up to the number; empty for no reply subject.
        reply_tail: Reply subject after the number.
        id_head: Header line with the row's number, up to the number; empty for no such header.
        count_head: Header line with the same number as the reply, up to the number; empty for no such header.
        closing: Further header lines, each with its line end.
    """

    def __init__(
        self,
        reply: bytes = b"",
        reply_tail: bytes = b"",
        id_head: bytes = b"",
        count_head: bytes = b"",
        closing: bytes = b"",
    ) -> None:
        self.reply, self.reply_tail = reply, reply_tail
        self.id_head, self.count_head, self.closing = id_head, count_head, closing

    def _lines(self, number: int, count: int) -> bytes:
        """Return the added header lines."""
        ident = b"%b%d\r\n" % (self.id_head, number) if self.id_head else b""
        counted = b"%b%d\r\n" % (self.count_head, count) if self.count_head else b""
        return ident + counted + self.closing


class Commands:
    """Rows to encode as NATS commands, all at once or in spans.

    Args:
        values: The payloads.
        subjects: One subject per row, a single one for all rows, or distinct ones indexed by ``which``.
        which: Index of each row's subject, as 32-bit integers; None if ``subjects`` is not indexed.
        lines: Header lines of each row; None for no headers.

    Raises:
        UsageError: The columns do not match.
    """

    def __init__(self, values: Column, subjects: Column, which: Buffer | None, lines: Column | None) -> None:
        self.length = values.length
        self._values = values.rows
        self._subjects = subjects.rows
        if which is not None:
            found = struct.unpack_from(f"={self.length}i", _exact(which, self.length * 4))
            _require(all(0 <= item < subjects.length for item in found), "an index has no item")
            self._subjects = [subjects.rows[item] for item in found]
        elif subjects.length == 1:
            self._subjects = subjects.rows * self.length
        _require(len(self._subjects) == self.length, "its subjects are too few")
        _require(lines is None or lines.length == self.length, "its headers are too few")
        self._lines = None if lines is None else lines.rows

    def subject_at(self, i: int) -> bytes:
        """Return the subject of a row."""
        return self._subjects[i]

    def oversize(self, limit: int, form: Form, number: int, count: int) -> tuple[int, int]:
        """Return the first row larger than the limit, headers included, and its size; (-1, 0) for none.

        Args:
            limit: Limit in bytes.
            form: Reply subject and headers of the commands.
            number: Number of row 0.
            count: Number in the reply subject of row 0.
        """
        for i in range(self.length):
            size = len(self._values[i]) + len(self._block(i, form, number + i, count + i))
            if size > limit:
                return i, size
        return -1, 0

    def reach(self, start: int, stop: int, nbytes: int) -> int:
        """Return the end of the longest span from ``start`` with at most ``nbytes`` bytes, or of one row."""
        if not 0 <= start <= stop <= self.length:
            raise UsageError(f"{start} to {stop} are not rows of {self.length}")
        at, left = start, nbytes
        while at < stop:
            left -= len(self._values[at]) + len(self._subjects[at])
            left -= len(self._lines[at]) if self._lines is not None else 0
            if left < 0 and at > start:
                break
            at += 1
        return at

    def encode(self, start: int, stop: int, form: Form, number: int, count: int) -> bytes:
        """Encode the commands of rows ``start`` to ``stop``.

        Args:
            start: The first row.
            stop: The row after the last.
            form: Reply subject and headers of the commands.
            number: Number of row ``start``.
            count: Number in the reply subject of row ``start``.
        """
        if not 0 <= start <= stop <= self.length:
            raise UsageError(f"{start} to {stop} are not rows of {self.length}")
        found = []
        for i in range(start, stop):
            reply = b" %b%d%b" % (form.reply, count + i - start, form.reply_tail) if form.reply else b""
            block, value = self._block(i, form, number + i - start, count + i - start), self._values[i]
            words = b"%b%b" % (self._subjects[i], reply)
            if block:
                size = len(block) + len(value)
                found.append(b"HPUB %b %d %d\r\n%b%b\r\n" % (words, len(block), size, block, value))
            else:
                found.append(b"PUB %b %d\r\n%b\r\n" % (words, len(value), value))
        return b"".join(found)

    def _block(self, i: int, form: Form, number: int, count: int) -> bytes:
        lines = (self._lines[i] if self._lines is not None else b"") + form._lines(number, count)
        return b"%b%b\r\n" % (_BEGIN, lines) if lines else b""


def _exact(buffer: Buffer, size: int) -> bytes:
    raw = bytes(buffer)
    _require(len(raw) >= size, "its indices are too few")
    return raw


def plain_subjects(subjects: Column, start: int) -> int:
    """Return the first subject from ``start`` on that is not plain, or -1.

    A plain subject has visible ASCII characters only, no empty token, no wildcard token, and at most 3,500
    bytes. Other subjects may still be valid.
    """
    for i in range(start, subjects.length):
        tokens = subjects.rows[i].split(b".")
        if not _PLAIN_SUBJECT.fullmatch(subjects.rows[i]) or {b"", b"*", b">"} & {*tokens}:
            return i
    return -1


def header_lines(
    rows: int, first: int, ends: Buffer | None, names: Column, values: Column, dropped: tuple[bytes, ...]
) -> tuple[int, bytes, bytes]:
    """Encode the headers of each row as lines.

    Args:
        rows: Number of rows.
        first: Index of row 0's start in ``ends``.
        ends: Start of each row's headers and end of the last, as 32-bit integers.
        names: Header names of all rows. If a name repeats in a row, the last value counts, at the position of
            the first.
        values: Header values of all rows.
        dropped: Names of headers to drop.

    Returns:
        The first row with a header that can't be sent, or -1; the start of each row's lines and the end of
        the last, as 64-bit integers; and the lines.
    """
    raw = bytes(ends or b"")
    _require(rows >= 0 <= first < len(raw) // 4 - rows or rows == 0, "its offsets are too short")
    found = struct.unpack_from(f"={rows + 1}i", raw, first * 4) if rows else (0,)
    entries = min(names.length, values.length)
    sound = found[0] >= 0 and found[-1] <= entries and all(begin <= end for begin, end in pairwise(found))
    _require(sound, "its offsets point outside of its entries")
    offsets, lines = [0], bytearray()
    for i, (begin, end) in enumerate(pairwise(found)):
        headers = dict(zip(names.rows[begin:end], values.rows[begin:end], strict=True))
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name) or _LINE_END.search(value) or not _is_text(value):
                return i, b"", b""
            if name not in dropped:
                lines += b"%b: %b\r\n" % (name, value)
        offsets.append(len(lines))
    return -1, struct.pack(f"={rows + 1}q", *offsets), bytes(lines)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class Acks:
    """Ack tracker for consecutively numbered publishes.

    Invariant: ``floor`` is the ack floor, and only numbers in ``floor`` to ``floor + size - 1`` are counted.
    Numbers acked out of order wait in ``_beyond`` until the floor reaches them.

    Args:
        inbox: Prefix of the subjects of acks, up to the number.
        sid: Id of the subscription that receives the acks.
        number: Number of the first publish.
        size: Maximum number of publishes without an ack at a time.
        empty: True if an empty answer is an ack, as within an atomic batch (ADR-50).

    Attributes:
        floor: All publishes before this number are acked.
        acked: Number of publishes acked.
        duplicates: Number of acked publishes that were duplicates of stored messages.
        first, last: Lowest and highest stream sequence of the acks; 0 for none.
    """

    def __init__(self, inbox: bytes, sid: int, number: int, size: int, empty: bool) -> None:
        if number < 0 or size <= 0:
            raise UsageError(f"number must be at least 0 and size at least 1, got {number} and {size}")
        self.floor = number
        self.acked = self.duplicates = self.first = self.last = 0
        self._size = size
        self._beyond: set[int] = set()
        self._empty = empty
        self._head = b""
        self.follow(inbox, sid)

    def follow(self, inbox: bytes, sid: int) -> None:
        """Switch to another subscription."""
        number = rb"MSG %b([0-9]{1,18}) %d " % (re.escape(inbox), sid)
        self._frame = re.compile(number + rb"([0-9]{1,9})\r\n")

    def learn(self, head: bytes) -> None:
        """Set the bytes of an ack before the sequence, so that :meth:`feed` recognises acks."""
        self._head = head

    def take(self, number: int, sequence: int, duplicate: bool) -> bool:
        """Count an ack; return True if it is the first for that number."""
        if not self.floor <= number < self.floor + self._size or number in self._beyond:
            return False
        self.acked += 1
        self.duplicates += duplicate
        if sequence:
            self.first = min(self.first, sequence) if self.first else sequence
            self.last = max(self.last, sequence)
        self._beyond.add(number)
        while self.floor in self._beyond:
            self._beyond.discard(self.floor)
            self.floor += 1
        return True

    def feed(self, view: Buffer, start: int, end: int) -> int:
        """Count the received acks; return the start of the first other or incomplete input."""
        held = memoryview(view)
        if not 0 <= start <= end <= held.nbytes:
            raise UsageError(f"{start} to {end} are not a part of {held.nbytes} bytes")
        while (found := self._frame.match(held, start, end)) is not None:
            behind = found.end() + int(found[2])
            if behind + 2 > end or bytes(held[behind : behind + 2]) != b"\r\n":
                break
            if (ack := self._read(bytes(held[found.end() : behind]))) is None:
                break
            self.take(int(found[1]), *ack)
            start = behind + 2
        return start

    def _read(self, data: bytes) -> tuple[int, bool] | None:
        if not data:
            return (0, False) if self._empty else None
        if not self._head or not data.startswith(self._head):
            return None
        found = _SEQUENCE.fullmatch(data, len(self._head))
        return (int(found[1]), found[2] != b"}") if found else None


_SEQUENCE: Final = re.compile(rb'([1-9][0-9]{0,17})(}|,"duplicate": ?true})')
