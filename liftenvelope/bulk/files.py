"""Read and write rows as files: Parquet, and JSON with one line per row."""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import itertools
import json
import math
import os
import reprlib
import secrets
import select
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from liftenvelope._checks import MAX_INT32, is_encodable, require
from liftenvelope.bulk._archive.files import check_parquet
from liftenvelope.bulk._archive.places import check_arrow_path
from liftenvelope.bulk._archive.row_groups import rows_of_groups
from liftenvelope.errors import UsageError
from liftenvelope.payload.json_values import json_values

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    from liftenvelope.bulk._engine.schema import pa

    pq = require("pyarrow.parquet", "bulk")

__all__ = ["file_when_complete", "from_lines", "open_parquet", "save_parquet", "to_lines"]

_BINARY: Final = ("key", "value")
#: Suffix of a JSON name whose value is base64, because the bytes are not UTF-8.
_BASE64: Final = "_base64"
#: Lines for a batch of rows. A pipe with fewer lines is not waited for.
_LINES: Final = 1024
#: Bytes to read from a file at a time, and how many of these to read for a batch of rows.
_CHUNK: Final = 1024 * 1024
_CHUNKS: Final = 8
#: What asking for the state of a file raises if it is in memory or in an archive, or has too large a number.
_NO_SYSTEM_FILE: Final = (AttributeError, OSError, TypeError, ValueError)
#: Types that JSON has.
_JSON: Final = (str, int, float, list, tuple, dict)
#: Rows to read from a Parquet file at a time.
_BATCH_ROWS: Final = 65_536
_SCHEMA: Final = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.map_(pa.string(), pa.binary()),
        "subject": pa.string(),
        "partition": pa.int32(),
    }
)


@contextlib.contextmanager
def file_when_complete(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only after the block has ended without an error.

    A file that exists is replaced, and its mode kept. Of a symbolic link, the file that it names is replaced.
    """
    path = Path(os.path.realpath(path))
    # A new name in each call: another run may write the same file at the same time.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    with draft.open("xb") as file:
        try:
            with contextlib.suppress(FileNotFoundError):
                draft.chmod(stat.S_IMODE(path.stat().st_mode))
            yield file
            file.close()  # writes what is left, and may fail
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def save_parquet(reader: pa.RecordBatchReader, path: Path) -> int:
    """Write all rows into one file and return their number. The file appears only when it is complete.

    Raises:
        UsageError: Parquet lacks the type of a column.
    """
    check_parquet(reader.schema)
    rows = 0
    with (
        file_when_complete(path) as file,
        pq.ParquetWriter(file, reader.schema, compression="zstd") as writer,
    ):
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def open_parquet(path: Path) -> pa.RecordBatchReader:
    """Return a reader of a file's rows.

    Raises:
        UsageError: The file is not a Parquet file, or Arrow can't open a file of this name.
        OSError: The file can't be read.
    """
    check_arrow_path(path)
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as exc:
        raise UsageError(f"{path} must be a Parquet file: {exc}") from exc
    return pa.RecordBatchReader.from_batches(file.schema_arrow, rows_of_groups(file, _BATCH_ROWS))


def to_lines(batch: pa.RecordBatch) -> Iterator[str]:
    r"""Return each row as JSON.

    UTF-8 bytes become text. Other bytes become base64: the name of the column gets the suffix ``_base64``,
    and a header value becomes ``{"base64": ...}``. Times are in ISO format with all decimals of their unit,
    timestamps with a zone in UTC. Numbers that JSON lacks become the texts ``NaN``, ``Infinity`` and
    ``-Infinity``. Nulls are left out. A map is an object, or a list of pairs if a key is neither text nor a
    number.

    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"value": [b"one", b"\xff"], "offset": [7, 8]})
    >>> list(to_lines(batch))
    ['{"value": "one", "offset": 7}', '{"value_base64": "/w==", "offset": 8}']
    """
    columns = [(field.name, _values(batch.column(i), field.type)) for i, field in enumerate(batch.schema)]
    for row in range(batch.num_rows):
        found: dict[str, Any] = {}
        for name, values in columns:
            _put(found, name, values[row])
        try:
            yield json.dumps(found, ensure_ascii=False, allow_nan=False, default=_plain)
        except ValueError:
            yield json.dumps(_finite(found), ensure_ascii=False, allow_nan=False, default=_plain)


def _finite(value: Any) -> Any:
    """Return a value with texts in place of the numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, dict):
        return {_finite(name): _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _values(column: pa.Array, kind: pa.DataType) -> list[Any]:
    found = json_values(column)
    if pa.types.is_map(kind):
        return [None if row is None else _map(row) for row in found]
    return found


def _map(row: list[tuple[Any, Any]]) -> Any:
    pairs = [(_plain(name), _plain(value)) for name, value in row]
    return dict(pairs) if all(isinstance(name, str | int | float) for name, _ in pairs) else pairs


def _put(row: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bytes):
        try:
            row[name] = value.decode()
        except UnicodeDecodeError:
            row[name + _BASE64] = base64.b64encode(value).decode()
    else:
        row[name] = value


def _plain(value: Any) -> Any:
    """Return a value inside a map, a list or a struct as JSON can carry it."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    if not isinstance(value, bytes):
        return value if value is None or isinstance(value, _JSON) else str(value)  # such as a Decimal, a UUID
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def from_lines(lines: Iterable[str | bytes]) -> pa.RecordBatchReader:
    """Return a reader of the rows in JSON lines, in the format of :func:`to_lines`, for a write.

    If ``lines`` is a binary file such as ``sys.stdin.buffer``, the reader returns lines as they come: a pipe
    that pauses does not hold back those before the pause.

    Lines given as bytes must be UTF-8; a byte order mark before the first line is ignored. The fields that
    servers fill (``offset``, ``timestamp``) are ignored. Empty lines are skipped. Lines are parsed while the
    reader is read, so an invalid line raises UsageError, with its number, only when the reader reaches it.
    """
    groups = _lines_that_came(lines) if hasattr(lines, "read1") else _groups(lines)
    return pa.RecordBatchReader.from_batches(_SCHEMA, _batches(groups))


def _groups(lines: Iterable[str | bytes]) -> Iterator[list[str | bytes]]:
    rest = iter(lines)
    while group := [*itertools.islice(rest, _LINES)]:
        yield group


def _lines_that_came(file: Any) -> Iterator[list[str | bytes]]:
    """Yield the lines of a binary file in groups, without waiting for more once there is one."""
    parts: list[bytes] = []
    count = 0
    while chunk := _read(file):
        parts.append(chunk)
        count += chunk.count(b"\n")
        if count and (count >= _LINES or len(parts) >= _CHUNKS or not _has_more(file)):
            lines, _, rest = b"".join(parts).rpartition(b"\n")
            yield [*lines.split(b"\n")]
            parts, count = [rest], 0
    if rest := b"".join(parts):
        yield [*rest.split(b"\n")]


def _read(file: Any) -> bytes:
    """Return the next bytes of a file; none at its end, and not while a pipe pauses that does not block."""
    chunk = file.read1(_CHUNK)
    if not chunk and not _blocks(file):
        select.select([file], [], [])
        chunk = file.read1(_CHUNK)
    return chunk or b""


def _blocks(file: Any) -> bool:
    try:
        return os.get_blocking(file.fileno())
    except _NO_SYSTEM_FILE:
        return True


def _has_more(file: Any) -> bool:
    """Return True if a read would not wait, as far as can be known."""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except _NO_SYSTEM_FILE:
        return False


def _batches(groups: Iterable[list[str | bytes]]) -> Iterator[pa.RecordBatch]:
    number = 0
    for group in groups:
        rows = []
        for line in group:
            number += 1
            if (text := _text(number, line)).strip():
                rows.append(_row(number, text))
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def _text(number: int, line: str | bytes) -> str:
    if isinstance(line, str):
        return line
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as exc:
        text = f"line {number} must be UTF-8, got {exc.reason} at byte {exc.start}: write bytes as base64, in"
        raise UsageError(f"{text} key_base64 and value_base64") from exc


def _row(number: int, line: str) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except json.JSONDecodeError as exc:  # its text has a line of its own, which is always 1
        raise UsageError(f"line {number} must be JSON: {exc.msg} at column {exc.colno}") from exc
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"line {number} must be JSON: {exc}") from exc
    if not isinstance(given, dict):
        raise UsageError(f"line {number} must be a JSON object, got {type(given).__name__}")
    row: dict[str, Any] = {name: _bytes(number, given, name) for name in _BINARY}
    if row["value"] is None:
        raise UsageError(f"line {number} must have 'value' or 'value_base64'")
    headers = given.get("headers") or {}
    if not isinstance(headers, dict):
        raise UsageError(f"line {number}: headers must be an object, got {type(headers).__name__}")
    row["headers"] = [
        (_encodable(number, "header name", name), _decoded(number, name, content, isinstance(content, dict)))
        for name, content in headers.items()
    ]
    return {**row, **_places(number, given)}


def _places(number: int, given: dict[str, Any]) -> dict[str, Any]:
    subject, partition = given.get("subject"), given.get("partition")
    if subject is not None and not isinstance(subject, str):
        raise UsageError(f"line {number}: subject must be text, got {reprlib.repr(subject)}")
    if subject is not None:
        _encodable(number, "subject", subject)
    is_number = isinstance(partition, int) and not isinstance(partition, bool)
    if partition is not None and not (is_number and 0 <= partition <= MAX_INT32):
        raise UsageError(
            f"line {number}: partition must be a number from 0 to {MAX_INT32}, got {reprlib.repr(partition)}"
        )
    return {"subject": subject, "partition": partition}


def _bytes(number: int, given: dict[str, Any], name: str) -> bytes | None:
    if (encoded := given.get(name + _BASE64)) is not None:
        return _decoded(number, name, encoded, True)
    text = given.get(name)
    return None if text is None else _decoded(number, name, text, False)


def _decoded(number: int, name: str, given: Any, is_base64: bool) -> bytes:
    if isinstance(given, dict):
        given = given.get("base64")
    if isinstance(given, str):
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(given, validate=True) if is_base64 else given.encode()
    raise UsageError(f"line {number}: {name!r} must be text, or base64, got {reprlib.repr(given)}")


def _encodable(number: int, what: str, text: str) -> str:
    if is_encodable(text):
        return text
    fault = "must not contain a lone surrogate, which UTF-8 cannot encode"
    raise UsageError(f"line {number}: {what} {fault}, got {reprlib.repr(text)}")
