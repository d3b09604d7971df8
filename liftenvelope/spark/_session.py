"""Registers the formats in a Spark session and checks settings that are known to hang or crash."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["recommended_conf", "register", "setting_warnings", "worker_python"]

_SOCKETS = "spark.python.unix.domain.socket.enabled"
_PIPELINED = "spark.python.udf.pipelined.enabled"
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_COLUMNAR = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
_MOST_RECORDS = 10_000
_PYTHON = "spark.pyspark.python"
_PATHS_PYTHON = "python3"


def recommended_conf() -> dict[str, str]:
    """Return settings for ``SparkSession.builder.config``; the first must be set before the session starts.

    Unix sockets between Spark and Python save about 40 ms per task. TCP on one machine has been seen to hang
    for good with batches of many megabytes. Windows has no Unix sockets.

    Columnar input for Python functions is off. With it, Spark converts the results of a function to columns
    and back to rows once more, and ``from_envelope`` takes 1.7 times as long.
    """
    sockets = {} if sys.platform == "win32" else {_SOCKETS: "true"}
    return {**sockets, _BATCH: str(_MOST_RECORDS), _PIPELINED: "false", _COLUMNAR: "false"}


def setting_warnings(get: Any) -> list[str]:
    """Return warnings about a session's settings.

    Args:
        get: ``spark.conf.get``: takes a name and a default, and returns the setting.
    """
    found = []
    if get(_PIPELINED, "false").lower() == "true":
        found.append(f"{_PIPELINED}=true is known to break tasks that share a worker; set it to false")
    records = get(_BATCH, str(_MOST_RECORDS))
    large = records.removeprefix("-").isdigit() and not 0 < int(records) <= _MOST_RECORDS
    if large and get(_SOCKETS, "false").lower() != "true" and sys.platform != "win32":
        text = f"{_BATCH}={records} without {_SOCKETS}=true is known to hang"
        found.append(f"{text}; see liftenvelope.spark.recommended_conf()")
    return found


def worker_python(master: str, current: str, get: Any, environ: Mapping[str, str]) -> str:
    """Return the interpreter for a session's Python workers.

    PySpark runs ``PYSPARK_PYTHON``, or else ``python3`` from PATH. In a virtual environment that is not
    activated, that ``python3`` belongs to another environment. A local session gets the interpreter of this
    process instead. A cluster keeps ``python3``: its machines may not have the path of this interpreter.

    Args:
        master: ``spark.master``, such as ``"local[*]"``.
        current: Interpreter that the session would run.
        get: ``spark.conf.get``: takes a name and a default, and returns the setting.
        environ: Environment of this process.
    """
    chosen = current != _PATHS_PYTHON or "PYSPARK_PYTHON" in environ
    if chosen or not master.startswith("local"):
        return current
    return str(get(_PYTHON, sys.executable))


def register(spark: SparkSession) -> None:
    """Register the formats ``liftbridge`` and ``jetstream`` and the envelope functions of SQL in a session.

    Spark finds the formats by itself where liftenvelope is installed, unless another package whose name
    begins with ``pyspark_`` can't be imported, or ``python3`` from PATH belongs to another environment.
    ``register`` always works. In a local session it also makes Python workers run this interpreter, unless
    ``PYSPARK_PYTHON`` is set. Call ``register`` before you create Python functions. It warns of settings that
    are known to hang or crash.
    """
    from liftenvelope.spark import _sources
    from liftenvelope.spark.functions import register_functions

    for text in setting_warnings(spark.conf.get):
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    context: Any = getattr(spark, "sparkContext", None)  # Spark Connect has none: its server runs the workers
    if context is not None:
        context.pythonExec = worker_python(context.master, context.pythonExec, spark.conf.get, os.environ)
    spark.dataSource.register(_sources.LiftbridgeDataSource)
    spark.dataSource.register(_sources.JetStreamDataSource)
    register_functions(spark)
