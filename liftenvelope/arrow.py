"""Encode and decode batches of envelopes as Arrow columns, without a Python object per row.

    >>> import pyarrow as pa
    >>> from liftenvelope.arrow import decode_batch, encode_batch
    >>> envelopes = encode_batch(pa.array([b"21.5", b"19.0"]), keys=pa.array(["s1", "s2"]))
    >>> decode_batch(envelopes)["key"].to_pylist()
    [b's1', b's2']

Needs ``pip install 'liftenvelope[arrow]'``. Slices and nulls are supported without conversion. The GIL is
released while rows are processed, and the bytes are copied once.

An absent key, ack inbox or correlation id is null in the columns (the wire format does not distinguish absent
from empty). The value of a valid envelope is never null. A ``large_binary`` or view array as input gives
columns with 64-bit offsets, a ``binary`` array gives columns with 32-bit offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from liftenvelope._arrow_rows import (
    LARGE,
    MAX_CHUNK,
    SMALL,
    VIEWS,
    column_of,
    header_column_of,
    offsets_of,
    whole,
)
from liftenvelope._checks import (
    as_bytes,
    as_choice,
    as_list,
    as_names,
    as_optional_text,
    as_text,
    require,
)
from liftenvelope._native import batch
from liftenvelope._native.payloads import read_stored
from liftenvelope.envelope import unmarshal_ack, unmarshal_message
from liftenvelope.errors import EnvelopeError, InternalError, UsageTypeError
from liftenvelope.types import AckPolicy, as_request_policy

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = require("pyarrow", "arrow")

__all__ = [
    "ACK_FIELDS",
    "MESSAGE_FIELDS",
    "STORED_SCHEMA",
    "decode_acks",
    "decode_batch",
    "encode_batch",
    "encoded_columns",
    "request_columns",
    "stored_batch",
]

OnError: TypeAlias = Literal["raise", "null", "raw"]


#: Column names of :func:`decode_batch`.
MESSAGE_FIELDS = (
    "key",
    "value",
    "headers",
    "ack_inbox",
    "correlation_id",
    "ack_policy",
    "expected_offset",
    "error",
)
#: Column names of :func:`decode_acks`.
ACK_FIELDS = (
    "stream",
    "partition_subject",
    "msg_subject",
    "offset",
    "ack_inbox",
    "correlation_id",
    "ack_policy",
    "reception_timestamp",
    "commit_timestamp",
    "ack_error",
    "error",
)
#: Schema of :func:`stored_batch`.
STORED_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in {
            "offset": pa.int64(),
            "key": pa.binary(),
            "value": pa.binary(),
            "timestamp": pa.timestamp("ns", "UTC"),
            "stream": pa.string(),
            "partition": pa.int32(),
            "subject": pa.string(),
            "reply_subject": pa.string(),
            "headers": pa.map_(pa.string(), pa.binary()),
            "correlation_id": pa.string(),
        }.items()
    ]
)
_MESSAGE_TEXTS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "ack_inbox": pa.string(),
    "correlation_id": pa.string(),
}
_MESSAGE_NUMBERS = {"ack_policy": pa.int32(), "expected_offset": pa.int64()}
_ACK_NUMBERS = {
    "offset": pa.int64(),
    "ack_policy": pa.int32(),
    "reception_timestamp": pa.timestamp("ns", "UTC"),
    "commit_timestamp": pa.timestamp("ns", "UTC"),
    "ack_error": pa.int32(),
}


def encode_batch(
    values: Any,
    *,
    keys: Any = None,
    headers: Any = None,
    ack_inbox: str | None = None,
    correlation_ids: Any = None,
    ack_policy: AckPolicy | int = AckPolicy.LEADER,
    expected_offsets: Any = -1,
    crc: bool = False,
) -> pa.BinaryArray | pa.ChunkedArray:
    r"""Encode an envelope for every row.

    Args:
        values: The payloads: an Arrow array or chunked array (binary, string, large or view), or any
            iterable of bytes-like objects. A null value gives a null envelope.
        keys: Key of each row, in the same forms as ``values``; null for no key.
        headers: Headers of each row: an Arrow ``map<string, binary>`` array (or ``map<string, string>``),
            or an iterable of mappings; null or None for no headers. If a name repeats in a row, the last
            value counts, at the position of the first.
        ack_inbox: NATS subject for all acks. Default: no acks.
        correlation_ids: Correlation id of each row: strings, in the same forms as ``values``.
        ack_policy: When the server sends the acks, for all rows. Default: once the leader has stored the
            message.
        expected_offsets: Offset that each message must get: an Arrow array of integers, an iterable of int,
            or one int for all rows. -1 (the default) or null: any.
        crc: True to protect the payloads by a CRC-32C.

    Returns:
        A ``binary`` array. It is chunked if the envelopes have 2 GiB or more in total, or if ``values`` is
        chunked.

    Raises:
        UsageError: Columns differ in length, the buffers of an array are broken, or a value has the wrong
            type; the text then names the row.
        EnvelopeTooLargeError: A row would crash the server or has 2 GiB or more; the text names the row.

    Example:
        >>> encode_batch([b"hello"], ack_inbox="my.inbox", correlation_ids=["1"])[0].as_py()[-8:]
        b'inboxZ\x011'
    """
    envelopes = encoded_columns(
        values,
        keys=keys,
        headers=headers,
        ack_inbox=ack_inbox,
        correlation_ids=correlation_ids,
        ack_policy=ack_policy,
        expected_offsets=expected_offsets,
        crc=crc,
    )
    chunks: list[pa.BinaryArray] = []
    start = 0
    while start < envelopes.length or not chunks:
        stop, size = envelopes.reach(start, MAX_CHUNK)
        chunks.append(_binary_array(envelopes, start, stop, size))
        start = stop
    chunked = len(chunks) > 1 or isinstance(values, pa.ChunkedArray)
    return pa.chunked_array(chunks, pa.binary()) if chunked else chunks[0]


def encoded_columns(
    values: Any,
    *,
    keys: Any = None,
    headers: Any = None,
    ack_inbox: str | None = None,
    correlation_ids: Any = None,
    ack_policy: AckPolicy | int = AckPolicy.LEADER,
    expected_offsets: Any = -1,
    crc: bool = False,
) -> batch.Envelopes:
    """Check and measure a batch for :func:`encode_batch`, without encoding it yet."""
    rows = column_of(values, "values")
    inbox = as_optional_text("ack_inbox", ack_inbox).encode()
    return batch.Envelopes(
        rows,
        None if keys is None else column_of(keys, "keys"),
        None if headers is None else header_column_of(headers),
        batch.Column.same(inbox, rows.length) if inbox else None,
        None if correlation_ids is None else column_of(correlation_ids, "correlation_ids", text=True),
        int(as_request_policy("ack_policy", ack_policy)),
        offsets_of(expected_offsets, rows.length),
        crc,
    )


def request_columns(
    stream: str,
    values: Any,
    *,
    keys: Any,
    headers: Any,
    partitions: memoryview,
    policy: int,
    ident: str,
    expected: memoryview | None = None,
) -> batch.Requests:
    """Check rows to publish on a Liftbridge stream as gRPC requests, without serialising them yet.

    Args:
        stream: Name of the stream.
        values: The payloads, in the forms of :func:`encode_batch`; none may be null.
        keys: Key of each row; see :func:`encode_batch`.
        headers: Headers of each row; see :func:`encode_batch`.
        partitions: Partition of each row, as 32-bit integers.
        policy: When the server sends the acks.
        ident: Prefix of the correlation ids.
        expected: Offset that each row must get, as 64-bit integers. Default: any.

    Raises:
        UsageError: As in :func:`encode_batch`; also for headers that the server sets itself.
        EnvelopeTooLargeError: As in :func:`encode_batch`.
    """
    return batch.Requests(
        as_text("stream", stream).encode(),
        column_of(values, "values"),
        None if keys is None else column_of(keys, "keys"),
        None if headers is None else header_column_of(headers),
        partitions,
        policy,
        ident.encode(),
        expected,
    )


def _binary_array(envelopes: batch.Envelopes, start: int, stop: int, size: int) -> pa.BinaryArray:
    rows = stop - start
    # Allocated from Arrow's own pool, which keeps its pages. malloc would map new pages each time.
    offsets, data, validity = (pa.allocate_buffer(n) for n in ((rows + 1) * 4, size, (rows + 7) // 8))
    nulls = envelopes.write(start, stop, offsets, data, validity)
    return pa.Array.from_buffers(pa.binary(), rows, [validity if nulls else None, offsets, data], nulls)


def decode_batch(
    array: Any,
    *,
    on_error: OnError = "raise",
    binary_view: bool = False,
    fields: Sequence[str] = MESSAGE_FIELDS,
) -> pa.RecordBatch:
    """Decode message envelopes into columns.

    Args:
        array: An Arrow array of binary, large binary or binary views (chunks are combined), or an iterable of
            bytes-like objects. A null gives a row of nulls.
        on_error: Handling of rows that are not valid message envelopes. ``"raise"`` (the default): raise the
            error of the first such row. ``"null"``: all columns of the row except ``error`` are null.
            ``"raw"``: the same, but ``value`` has the whole row, as the server stores it.
        binary_view: True to return ``value`` as views into the data of the array, without a copy. The views
            keep the data alive. The array must be ``binary`` or ``large_binary``.
        fields: Columns to return, in this order; by default all. Others are not made, which takes less time.
            Rows are checked whole all the same.

    Returns:
        Columns ``key``, ``value`` (binary), ``headers`` (map<string, binary>), ``ack_inbox``,
        ``correlation_id`` (string), ``ack_policy`` (int32: the number of an AckPolicy; unknown numbers are
        kept, because the enumeration is open), ``expected_offset`` (int64, -1 for any) and ``error`` (string,
        null for valid rows).

    Raises:
        EnvelopeError: A row is invalid and ``on_error="raise"``; the text names the row.
        EnvelopeTooLargeError: The header names or values have more than 2 GiB in total.
        UsageError: The array is broken or of a wrong type, is too large for views, or an option is unknown;
            a field is unknown or given twice, or there is none.

    Example:
        >>> decode_batch([b"no envelope"], on_error="raw")["value"].to_pylist()
        [b'no envelope']
    """
    names = as_names("fields", fields, MESSAGE_FIELDS)
    as_choice("on_error", on_error, ("raise", "null", "raw"))
    as_choice("binary_view", binary_view, (False, True))
    if binary_view and (kind := getattr(array, "type", type(array).__name__)) not in SMALL + LARGE:
        raise UsageTypeError(f"array must be an Arrow array of binary with binary_view=True, got {kind}")
    rows, large = _rows(array)
    decoded = batch.MessageColumns(rows, large, on_error == "raw", pa.allocate_buffer, binary_view, names)
    arrays = dict[str, pa.Array]()
    if "error" in names or on_error == "raise":
        arrays["error"] = _errors(rows, decoded.bad, unmarshal_message, on_error)
    columns = decoded.columns()
    kinds = _MESSAGE_TEXTS | ({"value": pa.binary_view()} if binary_view else {})
    for name in names:
        if name == "headers":
            arrays[name] = _headers(columns, rows.length)
        elif name in _MESSAGE_NUMBERS:
            arrays[name] = _numbers(columns, name, _MESSAGE_NUMBERS[name], rows.length)
        elif name != "error":
            arrays[name] = _texts(columns[name], kinds[name], large)
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], names)


def decode_acks(array: Any, *, on_error: Literal["raise", "null"] = "raise") -> pa.RecordBatch:
    """Decode ack envelopes into columns.

    Args:
        array: The envelopes, in the forms of :func:`decode_batch`.
        on_error: Handling of rows that are not valid ack envelopes: ``"raise"`` (the default) or ``"null"``,
            as in :func:`decode_batch`.

    Returns:
        Columns ``stream``, ``partition_subject``, ``msg_subject``, ``ack_inbox``, ``correlation_id``
        (string), ``offset`` (int64), ``ack_policy``, ``ack_error`` (int32: the numbers of an AckPolicy and
        an AckError; unknown numbers are kept), ``reception_timestamp``, ``commit_timestamp`` (ns, UTC) and
        ``error`` (string: why the row is not an ack, null for valid rows).

    Raises:
        EnvelopeError: A row is invalid and ``on_error="raise"``; the text names the row.
        UsageError: The array does not hold bytes, its buffers are broken, or on_error is unknown.

    Example:
        >>> from liftenvelope.envelope import Ack, marshal_ack
        >>> decode_acks([marshal_ack(Ack(stream="s", offset=7))])["offset"].to_pylist()
        [7]
    """
    as_choice("on_error", on_error, ("raise", "null"))
    rows, large = _rows(array)
    decoded = batch.AckColumns(rows, large, pa.allocate_buffer)
    errors = _errors(rows, decoded.bad, unmarshal_ack, on_error)
    columns = decoded.columns()
    made: dict[str, pa.Array] = {"error": errors}
    for name in ("stream", "partition_subject", "msg_subject", "ack_inbox", "correlation_id"):
        made[name] = _texts(columns[name], pa.string(), large)
    for name, kind in _ACK_NUMBERS.items():
        made[name] = _numbers(columns, name, kind, rows.length)
    return pa.RecordBatch.from_arrays([made[name] for name in ACK_FIELDS], ACK_FIELDS)


def stored_batch(payloads: list[bytes]) -> pa.RecordBatch:
    r"""Decode bare messages, as a server sends them to subscribers, into columns.

    Args:
        payloads: Serialised ``Message``\ s, bytes-like, without envelopes.

    Returns:
        One row per message, with the columns of :data:`STORED_SCHEMA`: ``offset`` (int64), ``key``,
        ``value`` (binary), ``timestamp`` (ns, UTC), ``stream``, ``subject``, ``reply_subject``,
        ``correlation_id`` (string), ``partition`` (int32) and ``headers`` (map<string, binary>, without the
        two that the server adds: ``subject`` and ``reply``). No value is null: absent fields are empty or 0,
        as in protobuf.

    Raises:
        EnvelopeError: A payload is malformed or truncated. The text begins with ``message`` and the index of
            the payload; the offset is relative to the payload.
        EnvelopeTooLargeError: The payloads have more than 2 GiB in total.
        UsageTypeError: The argument is not a list, or a payload is not bytes-like; the text has its index.

    Example:
        >>> stored_batch([bytes.fromhex("08071a0568656c6c6f")])["value"].to_pylist()
        [b'hello']
    """
    rows = batch.Column.of_sequence(as_list("payloads", payloads), "payloads", False)
    stored = batch.StoredColumns(rows, pa.allocate_buffer)
    if stored.bad >= 0:
        row = as_bytes(f"payloads[{stored.bad}]", rows.row(stored.bad))
        read_stored(stored.bad, row)
        raise InternalError(f"the batch codec refused what the codec reads: {row[:200].hex()}")
    columns = stored.columns()
    arrays = [_stored_column(columns, field, rows.length) for field in STORED_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=STORED_SCHEMA)


def _stored_column(columns: Mapping[str, Any], field: pa.Field, rows: int) -> pa.Array:
    if pa.types.is_map(field.type):
        return _headers(columns, rows)
    if pa.types.is_binary(field.type) or pa.types.is_string(field.type):
        return _texts(columns[field.name], field.type, False)
    return _numbers(columns, field.name, field.type, rows)


def _rows(array: Any) -> tuple[Any, bool]:
    if isinstance(array, pa.ChunkedArray):
        array = whole(array)
    large = isinstance(array, pa.Array) and (array.type in LARGE or array.type in VIEWS)
    column = column_of(array, "array")
    return column, large or column.nbytes > MAX_CHUNK


def _errors(rows: Any, bad: list[int], reader: Callable[[bytes], Any], on_error: OnError) -> pa.Array:
    """Return the error texts of invalid rows: the batch codec only reports their indexes."""
    if not bad:
        return pa.nulls(rows.length, pa.string())
    texts: list[str | None] = [None] * rows.length
    for row in bad:
        error = _fault(reader, rows.row(row))
        if on_error == "raise":
            raise type(error)(f"row {row}: {error.args[0]}", error.offset)
        texts[row] = str(error)
    return pa.array(texts, pa.string())


def _fault(reader: Callable[[bytes], Any], row: bytes) -> EnvelopeError:
    try:
        reader(row)
    except EnvelopeError as error:
        return error
    raise InternalError(f"the batch codec refused what the codec reads: {row[:200].hex()}")


def _texts(buffers: tuple[Any, ...], kind: pa.DataType, large: bool) -> pa.Array:
    rows, nulls, *parts = buffers
    if large and kind not in VIEWS:
        kind = pa.large_binary() if pa.types.is_binary(kind) else pa.large_string()
    return pa.Array.from_buffers(kind, rows, [_optional(part) for part in parts], nulls)


def _numbers(columns: Mapping[str, Any], name: str, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [_optional(columns["validity"]), pa.py_buffer(columns[name])])


def _optional(buffer: Any) -> pa.Buffer | None:
    return None if buffer is None else pa.py_buffer(buffer)


def _headers(columns: Mapping[str, Any], rows: int) -> pa.MapArray:
    return pa.MapArray.from_buffers(
        pa.map_(pa.string(), pa.binary()),
        rows,
        [_optional(columns["validity"]), pa.py_buffer(columns["header_offsets"])],
        children=[_entries(columns["header_names"], columns["header_values"])],
    )


def _entries(names: tuple[Any, ...], values: tuple[Any, ...]) -> pa.StructArray:
    fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
    children = [_texts(names, pa.string(), False), _texts(values, pa.binary(), False)]
    return pa.StructArray.from_arrays(children, fields=fields)
