"""Encode rows as requests of a gRPC call, in plain Python: the reference for ``src/_fastbatch.pyx``."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from liftenvelope._native.payloads import publish_request
from liftenvelope._wire import SERVER_HEADERS
from liftenvelope.errors import EnvelopeTooLargeError, UsageError
from liftenvelope.types import as_request_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer

    from liftenvelope._native.columns import Column, HeaderColumn

__all__ = ["Requests", "request_row"]


def request_row(
    i: int,
    stream: bytes,
    value: bytes | None,
    key: bytes | None,
    headers: Mapping[bytes | None, bytes | None] | None,
    partition: int,
    ack_policy: int,
    correlation_id: bytes,
    expected_offset: int = -1,
) -> bytes:
    """Serialise the PublishRequest of one row; errors name the row. Used by both twins."""
    if value is None:
        raise UsageError(f"row {i} must have a value, got null")
    try:
        if headers and None in headers:
            raise UsageError(f"row {i}: a header name must not be null")
        named = {
            name.decode(): content or b"" for name, content in (headers or {}).items() if name is not None
        }
        for name in SERVER_HEADERS:
            if name in named:
                text = f"row {i}: headers must not have the name {name!r}, which the server overwrites"
                raise UsageError(text)
        return publish_request(
            stream.decode(),
            value,
            key=key,
            headers=named,
            partition=partition,
            correlation_id=correlation_id.decode(),
            ack_policy=ack_policy,
            expected_offset=expected_offset,
        )
    except UnicodeDecodeError:
        raise UsageError(f"row {i}: strings must be valid UTF-8") from None
    except EnvelopeTooLargeError as exc:
        raise EnvelopeTooLargeError(f"row {i}: {exc}") from None


class Requests:
    """Rows to publish over gRPC: checked and measured on construction, written in spans of rows.

    Args:
        stream: Name of the stream.
        values: The values; none of them is null.
        keys: The keys.
        headers: The headers.
        partitions: The number of each row's partition, as 32-bit integers.
        ack_policy: When the server sends the acks.
        ident: Prefix of the correlation ids.
        expected: Offset that each row must get, as 64-bit integers; None for any.

    Attributes:
        length: Number of rows.
        nbytes: Total size of the values, in bytes.
    """

    def __init__(
        self,
        stream: bytes,
        values: Column,
        keys: Column | None,
        headers: HeaderColumn | None,
        partitions: Buffer,
        ack_policy: int,
        ident: bytes,
        expected: Buffer | None = None,
    ) -> None:
        as_request_policy("ack_policy", ack_policy)
        self.length, self.nbytes = values.length, values.nbytes
        self._stream, self._policy, self._ident = stream, ack_policy, ident
        raw = bytes(partitions)
        lengths = {"keys": keys and keys.length, "headers": headers and headers.length}
        for name, length in {**lengths, "partitions": len(raw) >> 2}.items():
            if length is not None and length != self.length:
                raise UsageError(f"{name} has {length} rows, values {self.length}")
        self._partitions = struct.unpack_from(f"={self.length}i", raw)
        offsets = b"\xff" * 8 * self.length if expected is None else bytes(expected)
        if len(offsets) >> 3 != self.length:
            raise UsageError(f"expected has {len(offsets) >> 3} rows, values {self.length}")
        self._expected = struct.unpack_from(f"={self.length}q", offsets)
        self._rows = [
            (value, None if keys is None else keys.rows[i], None if headers is None else headers.rows[i])
            for i, value in enumerate(values.rows)
        ]
        for i in range(self.length):
            self._request(i, b"")

    def _request(self, i: int, ident: bytes) -> bytes:
        value, key, headers = self._rows[i]
        partition, expected = self._partitions[i], self._expected[i]
        return request_row(i, self._stream, value, key, headers, partition, self._policy, ident, expected)

    def frames(self, start: int, stop: int, number: int, limit: int, longest: int) -> tuple[int, bytes]:
        """Return the end of the longest span within the limits, and its requests with gRPC prefixes.

        Args:
            start: The first row.
            stop: The row after the last.
            number: Number at the end of the first row's correlation id; those of the other rows count up.
            limit: Maximum bytes of the span. The first request may exceed it.
            longest: Maximum bytes of a request. The span ends before a longer one.
        """
        if not 0 <= start <= stop <= self.length or number < 0:
            raise UsageError(f"rows {start} to {stop} are not a span of {self.length} rows")
        out, total = bytearray(), 0
        for i in range(start, stop):
            request = self._request(i, b"%b%d" % (self._ident, number + i - start))
            size = len(request)
            if size > longest or (i > start and size > limit - total):
                return i, bytes(out)
            total += size + 5
            out += b"\0" + size.to_bytes(4, "big") + request
        return stop, bytes(out)
