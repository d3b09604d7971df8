"""Where Spark finds the format ``liftbridge``: it looks for a class of this name in packages of such."""

import contextlib

# Where an import fails, Spark finds no format of other packages either, and does not say so: without
# the extra there is no class here, and liftenvelope.spark.register says what is missing.
with contextlib.suppress(ImportError):
    from liftenvelope.spark._sources import LiftbridgeDataSource as DefaultSource

__all__ = ["DefaultSource"]
