"""Sizes that an Arrow IPC message declares, read before Arrow allocates anything by them.

A compressed buffer begins with its decoded size, and a record batch declares its number of rows. Both are
claims of the sender. Arrow believes them, so a message of some hundred bytes could ask for any amount of
memory. This module reads the claims from the flatbuffer of the message (format/Message.fbs of Arrow).
Arrow has verified the flatbuffer before pyarrow hands out its bytes.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

__all__ = ["Claims", "claims_of"]

_UINT16: Final = struct.Struct("<H")
_INT32: Final = struct.Struct("<i")
_UINT32: Final = struct.Struct("<I")
_INT64: Final = struct.Struct("<q")
_BUFFER: Final = struct.Struct("<qq")
#: Fields of a Message, a DictionaryBatch and a RecordBatch, by their number in the schema.
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_DATA = 1
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


class Claims(NamedTuple):
    """Sizes that a message declares.

    Attributes:
        rows: Number of rows.
        nbytes: Size of all buffers in bytes, decoded.
    """

    rows: int
    nbytes: int


def claims_of(metadata: bytes, body: memoryview) -> Claims:
    """Return the declared sizes of a message; zeros for a message that is no batch.

    Raises:
        ValueError: The metadata or the body is shorter than it declares.
    """
    try:
        return _claims(metadata, body)
    except (struct.error, IndexError) as exc:
        raise ValueError("a record batch that is shorter than it declares") from exc


def _claims(metadata: bytes, body: memoryview) -> Claims:
    root = _UINT32.unpack_from(metadata, 0)[0]
    kind_at, header_at = _field(metadata, root, _HEADER_TYPE), _field(metadata, root, _HEADER)
    kind = metadata[kind_at] if kind_at else 0
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or not header_at:
        return Claims(0, 0)
    batch = _follow(metadata, header_at)
    if kind == _DICTIONARY_BATCH:
        data_at = _field(metadata, batch, _DICTIONARY_DATA)
        if not data_at:
            return Claims(0, 0)
        batch = _follow(metadata, data_at)
    length_at, buffers_at = _field(metadata, batch, _LENGTH), _field(metadata, batch, _BUFFERS)
    rows = _INT64.unpack_from(metadata, length_at)[0] if length_at else 0
    is_compressed = bool(_field(metadata, batch, _COMPRESSION))
    return Claims(rows, _size(metadata, body, buffers_at, is_compressed=is_compressed))


def _size(metadata: bytes, body: memoryview, buffers_at: int, *, is_compressed: bool) -> int:
    if not buffers_at:
        return 0
    vector = _follow(metadata, buffers_at)
    count, size = _UINT32.unpack_from(metadata, vector)[0], 0
    for number in range(count):
        offset, length = _BUFFER.unpack_from(metadata, vector + 4 + number * _BUFFER.size)
        if offset < 0 or length < 0:
            raise ValueError("a buffer with a negative size")
        claimed = _INT64.unpack_from(body, offset)[0] if is_compressed and length >= _INT64.size else -1
        size += length if claimed == -1 else _positive(claimed)
    return size


def _positive(claimed: int) -> int:
    if claimed < 0:
        raise ValueError("a buffer with a negative size")
    return claimed


def _follow(data: bytes, at: int) -> int:
    return at + int(_UINT32.unpack_from(data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a table; 0 if it is absent."""
    vtable = table - _INT32.unpack_from(data, table)[0]
    slot = 4 + 2 * number
    if slot >= _UINT16.unpack_from(data, vtable)[0]:
        return 0
    offset = int(_UINT16.unpack_from(data, vtable + slot)[0])
    return table + offset if offset else 0
