"""HPACK with a cache: a header block seen before is neither encoded nor decoded again.

The calls of one method have the same headers except for the timeout. After the first call all of these
headers are in HPACK's dynamic tables. From then on the same headers encode to the same indices, and the same
indices decode to the same headers, for as long as the table does not change.

Invariant: every table change goes through ``add`` or ``maxsize`` (RFC 7541, 2.3.2 and 4.3), which count the
changes. The cache is cleared when the count has moved since it was filled. A block that itself changes the
table is not cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from liftenvelope.rpc._http2 import Decoder, Encoder, HeaderTable, HeaderTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RememberingDecoder", "RememberingEncoder"]

#: Number of blocks cached.
_BLOCKS: Final = 64
#: Length of the longest block cached, in bytes.
_LONGEST: Final = 1024

_K = TypeVar("_K")
_V = TypeVar("_V")


class _CountingTable(HeaderTable):
    """HPACK dynamic table that counts its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        """Add a field to the table, which may evict others."""
        self.changes += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        """Maximum size of the table. Setting it may evict fields."""
        return self._maxsize

    @maxsize.setter
    def maxsize(self, size: int) -> None:
        self.changes += 1
        HeaderTable.maxsize.__set__(self, size)  # type: ignore[attr-defined]


class RememberingEncoder(Encoder):
    """Caching counterpart of h2's own encoder, without Huffman coding.

    hpack's Huffman coder takes time quadratic in the length of a value: a status text of 1 MB stopped a
    server for a minute. A plain string takes 3 ms and is about 20 % longer.

    Fields that must not be indexed, such as timeouts, and all fields after them are encoded every time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.header_table: _CountingTable = _CountingTable()
        self._blocks: dict[tuple[Any, ...], bytes] = {}
        self._changes = 0

    @property
    def header_table_size(self) -> int:
        """Maximum size of the dynamic table."""
        return self.header_table.maxsize

    @header_table_size.setter
    def header_table_size(self, size: int) -> None:
        # If the same size is set twice, hpack forgets that it has not announced the first one to the peer.
        if size != self.header_table.maxsize:
            Encoder.header_table_size.__set__(self, size)  # type: ignore[attr-defined]

    def encode(self, headers: Iterable[Any], huffman: bool = False) -> bytes:
        """Return the header block for the fields."""
        fields = tuple(headers)
        table = self.header_table
        if table.resized:
            # The block must start with the new size (RFC 7541, 4.2).
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
        # Blocks in use are cached again at once.
        known.clear()
    known[key] = value


def _is_indexable(field: Any) -> bool:
    return not isinstance(field, HeaderTuple) or field.indexable


def _short_literal(field: Any) -> bytes:
    """Encode a never-indexed field (RFC 7541, 6.2.3); return ``b""`` if it is indexable or too long."""
    name, value = field[:2]
    if _is_indexable(field) or not (type(name) is type(value) is bytes and len(name) < 127 > len(value)):
        return b""
    return b"\x10%c%b%c%b" % (len(name), name, len(value), value)


class RememberingDecoder(Decoder):
    """Caching counterpart of h2's own decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.header_table: _CountingTable = _CountingTable()
        self._decoded: dict[bytes, tuple[HeaderTuple, ...]] = {}
        self._changes = 0

    def recall(self, data: bytes) -> list[HeaderTuple] | None:
        """Return the fields of a cached block, None for any other block."""
        if self._changes != self.header_table.changes:
            self._changes = self.header_table.changes
            self._decoded.clear()
        found = self._decoded.get(data)
        return None if found is None else list(found)

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """Return the fields of a header block."""
        if raw and (found := self.recall(data)) is not None:
            return found
        fields, table = list(super().decode(data, raw)), self.header_table
        if raw and self._changes == table.changes and len(data) <= _LONGEST:
            _remember(self._decoded, bytes(data), tuple(fields))
        return fields
