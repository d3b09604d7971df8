"""Spark sources and sinks for Liftbridge and JetStream, and envelopes as columns. See docs/spark.md."""

from liftenvelope.spark.errors import BatchChangedError, CheckpointError, DataLossError, OptionError
from liftenvelope.spark.session import recommended_conf, register

__all__ = [
    "BatchChangedError",
    "CheckpointError",
    "DataLossError",
    "OptionError",
    "recommended_conf",
    "register",
]
