"""Spark's own settings: those that sources of Python need, and those that are known to hang or crash."""

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

    Between Spark and Python, Unix sockets save some 40 ms for each task, and TCP on one machine has been
    seen to hang for good with batches of many megabytes. They are not to be had on Windows.

    What comes as columns, as from Parquet, is to be made into rows before it goes to a function over Arrow
    columns: Spark otherwise makes the function's results into columns once more, and those into rows, and
    ``from_envelope`` takes 1.7 times as long.
    """
    sockets = {} if sys.platform == "win32" else {_SOCKETS: "true"}
    return {**sockets, _BATCH: str(_MOST_RECORDS), _PIPELINED: "false", _COLUMNAR: "false"}


def setting_warnings(get: Any) -> list[str]:
    """Return what is to be said of a session's settings.

    Args:
        get: Called with a name and a default, gives the setting: ``spark.conf.get``.
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
    """Return the interpreter that the Python workers of a session should run.

    PySpark takes ``PYSPARK_PYTHON``, and else ``python3`` from PATH. In a virtual environment that is not
    activated, that ``python3`` belongs to another environment. A local session gets the interpreter of this
    process instead. A cluster keeps ``python3``: its machines may not have the path of this interpreter.

    Args:
        master: ``spark.master``, such as ``"local[*]"``.
        current: Interpreter that the session runs now.
        get: Called with the name of a setting and a default: ``spark.conf.get``.
        environ: Environment of this process.
    """
    chosen = current != _PATHS_PYTHON or "PYSPARK_PYTHON" in environ
    if chosen or not master.startswith("local"):
        return current
    return str(get(_PYTHON, sys.executable))


def register(spark: SparkSession) -> None:
    """Make the formats ``liftbridge`` and ``jetstream`` known to a session, and envelopes to its SQL.

    Spark finds the formats by itself where liftenvelope is installed, unless another package whose name
    begins with ``pyspark_`` can't be imported, or the ``python3`` of PATH is not the one of this environment.
    ``register`` always works. In a local session it also has Python workers run this interpreter, unless
    ``PYSPARK_PYTHON`` is set. Call it before you make functions of Python. Warns of settings that are known
    to hang or crash.
    """
    from liftenvelope.spark.functions import register_functions
    from liftenvelope.spark.sources import JetStreamDataSource, LiftbridgeDataSource

    for text in setting_warnings(spark.conf.get):
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    context: Any = getattr(spark, "sparkContext", None)  # Spark Connect has none: its server runs the workers
    if context is not None:
        context.pythonExec = worker_python(context.master, context.pythonExec, spark.conf.get, os.environ)
    spark.dataSource.register(LiftbridgeDataSource)
    spark.dataSource.register(JetStreamDataSource)
    register_functions(spark)
