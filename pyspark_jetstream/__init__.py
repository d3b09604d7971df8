"""Where Spark finds the format ``jetstream``: it looks for a class of this name in packages of such."""

from liftenvelope.spark.sources import JetStreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
