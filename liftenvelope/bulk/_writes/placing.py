"""Choose the partition of a Liftbridge stream for each row of a table. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftenvelope._checks import require
from liftenvelope.client.core import check_partition
from liftenvelope.errors import NoSuchPartitionError, UsageError, UsageTypeError
from liftenvelope.partition import CustomPartitioner, KeyPartitioner, Partitioner, make_partitioner
from liftenvelope.rpc.status import StatusCode

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from liftenvelope.partition import PartitionChoice
else:
    from liftenvelope.bulk._engine.schema import pa

    pc = require("pyarrow.compute", "bulk")

__all__ = ["Placing", "byte_column", "taken"]

_KINDS: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_null,
)
_VIEWS: Final = (pa.binary_view(), pa.string_view())


class Placing:
    """Chooses the partition of each row: the row's own, the fixed one, or the partitioner's choice.

    Args:
        stream: Name of the stream.
        partition: Partition of rows without one; None to use the partitioner.
        partitioner: ``"key"``, ``"round_robin"``, a function, or a partitioner.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self, stream: str, partition: int | None, partitioner: str | PartitionChoice | Partitioner
    ) -> None:
        self._stream = stream
        self._partition = None if partition is None else check_partition(partition)
        self._partitioner = _partitioner(partitioner)
        self._count = 0

    def open(self, count: int) -> None:
        """Set the number of partitions of the stream.

        Raises:
            NoSuchPartitionError: The stream does not have the fixed partition.
        """
        self._count = count
        if self._partition is not None and self._partition >= count:
            raise self._missing(self._partition)

    def _missing(self, partition: int) -> NoSuchPartitionError:
        text = f"stream {self._stream!r} has no partition {partition}, but {self._count} from 0"
        return NoSuchPartitionError(StatusCode.NOT_FOUND, text)

    def of(self, batch: pa.RecordBatch) -> pa.Int32Array:
        """Return the partition of each row.

        Raises:
            NoSuchPartitionError: A row names a partition that does not exist.
            UsageError: The column ``partition`` or a result of the partitioner is not a partition number.
        """
        if "partition" not in batch.schema.names:
            return self._chosen(batch)
        given = _numbers(batch.column("partition"))
        bounds = pc.min_max(given).as_py()
        for found in (bounds["min"], bounds["max"]):
            if found is not None and not 0 <= found < self._count:
                raise self._missing(found)
        if given.null_count == 0:
            return given
        # The partitioner sees these rows alone, so its choice does not depend on how rows are batched.
        without = given.is_null()
        return pc.replace_with_mask(given, without, self._chosen(taken(batch, pc.indices_nonzero(without))))

    def _chosen(self, batch: pa.RecordBatch) -> pa.Int32Array:
        """Return the partition of each row that has none of its own."""
        fixed = self._partition
        if (
            fixed is None
            and isinstance(self._partitioner, KeyPartitioner)
            and "key" not in batch.schema.names
        ):
            fixed = 0  # the same partition as for an empty key
        if fixed is not None:
            return pa.repeat(pa.scalar(fixed, pa.int32()), batch.num_rows)
        keys, values = _bytes(batch, "key"), _bytes(batch, "value")
        choose, count = self._partitioner.partition, self._count
        chosen = [
            choose(self._stream, key, value or b"", count) for key, value in zip(keys, values, strict=True)
        ]
        return pa.array(chosen, pa.int32())


def _partitioner(given: str | PartitionChoice | Partitioner) -> Partitioner:
    if isinstance(given, str) or not (callable(given) or hasattr(given, "partition")):
        if given in ("key", "round_robin"):
            return make_partitioner(given)
        problem = UsageError if isinstance(given, str) else UsageTypeError
        raise problem(f'partitioner must be "key", "round_robin" or a function, got {given!r}')
    return CustomPartitioner(given) if callable(given) else given


def _numbers(column: pa.Array) -> pa.Int32Array:
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise UsageTypeError(f"data: column 'partition' must be of integers, got {column.type}")
    try:
        return column.cast(pa.int32())
    except pa.ArrowInvalid as exc:
        raise UsageError(f"data: column 'partition' must fit in 32 bits: {exc}") from exc


def byte_column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column of binary or string, without a dictionary; None if there is no column of that name.

    Raises:
        UsageTypeError: The column has another type.
    """
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(check(kind) for check in _KINDS):
        raise UsageTypeError(f"data: column {name!r} must be of binary or string, got {column.type}")
    if pa.types.is_dictionary(column.type):
        # Not dictionary_decode(), which can't decode views, such as those of a Categorical of polars.
        return column.dictionary.cast(pa.large_binary()).take(column.indices)
    return column


def taken(batch: pa.RecordBatch, rows: pa.UInt64Array) -> pa.RecordBatch:
    """Return some rows of a batch, with the columns that a server stores.

    Raises:
        UsageTypeError: As for :func:`byte_column`.
    """
    columns = {}
    for name in ("value", "key"):
        if (column := byte_column(batch, name)) is not None:
            # Arrow can't take rows of views, such as the strings of polars.
            plain = column.cast(pa.large_binary()) if column.type in _VIEWS else column
            columns[name] = plain.take(rows)
    if "headers" in batch.schema.names:
        columns["headers"] = batch.column("headers").take(rows)
    return pa.RecordBatch.from_pydict(columns)


def _bytes(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    column = byte_column(batch, name)
    if column is None:
        return [None] * batch.num_rows
    found: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return found
