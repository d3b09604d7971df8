"""Spark sources and sinks for Liftbridge and JetStream, and envelopes as columns. See docs/spark.md."""

from liftenvelope.spark._lag import PartitionLag, lag
from liftenvelope.spark._session import recommended_conf, register
from liftenvelope.spark.errors import BatchChangedError, CheckpointError, DataLossError, OptionError

__all__ = [
    "BatchChangedError",
    "CheckpointError",
    "DataLossError",
    "OptionError",
    "PartitionLag",
    "lag",
    "recommended_conf",
    "register",
]
