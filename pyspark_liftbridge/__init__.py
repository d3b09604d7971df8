"""Where Spark finds the format ``liftbridge``: it looks for a class of this name in packages of such."""

from liftenvelope.spark.sources import LiftbridgeDataSource as DefaultSource

__all__ = ["DefaultSource"]
