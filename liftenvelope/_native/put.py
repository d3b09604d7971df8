r"""Rows of Arrow columns as NATS commands, and the acks for them: the twin of ``src/_fastput.pyx``.

A command and its ack, by the NATS client protocol and ADR-50::

    PUB <subject> <reply> <size>\r\n<value>\r\n
    HPUB <subject> <reply> <size of headers> <size>\r\nNATS/1.0\r\n<lines>\r\n<value>\r\n
    MSG <inbox><number> <sid> <size>\r\n{"stream":"ORDERS","seq":17}\r\n

Columns come as the buffers of Arrow's large arrays: offsets of 64 bits, and the data. None of them has nulls.
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
    """Rows of bytes, none of them null.

    Args:
        length: How many rows.
        first: Which of the offsets is that of row 0.
        offsets: Where the rows begin, and where the last ends: integers of 64 bits.
        data: What they point into.

    Raises:
        UsageError: The offsets point elsewhere.
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
    """What a command has beside the row itself.

    Args:
        reply: Where the ack is to go, up to the number; empty for nowhere.
        reply_tail: What stands behind the number.
        id_head: A header with the number of the row: its name and what stands before the number. Or empty.
        count_head: Likewise one with the same number as the reply.
        closing: Lines of headers behind those, each with its end.
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
        """The lines of the headers that it adds."""
        ident = b"%b%d\r\n" % (self.id_head, number) if self.id_head else b""
        counted = b"%b%d\r\n" % (self.count_head, count) if self.count_head else b""
        return ident + counted + self.closing


class Commands:
    """Rows that can be put on the wire, whole or in spans.

    Args:
        values: The payloads.
        subjects: The subjects: of each row, or a single one, or those that ``which`` names.
        which: The index of each row's subject, as integers of 32 bits; None for those of the same place.
        lines: The lines of each row's headers; None for no headers.

    Raises:
        UsageError: The columns do not fit together.
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
        """The subject of a row."""
        return self._subjects[i]

    def oversize(self, limit: int, form: Form, number: int, count: int) -> tuple[int, int]:
        """The first row that is longer than the limit with its headers, and how long; (-1, 0) for none.

        Args:
            limit: In bytes.
            form: What the commands will have.
            number: The number of row 0.
            count: What the reply of row 0 has for a number.
        """
        for i in range(self.length):
            size = len(self._values[i]) + len(self._block(i, form, number + i, count + i))
            if size > limit:
                return i, size
        return -1, 0

    def reach(self, start: int, stop: int, nbytes: int) -> int:
        """Where to stop so that no more than so many bytes go out, or one row, from start on."""
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
        """The commands of rows start to stop.

        Args:
            start: The first row.
            stop: The row behind the last.
            form: What they have beside the rows.
            number: The number of row ``start``.
            count: What its reply has for a number.
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
    """The first of them from start on that is not plain: others may be published on as well, or not; or -1.

    Plain are visible ASCII characters, no empty token, no wildcard as a token, 3,500 bytes at most.
    """
    for i in range(start, subjects.length):
        tokens = subjects.rows[i].split(b".")
        if not _PLAIN_SUBJECT.fullmatch(subjects.rows[i]) or {b"", b"*", b">"} & {*tokens}:
            return i
    return -1


def header_lines(
    rows: int, first: int, ends: Buffer | None, names: Column, values: Column, dropped: tuple[bytes, ...]
) -> tuple[int, bytes, bytes]:
    """The lines of the headers of each row.

    Args:
        rows: How many rows.
        first: Which of the ends is where row 0 begins.
        ends: Where each row's headers begin, and where the last's end: integers of 32 bits.
        names: Of the headers of all rows; of a repeated name the last value counts, at the first place.
        values: Of the same.
        dropped: Names of those that are left out.

    Returns:
        The first row that has a header which can't be sent, or -1; and where the lines of each row begin and
        end, as integers of 64 bits, and the lines.
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
    """Which publishes are acked, of those that are numbered in a row.

    Args:
        inbox: What the subjects of acks begin with, up to the number.
        sid: The number of the subscription that they come by.
        number: That of the first publish.
        size: How many publishes may be without their ack at a time.
        empty: Whether an answer without a word is an ack, as within an atomic batch (ADR-50).

    Attributes:
        floor: All publishes before this number are acked.
        acked: How many are.
        duplicates: How many of them were stored before.
        first, last: The lowest and the highest sequence that they got; 0 for none.
    """

    def __init__(self, inbox: bytes, sid: int, number: int, size: int, empty: bool) -> None:
        if number < 0 or size <= 0:
            raise UsageError(f"number={number}, size={size}: expected 0 or more, and 1 or more")
        self.floor = number
        self.acked = self.duplicates = self.first = self.last = 0
        self._size = size
        self._beyond: set[int] = set()
        self._empty = empty
        self._head = b""
        self.follow(inbox, sid)

    def follow(self, inbox: bytes, sid: int) -> None:
        """Go on with another subscription."""
        number = rb"MSG %b([0-9]{1,18}) %d " % (re.escape(inbox), sid)
        self._frame = re.compile(number + rb"([0-9]{1,9})\r\n")

    def learn(self, head: bytes) -> None:
        """Know what acks have before the sequence, so that :meth:`feed` takes them."""
        self._head = head

    def take(self, number: int, sequence: int, duplicate: bool) -> bool:
        """Count an ack; return whether it is the first for that number."""
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
        """Count the acks that have come; return where something else begins, or what has not come whole."""
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
