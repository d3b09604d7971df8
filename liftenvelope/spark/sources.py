"""The classes that Spark makes: sources and sinks named ``liftbridge`` and ``jetstream``.

Spark makes them where it plans, and once more in every task; what they share travels in partitions, commit
messages and offsets. They are thin: see :mod:`liftenvelope.spark._source_cores` and
:mod:`liftenvelope.spark.writing`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from liftenvelope._extras import require
from liftenvelope.spark._source_cores import BatchSource, StreamSource
from liftenvelope.spark.errors import OptionError
from liftenvelope.spark.options import SinkOptions, SourceOptions, row_options, sink_options, source_options
from liftenvelope.spark.schema import check_sink, spark_ddl
from liftenvelope.spark.writing import TaskWritten, write_task

require("pyspark", "spark")

from pyspark import TaskContext  # noqa: E402 - said first where it is missing
from pyspark.sql.datasource import (  # noqa: E402
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (  # noqa: E402
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

__all__ = ["JetStreamDataSource", "LiftbridgeDataSource"]

# What Spark tells a task of a streaming sink. Stable when a batch is run again, also after a restart.
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@cache
def _spare_modules() -> None:
    """Keep what a worker has imported out of its collections of garbage, from its first task on.

    Spark's workers collect all garbage after every task: 40 ms of going through modules, none of which is.
    """
    gc.collect()  # what is garbage already would otherwise be kept
    gc.freeze()


def _begin_task() -> None:
    if TaskContext.get() is not None:
        _spare_modules()


def _rows(source: BatchSource | StreamSource, partition: InputPartition) -> Iterator[Any]:
    _begin_task()
    # Of a query that has nothing to read Spark makes one partition of its own, without a value.
    return iter(()) if partition.value is None else source.read(partition.value)


@dataclass
class Committed(WriterCommitMessage):
    """What one task has written."""

    written: TaskWritten


class BatchReader(DataSourceReader):
    """Reads a batch query."""

    def __init__(self, options: SourceOptions) -> None:
        self._source = BatchSource(options)

    def partitions(self) -> list[InputPartition]:
        """Return what each task reads, as it is now."""
        return [InputPartition(span) for span in self._source.spans()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one of them, as Arrow record batches."""
        return _rows(self._source, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a streaming query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._source = StreamSource(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the query begins."""
        return self._source.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch has; what Spark can't say of it is done where the end is chosen."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next batch goes."""
        return self._source.latest(start, limited=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return how far it could go: what the progress of the query shows as ``latestOffset``."""
        return self._source.newest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Have the query end where the streams end now."""
        self._source.stop_here()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return what each task of a batch reads."""
        return [InputPartition(span) for span in self._source.spans(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one of them, as Arrow record batches."""
        return _rows(self._source, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Show how far the query is, if that is wanted; the checkpoint has the offsets."""
        self._source.done(end)

    def stop(self) -> None:
        """Close the connections. Spark does not always call this; they end with the process, too."""
        self._source.close()


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish the rows of a task; return when all are acked."""
        _begin_task()
        return Committed(write_task(self._options, iterator, None))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: what is acked is stored."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: what is stored stays."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish the rows of a task; return when all are acked."""
        _begin_task()
        return Committed(write_task(self._options, iterator, self._message_id()))

    def _message_id(self) -> str | None:
        if not self._options.once:
            return None
        context = TaskContext.get()
        query, batch = (
            (context.getLocalProperty(name) for name in (_QUERY, _BATCH)) if context else (None, None)
        )
        if context is None or query is None or batch is None:
            text = "Spark does not say which batch of which query this is"
            raise OptionError(f"deliveryGuarantee='effectively-once': {text}; leave it out")
        return f"{query}:{batch}:{context.partitionId()}"

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: what is acked is stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: what is stored stays, and the next run of the batch writes it again."""


class _Streams(DataSource):
    format: ClassVar[str]

    def __init__(self, options: Mapping[str, Any]) -> None:
        # Spark passes it by this name.
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format

    def schema(self) -> str:
        """Return the columns of a source."""
        headers, envelope = row_options(self.format, self.options)
        return spark_ddl(headers=headers, envelope=envelope)

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        """Return what reads a batch query."""
        return BatchReader(source_options(self.format, self.options, streaming=False))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return what reads a streaming query."""
        return StreamReader(source_options(self.format, self.options, streaming=True))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        """Return what writes a batch query."""
        if overwrite:
            raise OptionError("mode('overwrite'): a stream can't be written anew; use mode('append')")
        return BatchWriter(self._sink(schema, streaming=False))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return what writes a streaming query."""
        if overwrite:
            raise OptionError("outputMode('complete'): a stream can't be written anew; use 'append'")
        return StreamWriter(self._sink(schema, streaming=True))

    def _sink(self, schema: Any, *, streaming: bool) -> SinkOptions:
        options = sink_options(self.format, self.options, streaming=streaming)
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        check_sink(self.format, columns, topic=options.topic, subject=options.subject, once=options.once)
        return options


class LiftbridgeDataSource(_Streams):
    """Streams of Liftbridge."""

    format = "liftbridge"


class JetStreamDataSource(_Streams):
    """Streams of JetStream."""

    format = "jetstream"
