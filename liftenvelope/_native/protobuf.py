"""Protobuf wire format in plain Python, limited to the parts that envelopes need.

The twin of the cursor in ``src/_cursor.pxd``. Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from liftenvelope import _wire as w
from liftenvelope.errors import MalformedEnvelopeError, TruncatedEnvelopeError

if TYPE_CHECKING:
    from collections.abc import Iterator


def put_varint(out: bytearray, number: int) -> None:
    # Negative numbers are encoded as 64-bit two's complement: ten bytes.
    number &= 0xFFFF_FFFF_FFFF_FFFF
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def put_varint_field(out: bytearray, field: int, number: int) -> None:
    if number:
        out.append(field << 3 | w.VARINT)
        put_varint(out, number)


def put_bytes(out: bytearray, field: int, data: bytes) -> None:
    if data:
        out.append(field << 3 | w.LEN)
        put_varint(out, len(data))
        out += data


def put_text(out: bytearray, field: int, text: str) -> None:
    put_bytes(out, field, text.encode())


class Field(NamedTuple):
    number: int
    kind: int
    value: int  # of a varint
    start: int  # of length-delimited data
    end: int


class Reader:
    """Iterates over the fields of a protobuf message. All positions are absolute in the envelope."""

    def __init__(self, raw: bytes, start: int, end: int) -> None:
        self._raw = raw
        self._at = start
        self._end = end

    def fields(self) -> Iterator[Field]:
        """Yield varint and length-delimited fields in input order, unknown ones too; skip the others."""
        while self._at < self._end:
            begin = self._at
            number, kind = self._tag()
            if kind == w.VARINT:
                yield Field(number, kind, self._varint(), 0, 0)
            elif kind == w.LEN:
                start, end = self._length_delimited()
                yield Field(number, kind, 0, start, end)
            else:
                self._skip(number, kind, begin)

    def _tag(self) -> tuple[int, int]:
        begin = self._at
        tag = self._varint()
        if tag > 0xFFFF_FFFF:
            raise MalformedEnvelopeError(f"field tag {tag:#x} is larger than 32 bits", begin)
        if tag >> 3 == 0:
            raise MalformedEnvelopeError("field number 0", begin)
        return tag >> 3, tag & 7

    def _varint(self) -> int:
        number = 0
        for index in range(10):
            if self._at + index >= self._end:
                raise TruncatedEnvelopeError("the data ends within a varint", self._at)
            byte = self._raw[self._at + index]
            number |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if number > 0xFFFF_FFFF_FFFF_FFFF:
                    raise MalformedEnvelopeError("a varint is larger than 64 bits", self._at)
                self._at += index + 1
                return number
        raise MalformedEnvelopeError("a varint is longer than ten bytes", self._at)

    def _length_delimited(self) -> tuple[int, int]:
        begin = self._at
        length = self._varint()
        if length > self._end - self._at:
            left = self._end - self._at
            raise TruncatedEnvelopeError(f"a field of {length} bytes where {left} are left", begin)
        start = self._at
        self._at += length
        return start, self._at

    def _skip(self, number: int, kind: int, begin: int) -> None:
        if kind in (w.FIXED64, w.FIXED32):
            size = 8 if kind == w.FIXED64 else 4
            if size > self._end - self._at:
                left = self._end - self._at
                raise TruncatedEnvelopeError(f"a field of {size} bytes where {left} are left", self._at)
            self._at += size
        elif kind == w.START_GROUP:
            self._skip_group(number, begin)
        elif kind == w.END_GROUP:
            raise MalformedEnvelopeError("a group ends that has not begun", begin)
        else:
            raise MalformedEnvelopeError(f"wire type {kind} does not exist", begin)

    def _skip_group(self, number: int, begin: int) -> None:
        open_groups = [number]
        while open_groups:
            if len(open_groups) > w.MAX_GROUP_DEPTH:
                raise MalformedEnvelopeError(f"groups nest deeper than {w.MAX_GROUP_DEPTH}", begin)
            begin = self._at
            if begin >= self._end:
                raise TruncatedEnvelopeError("the data ends within a group", begin)
            number, kind = self._tag()
            if kind == w.START_GROUP:
                open_groups.append(number)
            elif kind == w.END_GROUP:
                if open_groups.pop() != number:
                    raise MalformedEnvelopeError("a group ends that has not begun", begin)
            elif kind == w.VARINT:
                self._varint()
            elif kind == w.LEN:
                self._length_delimited()
            else:
                self._skip(number, kind, begin)


def read_text(raw: bytes, field: Field, name: str) -> str:
    try:
        return raw[field.start : field.end].decode()
    except UnicodeDecodeError as exc:
        raise MalformedEnvelopeError(f"{name} is not valid UTF-8", field.start + exc.start) from None


def signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number
