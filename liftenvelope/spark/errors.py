"""What can go wrong with a Spark source or sink, beside what reading and writing in bulk say."""

from __future__ import annotations

from liftenvelope.errors import LiftEnvelopeError, UsageError

__all__ = ["CheckpointError", "DataLossError", "OptionError"]


class OptionError(UsageError):
    """An option of a Spark source or sink is unknown, makes no sense, or conflicts with another."""


class CheckpointError(LiftEnvelopeError):
    """What a checkpoint holds is not what this source has written, or a later version has."""


class DataLossError(LiftEnvelopeError):
    """Messages that a query was yet to read are gone: a stream or a partition was deleted or made anew.

    With the option ``failOnDataLoss=false`` the query goes on with what there is.
    """
