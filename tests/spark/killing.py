"""A sink whose tasks are killed when all of their rows are stored, before Spark hears of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from liftenvelope.spark._sources import JetStreamDataSource, LiftbridgeDataSource

_KINDS = {"jetstream": JetStreamDataSource, "liftbridge": LiftbridgeDataSource}


class Killing(DataSource):  # type: ignore[misc] # mypy does not look into Spark
    """Takes two options more: ``of``, the format, and ``marks``, a folder for one file for each kill."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        given = dict(options)
        self._marks = given.pop("marks")
        self._sink = _KINDS[given.pop("of")](given)

    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _Writer(self._sink.streamWriter(schema, overwrite), self._marks)


class _Writer(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def __init__(self, writer: DataSourceStreamArrowWriter, marks: str) -> None:
        self._writer, self._marks = writer, marks

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        done = self._writer.write(iterator)
        context = TaskContext.get()
        assert context is not None
        mark = Path(self._marks) / str(context.partitionId())
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._writer.abort(messages, batchId)
