"""What can go wrong with a Spark source or sink, beside what reading and writing in bulk say."""

from __future__ import annotations

from liftenvelope.errors import LiftEnvelopeError, UsageError

__all__ = ["BatchChangedError", "CheckpointError", "DataLossError", "OptionError"]


class OptionError(UsageError):
    """An option of a Spark source or sink is unknown, makes no sense, or conflicts with another."""


class BatchChangedError(LiftEnvelopeError):
    """A batch that is run again has other rows than before, or what was stored of it is gone.

    Rows that are stored once must come in the same order in the same Spark partitions whenever a batch is
    run: no shuffle of uncertain order before the sink.
    """


class CheckpointError(LiftEnvelopeError):
    """What a checkpoint holds is not what this source has written, or a later version has."""


class DataLossError(LiftEnvelopeError):
    """Messages that a query was yet to read are gone: a stream or a partition was deleted or made anew.

    With the option ``failOnDataLoss=false`` the query goes on with what there is.
    """
