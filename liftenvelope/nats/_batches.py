"""Columns of a batch to publish: Python sequences, Arrow arrays, or a mixture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from liftenvelope._checks import as_bytes, as_int64, as_optional_bytes
from liftenvelope._native import batch
from liftenvelope.errors import UsageError, UsageTypeError

#: Value of ``expected_offset`` that accepts any offset.
ANY_OFFSET = -1
_COLUMNS = ("value", "key", "headers", "partition", "expected_offset", "correlation_id")


def _is_arrow(column: Any) -> bool:
    return type(column).__module__.partition(".")[0] == "pyarrow"


def _sliceable(column: Any, name: str) -> Any:
    """Return a column that can be sliced and read more than once: other iterables become lists."""
    if column is None or _is_arrow(column) or isinstance(column, list | tuple):
        return column
    if isinstance(column, str | bytes | bytearray | memoryview | dict) or not isinstance(column, Iterable):
        raise UsageTypeError(f"{name} must be an iterable of rows, got {type(column).__name__}")
    return list(column)


def _python(column: Any) -> Sequence[Any]:
    rows: Sequence[Any] = column.to_pylist() if _is_arrow(column) else column
    return rows


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Rows of a batch, sliced as the batch is sent.

    Attributes:
        values, keys, headers, correlation_ids: Sequences or Arrow arrays.
        partitions: Partition of each row; None if the partitioner chooses.
        expected_offsets: One integer for all rows, or a column.
    """

    values: Any
    keys: Any
    headers: Any
    partitions: Sequence[int] | None
    expected_offsets: Any
    correlation_ids: Any

    @classmethod
    def of(
        cls,
        values: Any,
        keys: Any,
        headers: Any,
        partitions: Any,
        expected_offsets: Any,
        correlation_ids: Any,
    ) -> Self:
        """Build the rows from any of the accepted forms of a batch.

        Raises:
            UsageError: Columns differ in length, are given twice, or have unknown names.
        """
        given = (keys, headers, partitions, correlation_ids)
        if _is_arrow(values) and hasattr(values, "column_names"):
            if any(column is not None for column in given) or expected_offsets is not ANY_OFFSET:
                raise UsageError("no other column must be given with a record batch, which has all of them")
            return cls._of_table(values)
        rows = cls(
            _sliceable(values, "values"),
            _sliceable(keys, "keys"),
            _sliceable(headers, "headers"),
            None if partitions is None else _python(_sliceable(partitions, "partitions")),
            expected_offsets
            if isinstance(expected_offsets, int)
            else _sliceable(expected_offsets, "expected_offsets"),
            _sliceable(correlation_ids, "correlation_ids"),
        )
        rows._check_lengths()
        return rows

    @classmethod
    def _of_table(cls, table: Any) -> Self:
        unknown = [name for name in table.column_names if name not in _COLUMNS]
        if unknown or "value" not in table.column_names:
            what = f"a column {unknown[0]!r}" if unknown else "no column value"
            raise UsageError(
                f"a record batch must have columns of {', '.join(_COLUMNS)}, value among them, got {what}"
            )
        found = {name: table[name] for name in table.column_names}
        partition = found.get("partition")
        return cls(
            found["value"],
            found.get("key"),
            found.get("headers"),
            None if partition is None else partition.to_pylist(),
            found.get("expected_offset", ANY_OFFSET),
            found.get("correlation_id"),
        )

    def _check_lengths(self) -> None:
        for name in ("keys", "headers", "partitions", "expected_offsets", "correlation_ids"):
            column = getattr(self, name)
            if column is not None and not isinstance(column, int) and len(column) != len(self.values):
                raise UsageError(
                    f"{name} must have as many rows as values, {len(self.values)}, got {len(column)}"
                )

    def __len__(self) -> int:
        return len(self.values)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over key and value of each row, to choose its partition."""
        keys = [None] * len(self) if self.keys is None else _python(self.keys)
        for index, (key, value) in enumerate(zip(keys, _python(self.values), strict=True)):
            if value is None:
                raise UsageError(f"row {index}: value must not be null")
            if isinstance(key, str):
                key = key.encode()  # noqa: PLW2901 - an Arrow column of strings
            yield as_optional_bytes(f"keys[{index}]", key), _plain(f"values[{index}]", value)

    def ids(self, start: int, stop: int) -> list[str] | None:
        """Return the caller's correlation ids of a range of rows; None if the caller gave none."""
        return None if self.correlation_ids is None else list(_python(self.correlation_ids[start:stop]))

    def envelopes(
        self, start: int, stop: int, ids: list[str] | None, inbox: str | None, policy: int, crc: bool
    ) -> batch.Envelopes:
        """Return a range of rows as envelopes that can be framed, checked and measured."""
        whole = start == 0 and stop == len(self)

        def cut(column: Any) -> Any:
            return column if whole or column is None or isinstance(column, int) else column[start:stop]

        values, keys, headers = cut(self.values), cut(self.keys), cut(self.headers)
        expected, correlation_ids = (
            cut(self.expected_offsets),
            cut(self.correlation_ids) if ids is None else ids,
        )
        if any(map(_is_arrow, (values, keys, headers, expected, correlation_ids))):
            from liftenvelope.arrow import encoded_columns

            return encoded_columns(
                values,
                keys=keys,
                headers=headers,
                ack_inbox=inbox,
                correlation_ids=correlation_ids,
                ack_policy=policy,
                expected_offsets=expected,
                crc=crc,
            )
        return batch.Envelopes(
            batch.Column.of_sequence(values, "values", False),
            None if keys is None else batch.Column.of_sequence(keys, "keys", False),
            None if headers is None else batch.HeaderColumn.of_sequence(headers),
            None if inbox is None else batch.Column.same(inbox.encode(), stop - start),
            None
            if correlation_ids is None
            else batch.Column.of_sequence(correlation_ids, "correlation_ids", True),
            int(policy),
            _int64s(expected),
            crc,
        )


def _int64s(expected: Any) -> int | bytes:
    if isinstance(expected, int):
        return as_int64("expected_offsets", expected)
    numbers = [as_int64(f"expected_offsets[{i}]", number) for i, number in enumerate(expected)]
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)


def _plain(name: str, value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else as_bytes(name, value)
