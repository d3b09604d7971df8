"""Sinks of Spark whose servers fail: a job runs again until it has succeeded. Needs PySpark and Java."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from liftenvelope.spark import recommended_conf, register
from tests.faults import running
from tests.faults.children import make_table
from tests.faults.messages import Messages
from tests.faults.plan import Plan
from tests.faults.running import Path, Result, Run
from tests.spark.conftest import ROOT, SETTINGS

__all__ = ["run_plan"]

_PARTITIONS: Final = 3
#: Rows of one job, as a part of the goal.
_PART: Final = 0.25
_JOB: Final = 300.0
_SCHEMA: Final = "value binary, headers map<string, binary>"
_MORE: Final = {"nats1": ", msgId string", "liftbridge1": ", key binary, partition int"}


@cache
def _session() -> SparkSession:
    """The session of this process. Its workers import the tests."""
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    builder: Any = SparkSession.builder
    for name, value in {**SETTINGS, **recommended_conf()}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    return session


def _work(run: Run) -> None:
    while not run.is_over():
        indexes = run.ledger.take_many(max(100, int(run.plan.goal * _PART)))
        # Its tasks write at the same time.
        run.ledger.unorder(indexes)
        while True:
            try:
                with run.timed("DataFrameWriter.save", _JOB):
                    _save(run, indexes)
            except PySparkException as exc:
                run.ledger.errors[type(exc).__name__] += 1
                if "UsageError" in str(exc) or "OptionError" in str(exc):
                    raise
                run.is_over()  # raises where nothing goes on any more
            else:
                break
        run.ledger.stored_span(indexes, None)


def _save(run: Run, indexes: range) -> None:
    """Write rows in a job of three tasks."""
    seed, partitions, has_api = run.plan.seed, run.messages.partitions, run.scene.cluster is not None

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        messages = Messages(seed, partitions, keyed=has_api)
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            table = make_table(messages, numbers, partitioned=has_api)
            if not has_api:
                ids = pa.array([f"{seed}-{number}" for number in numbers])
                table = table.append_column("msgId", ids)
            yield from table.combine_chunks().to_batches()

    frame = _session().range(indexes.start, indexes.stop, 1, 3)
    schema = _SCHEMA + _MORE[run.plan.scene]
    options = {"servers": ",".join(run.scene.direct_source), "topic": run.stream, "maxInFlight": "500"}
    if not has_api:
        options |= {"servers": run.scene.nats_urls[0], "subject": f"{run.stream}.rows"}
    kind = "liftbridge" if has_api else "jetstream"
    frame.mapInArrow(rows, schema).write.format(kind).options(**options).mode("append").save()


#: Once into JetStream, by ids; into Liftbridge at least once.
_PATH: Final = Path(_work, _PARTITIONS, once=lambda plan: plan.scene == "nats1")


def run_plan(plan: Plan, started: Callable[[Run], None]) -> Result:
    """Carry out a plan, once Spark has started: that takes as long as the rest."""
    _session().range(3).mapInArrow(lambda batches: batches, "id long").collect()
    return running.run_plan(plan, _PATH, started)
