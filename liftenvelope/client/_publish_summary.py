"""Outcome of many published messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftenvelope._showing import html_outcomes, raise_failures, short, warn_renamed

if TYPE_CHECKING:
    from liftenvelope.errors import LiftEnvelopeError

__all__ = ["PublishSummary"]


@dataclass(frozen=True, slots=True)
class PublishSummary:
    """Outcome of the messages of a ``publish_many``.

    Attributes:
        acked: Number of messages that are stored.
        failures: Errors of the other messages by their index in the input, in ascending order. A
            TransportError, AckTimeoutError or PermissionDeniedError with ``sent`` true says that the message
            may be stored.
        offsets: First and last offset of the stored messages, by partition.
    """

    acked: int
    failures: Mapping[int, LiftEnvelopeError]
    offsets: Mapping[int, tuple[int, int]]

    @property
    def ok(self) -> bool:
        """True if every message is stored."""
        return not self.failures

    def raise_for_failures(self) -> None:
        """Raise the failures, if there are any.

        Raises:
            ExceptionGroup: All failures in ascending order of the index; a note on each names its index.
        """
        raise_failures(self.failures, self.acked + len(self.failures))

    @property
    def failed(self) -> tuple[tuple[int, LiftEnvelopeError], ...]:
        """Deprecated name of :attr:`failures`, as pairs of index and error."""
        warn_renamed("PublishSummary", "failed", "failures")
        return tuple(self.failures.items())

    def __str__(self) -> str:
        return f"{self.acked} stored, {len(self.failures)} failed"

    def __repr__(self) -> str:
        spans = {partition: f"{first}-{last}" for partition, (first, last) in self.offsets.items()}
        return f"PublishSummary({self}, offsets {{{short(spans)}}})"

    def _repr_html_(self) -> str:
        return html_outcomes(str(self), self.failures, self.offsets)
