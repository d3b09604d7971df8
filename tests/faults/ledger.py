"""The outcomes that the package reported for the messages of one run, in nine bytes for each. No I/O."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from liftenvelope.bulk import WriteFailedError
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    EnvelopeError,
    InternalError,
    LiftEnvelopeError,
    ServerError,
    TransportError,
    UsageError,
)

__all__ = ["PENDING", "REFUSED", "SPAN", "UNKNOWN", "UNORDERED", "Ledger", "Span", "is_sent", "judge"]

#: What stands for a message instead of its offset.
PENDING: Final = -1
UNKNOWN: Final = -2
REFUSED: Final = -3
SPAN: Final = -4
#: The lane of messages whose order nobody promises.
UNORDERED: Final = 255
#: Errors that no fault can explain.
_OUR_FAULT: Final = (UsageError, EnvelopeError, InternalError)
_MOST_TEXTS: Final = 20


@dataclass(frozen=True, slots=True)
class Span:
    """Messages that have one outcome together.

    Attributes:
        start: Index of the first.
        stop: Index after the last.
        least: How many are stored for sure.
        most: How many may be stored.
        offsets: First and last offset by partition, None where none was reported.
    """

    start: int
    stop: int
    least: int
    most: int
    offsets: Mapping[int, tuple[int, int]] | None = None


@dataclass
class Ledger:
    """Outcomes by index.

    Attributes:
        outcome: The offset of each acked message, or one of PENDING, UNKNOWN, REFUSED and SPAN.
        lane: Number of the publisher that keeps order; UNORDERED for none.
        spans: Messages with a common outcome.
        errors: How often each class of error came.
        violations: What the package reported and must not report.
        acked: How many messages are stored for sure.
    """

    outcome: array[int] = field(default_factory=lambda: array("q"))
    lane: bytearray = field(default_factory=bytearray)
    spans: list[Span] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    acked: int = 0

    def __len__(self) -> int:
        return len(self.outcome)

    def take(self, lane: int = 0) -> int:
        """Return the index of one more message that is to be published."""
        self.outcome.append(PENDING)
        self.lane.append(lane)
        return len(self.outcome) - 1

    def take_many(self, count: int, lane: int = 0) -> range:
        """Return the indexes of ``count`` more messages."""
        start = len(self.outcome)
        self.outcome.extend(array("q", [PENDING]) * count)
        self.lane.extend(bytes([lane]) * count)
        return range(start, start + count)

    def stored(self, index: int, offset: int) -> None:
        """Note that a message has an ack."""
        if self._settle(index, offset):
            self.acked += 1
        if offset < 0:
            self.violate(f"message {index} was acked at offset {offset}")

    def failed(self, index: int, error: BaseException) -> None:
        """Note that a message failed: whether it may be stored is what the error says."""
        self._settle(index, UNKNOWN if self.count(error) else REFUSED)

    def failed_many(self, indexes: range, error: BaseException) -> None:
        """Note that a call failed before it sent any of these messages."""
        if self.count(error):
            self.violate(f"{error!r} says that messages of a call that sent nothing may be stored")
        for index in indexes:
            self._settle(index, REFUSED)

    def stored_span(self, indexes: range, offsets: Mapping[int, tuple[int, int]] | None) -> None:
        """Note that all of these are stored."""
        self._add(Span(indexes.start, indexes.stop, len(indexes), len(indexes), offsets))

    def failed_span(self, indexes: range, error: WriteFailedError) -> None:
        """Note that a bulk write ended early."""
        self.count_with_cause(error)
        most = error.acked + error.unknown
        if not 0 <= error.acked <= most <= len(indexes):
            self.violate(f"{error!r} of {len(indexes)} rows")
        self._add(Span(indexes.start, indexes.stop, error.acked, min(most, len(indexes))))

    def count(self, error: BaseException) -> bool:
        """Count and judge an error; return whether it leaves open that the message is stored."""
        self.errors[type(error).__name__] += 1
        for text in judge(error):
            self.violate(text)
        return is_sent(error)

    def count_with_cause(self, error: LiftEnvelopeError) -> None:
        """Count an error and its cause, which must both be errors of the package."""
        self.count(error)
        if error.__cause__ is not None:
            self.count(error.__cause__)

    def unorder(self, indexes: range) -> None:
        """Note that messages were published more than once: their order is not promised."""
        self.lane[indexes.start : indexes.stop] = bytes([UNORDERED]) * len(indexes)

    def violate(self, text: str) -> None:
        """Note something that must not be."""
        if len(self.violations) < _MOST_TEXTS:
            self.violations.append(text)

    def _add(self, span: Span) -> None:
        for index in range(span.start, span.stop):
            self._settle(index, SPAN)
        self.spans.append(span)
        self.acked += span.least

    def _settle(self, index: int, outcome: int) -> bool:
        before = self.outcome[index]
        if before != PENDING:
            self.violate(f"message {index} has two outcomes: {before}, then {outcome}")
            return False
        self.outcome[index] = outcome
        return True


def is_sent(error: BaseException) -> bool:
    """Return True if the message may be stored after this error."""
    return bool(getattr(error, "sent", False))


def judge(error: BaseException) -> list[str]:
    """Return what is wrong with an error that a fault has led to."""
    name = type(error).__name__
    if not isinstance(error, LiftEnvelopeError):
        return [f"{error!r} is no LiftEnvelopeError"]
    if isinstance(error, _OUR_FAULT):
        return [f"{name}: {error}: no fault of a server or connection explains it"]
    lost = isinstance(error, TransportError | AckTimeoutError | CallTimeoutError)
    if lost and not error.retriable:
        return [f"{name} is not retriable: {error}"]
    if isinstance(error, ServerError) and not error.description:
        return [f"{name} has no description"]
    return [] if str(error) else [f"{name} has no text"]
