"""Streams of Liftbridge and JetStream in Spark, and envelopes as columns. See docs/spark.md."""

from liftenvelope.spark.errors import CheckpointError, DataLossError, OptionError

__all__ = ["CheckpointError", "DataLossError", "OptionError"]
