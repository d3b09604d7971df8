"""Errors of Spark sources and sinks, in addition to those of bulk reads and writes."""

from __future__ import annotations

from liftenvelope.errors import LiftEnvelopeError, UsageError

__all__ = ["BatchChangedError", "CheckpointError", "DataLossError", "OptionError"]


class OptionError(UsageError):
    """An option of a Spark source or sink is unknown, malformed, or conflicts with another."""


class BatchChangedError(LiftEnvelopeError):
    """A repeated batch has different rows than before, or rows it had stored are gone.

    Effectively-once rows must come in the same order in the same Spark partitions whenever a batch runs. Sort
    within partitions, and avoid a shuffle of undefined order before the sink.
    """


class CheckpointError(LiftEnvelopeError):
    """A checkpoint was not written by this source, was written by a later version, or is damaged."""


class DataLossError(LiftEnvelopeError):
    """Messages that a query has not read are gone: a stream or a partition was deleted or recreated.

    With the option ``failOnDataLoss=false`` the query continues with the messages that exist.
    """
