"""Data source classes of Spark for the formats ``liftbridge`` and ``jetstream``.

Spark creates them on the driver and again in every task. Partitions, commit messages and offsets carry their
shared state. The logic is in :mod:`liftenvelope.spark._source_cores` and
:mod:`liftenvelope.spark._writing`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final

from liftenvelope._checks import require
from liftenvelope.bulk.narrowing import Condition, Operator
from liftenvelope.spark._options import SinkOptions, SourceOptions, row_options, sink_options, source_options
from liftenvelope.spark._schema import check_packed, check_sink, spark_ddl, spark_schema
from liftenvelope.spark._source_cores import BatchSource, StreamingSource, pushed_condition
from liftenvelope.spark._writing import TaskWritten, write_task
from liftenvelope.spark.errors import OptionError

require("pyspark", "spark")

from pyspark import TaskContext  # noqa: E402 - after require(), which names the missing extra
from pyspark.sql.datasource import (  # noqa: E402
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema  # noqa: E402
from pyspark.sql.streaming.datasource import (  # noqa: E402
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

__all__ = [
    "JetStreamDataSource",
    "LiftbridgeDataSource",
]

# Local properties that Spark sets in a task of a streaming sink. They stay the same when a batch runs again,
# also after a restart.
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@cache
def _spare_modules() -> None:
    """Exempt a worker's imported modules from garbage collection, from its first task on.

    Spark's workers collect all garbage after every task, which takes 40 ms to traverse modules that never
    become garbage.
    """
    gc.collect()  # freezing would keep existing garbage forever
    gc.freeze()


#: Operator of each filter of Spark that narrows a query.
_OPERATORS: Final[dict[type[Filter], Operator]] = {
    EqualTo: "=",
    In: "in",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    StringStartsWith: "prefix",
}


def _condition(found: Filter) -> Condition | None:
    """Return the condition that a filter of Spark stands for; None if it is not understood."""
    operator = _OPERATORS.get(type(found))
    if operator is None:
        return None
    path, value = found.attribute, found.value
    return pushed_condition(path, operator, value)


def _begin_task() -> None:
    if TaskContext.get() is not None:
        _spare_modules()


def _is_first() -> bool:
    """Return True in the first task of a write. Spark makes one for a DataFrame without partitions, too."""
    context = TaskContext.get()
    return context is not None and context.partitionId() == 0


def _rows(source: BatchSource | StreamingSource, partition: InputPartition) -> Iterator[Any]:
    _begin_task()
    # For a query with nothing to read, Spark makes one partition without a value.
    return iter(()) if partition.value is None else source.read(partition.value)


@dataclass
class Committed(WriterCommitMessage):
    """Commit message: the result of one task."""

    written: TaskWritten


class BatchReader(DataSourceReader):
    """Reads a batch query."""

    def __init__(self, options: SourceOptions) -> None:
        self._source = BatchSource(options)

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each range, as of now."""
        return [InputPartition(span) for span in self._source.spans()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a partition as Arrow record batches."""
        return _rows(self._source, partition)


class PushingBatchReader(BatchReader):
    """Reads a batch query, narrowed by its filters. Spark refuses the class while push-down is disabled.

    Spark keeps one plan of the partitions for a DataFrame, and each pushed filter replaces it. A source can't
    tell the queries of a DataFrame apart, so the class is for those with a single query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the query by its filters; return those that Spark must check as well."""
        again = self._source.push(_condition(found) for found in filters)
        return [found for found, needed in zip(filters, again, strict=True) if needed]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a streaming query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._source = StreamingSource(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position at which the query begins."""
        return self._source.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the batch limit; :meth:`latestOffset` applies the limits that Spark can't express."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch."""
        return self._source.latest(start, limited=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the streams, shown as ``latestOffset`` in the query's progress."""
        return self._source.newest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query at the current ends of the streams."""
        self._source.stop_here()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition for each range of a batch."""
        return [InputPartition(span) for span in self._source.spans(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a partition as Arrow record batches."""
        return _rows(self._source, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Set the cursors, if the option ``commitCursor`` is set; the checkpoint keeps the offsets."""
        self._source.done(end)

    def stop(self) -> None:
        """Close the connections. Spark does not always call this; they also close with the process."""
        self._source.close()


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish the rows of a task; return when all are acked."""
        _begin_task()
        return Committed(write_task(self._options, iterator, None, is_first=_is_first()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: acked rows are stored already."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: stored rows can't be removed."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish the rows of a task; return when all are acked."""
        _begin_task()
        return Committed(write_task(self._options, iterator, self._message_id(), is_first=_is_first()))

    def _message_id(self) -> str | None:
        if not self._options.once:
            return None
        context = TaskContext.get()
        query, batch = (
            (context.getLocalProperty(name) for name in (_QUERY, _BATCH)) if context else (None, None)
        )
        if context is None or query is None or batch is None:
            text = "needs the query and batch id, which Spark did not pass"
            raise OptionError(f"deliveryGuarantee='effectively-once' {text}; leave it out")
        return f"{query}:{batch}:{context.partitionId()}"

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: acked rows are stored already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: stored rows can't be removed, and the next run of the batch writes them again."""


class _Streams(DataSource):
    format: ClassVar[str]

    def __init__(self, options: Mapping[str, Any]) -> None:
        # Spark reads this attribute.
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format

    def schema(self) -> str:
        """Return the columns of a source."""
        return spark_ddl(row_options(self.format, self.options))

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader of a batch query."""
        self._check_columns(schema)
        options = source_options(self.format, self.options, streaming=False)
        return PushingBatchReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        self._check_columns(schema)
        return StreamReader(source_options(self.format, self.options, streaming=True))

    def _check_columns(self, schema: Any) -> None:
        """Raise OptionError if the query gives other columns than those of the source.

        Spark would only see it in a task that reads a row.
        """
        options = row_options(self.format, self.options)
        if not to_arrow_schema(schema, timezone="UTC").equals(spark_schema(options)):
            expected = f"schema() must have exactly the columns {spark_ddl(options)}, got"
            raise OptionError(f"{expected} {schema.simpleString()}; leave it out, and use select()")

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch query."""
        if overwrite:
            raise OptionError("mode('overwrite'): a stream can't be overwritten; use mode('append')")
        return BatchWriter(self._sink(schema, streaming=False))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return the writer of a streaming query."""
        if overwrite:
            raise OptionError("outputMode('complete'): a stream can't be overwritten; use 'append'")
        return StreamWriter(self._sink(schema, streaming=True))

    def _sink(self, schema: Any, *, streaming: bool) -> SinkOptions:
        options = sink_options(self.format, self.options, streaming=streaming)
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        check_sink(
            self.format,
            columns,
            topic=options.topic,
            subject=options.subject,
            once=options.once,
            encodes=options.payload is not None,
            envelope=options.envelope,
        )
        if options.payload is not None and options.payload.packed:
            names = [name for name, _ in columns]
            check_packed(self.format, names, subject=options.subject, headers=options.headers)
        return options


class LiftbridgeDataSource(_Streams):
    """Data source for Liftbridge streams."""

    format = "liftbridge"


class JetStreamDataSource(_Streams):
    """Data source for JetStream streams."""

    format = "jetstream"
