"""HPACK that remembers: header blocks that were seen before are neither encoded nor decoded again.

The calls of one method have the same headers, but for their time limit, and after the first of them all of
these are in HPACK's dynamic tables. From then on the same headers are the same few indices, and the other way
round, as long as the table does not change. Every change goes through two methods of the table
(RFC 7541, 2.3.2 and 4.3), so those count, and what is remembered is forgotten when the count has gone on. A
block that changes the table itself is not remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from liftenvelope.rpc._http2 import Decoder, Encoder, HeaderTable, HeaderTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RememberingDecoder", "RememberingEncoder"]

#: How many blocks are remembered, and how long one of them may be, in bytes.
_BLOCKS: Final = 64
_LONGEST: Final = 1024

_K = TypeVar("_K")
_V = TypeVar("_V")


class _CountingTable(HeaderTable):
    """A table of header fields that counts its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        """Put a field into the table, which may throw others out."""
        self.changes += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        """The size that the table may have; setting it may throw fields out."""
        return self._maxsize

    @maxsize.setter
    def maxsize(self, size: int) -> None:
        self.changes += 1
        HeaderTable.maxsize.__set__(self, size)  # type: ignore[attr-defined]


class RememberingEncoder(Encoder):
    """Encodes header fields as h2's own encoder does, without Huffman coding.

    hpack's Huffman coder takes time quadratic in the length of a value: a status text of 1 MB stopped a
    server for a minute. A plain string takes 3 ms and is some 20 % longer.

    Fields that are not to be indexed, such as time limits, and what follows them are encoded every time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.header_table: _CountingTable = _CountingTable()
        self._blocks: dict[tuple[Any, ...], bytes] = {}
        self._changes = 0

    @property
    def header_table_size(self) -> int:
        """The size that the table may have."""
        return self.header_table.maxsize

    @header_table_size.setter
    def header_table_size(self, size: int) -> None:
        # When told a size twice, hpack forgets that it has not yet told the peer of it.
        if size != self.header_table.maxsize:
            Encoder.header_table_size.__set__(self, size)  # type: ignore[attr-defined]

    def encode(self, headers: Iterable[Any], huffman: bool = False) -> bytes:
        """Return the block for the fields."""
        fields = tuple(headers)
        table = self.header_table
        if table.resized:
            # The block begins with the new size (RFC 7541, 4.2).
            return super().encode(fields, huffman)
        fixed = next((i for i, field in enumerate(fields) if not _is_indexable(field)), len(fields))
        if self._changes != table.changes:
            self._changes = table.changes
            self._blocks.clear()
        block = self._blocks.get(fields[:fixed])
        if block is None:
            block = super().encode(fields[:fixed], huffman)
            if self._changes == table.changes:
                _remember(self._blocks, fields[:fixed], block)
        for field in fields[fixed:]:
            block += _short_literal(field) or super().encode((field,), huffman)
        return block


def _remember(known: dict[_K, _V], key: _K, value: _V) -> None:
    if len(known) >= _BLOCKS:
        # Those that are of use come again at once.
        known.clear()
    known[key] = value


def _is_indexable(field: Any) -> bool:
    return not isinstance(field, HeaderTuple) or field.indexable


def _short_literal(field: Any) -> bytes:
    """Return a field that is never to be indexed (RFC 7541, 6.2.3); nothing for any other, or a long one."""
    name, value = field[:2]
    if _is_indexable(field) or not (type(name) is type(value) is bytes and len(name) < 127 > len(value)):
        return b""
    return b"\x10%c%b%c%b" % (len(name), name, len(value), value)


class RememberingDecoder(Decoder):
    """Decodes header blocks as h2's own decoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.header_table: _CountingTable = _CountingTable()
        self._decoded: dict[bytes, tuple[HeaderTuple, ...]] = {}
        self._changes = 0

    def recall(self, data: bytes) -> list[HeaderTuple] | None:
        """Return the fields of a block that is remembered, None for any other."""
        if self._changes != self.header_table.changes:
            self._changes = self.header_table.changes
            self._decoded.clear()
        found = self._decoded.get(data)
        return None if found is None else list(found)

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """Return the fields of a block."""
        if raw and (found := self.recall(data)) is not None:
            return found
        fields, table = list(super().decode(data, raw)), self.header_table
        if raw and self._changes == table.changes and len(data) <= _LONGEST:
            _remember(self._decoded, bytes(data), tuple(fields))
        return fields
