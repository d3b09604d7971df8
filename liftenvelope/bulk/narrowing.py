"""Bounds of the messages that a query wants, collected from its conditions. No I/O.

A query engine passes down conditions such as ``offset >= 100`` or ``subject = 'orders.new'``, all of which a
row must meet. Each condition narrows the offsets, times, partitions or subjects to read. A narrowing never
loses a row that meets all conditions. If it also keeps no other row, the condition is exact, and the engine
need not check it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from liftenvelope._checks import MAX_INT64
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream.subject_filter import SubjectFilter, parse_subjects

__all__ = ["Condition", "Narrowing", "Operator"]

Operator: TypeAlias = Literal["=", "in", "<", "<=", ">", ">=", "prefix"]
#: Column, operator, and value; for "in" several values.
Condition: TypeAlias = "tuple[str, Operator, Any]"

#: Nanoseconds by which the times of messages may be out of order: after a change of its leader, a stream has
#: times of another server's clock. Offsets are looked up by time with this margin.
_CLOCKS: Final = 60 * 1_000_000_000
#: Values of an "in" condition, and pairs of subject filters, up to which a condition is used.
_MOST_VALUES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Messages that may meet all conditions so far.

    Attributes:
        start: First offset.
        stop: Offset after the last one.
        begin_ns: Earliest time in nanoseconds since 1970; None for any.
        end_ns: Time before which all messages were stored; None for any.
        partitions: Numbers of the partitions; None for all in the range.
        partition_range: First partition, and the number after the last one.
        subjects: Filter of the subjects; None for all subjects.
    """

    start: int = 0
    stop: int = MAX_INT64
    begin_ns: int | None = None
    end_ns: int | None = None
    partitions: frozenset[int] | None = None
    partition_range: tuple[int, int] = (0, MAX_INT64)
    subjects: SubjectFilter | None = None

    @property
    def is_empty(self) -> bool:
        """True if no message can meet the conditions."""
        nothing = self.subjects is not None and not self.subjects.filters
        first, end = self.partition_range
        return nothing or self.start >= self.stop or self.partitions == frozenset() or first >= end

    def wants_partition(self, number: int) -> bool:
        """Return True if messages of a partition can meet the conditions."""
        first, end = self.partition_range
        return first <= number < end and (self.partitions is None or number in self.partitions)

    def narrowed(self, condition: Condition) -> tuple[Narrowing, bool]:
        """Return the narrowing with one more condition, and whether the condition is exact.

        A condition that can't be used leaves the narrowing as it is, and is not exact.
        """
        column, operator, value = condition
        match column:
            case "offset":
                return self._by_offset(operator, value)
            case "timestamp":
                return self._by_time(operator, value), False
            case "partition":
                return self._by_partition(operator, value)
            case "subject":
                return self._by_subject(operator, value)
        return self, False

    def all_of(self, conditions: Iterable[Condition]) -> Narrowing:
        """Return the narrowing with more conditions."""
        found = self
        for condition in conditions:
            found, _ = found.narrowed(condition)
        return found

    def _by_offset(self, operator: Operator, value: Any) -> tuple[Narrowing, bool]:
        if operator == "in":
            values = _numbers(value)
            if not values:
                return self, False
            low, high = min(values), max(values)
            found = replace(self, start=max(self.start, low), stop=min(self.stop, high + 1))
            return found, high - low + 1 == len(values)
        bounds = _bounds(operator, value)
        if bounds is None:
            return self, False
        return replace(self, start=max(self.start, bounds[0]), stop=min(self.stop, bounds[1])), True

    def _by_partition(self, operator: Operator, value: Any) -> tuple[Narrowing, bool]:
        if operator == "in":
            numbers = _numbers(value)
            if not numbers:
                return self, False
            kept = frozenset(numbers if self.partitions is None else numbers & self.partitions)
            return replace(self, partitions=kept), True
        bounds = _bounds(operator, value)
        if bounds is None:
            return self, False
        first, end = self.partition_range
        return replace(self, partition_range=(max(first, bounds[0]), min(end, bounds[1]))), True

    def _by_time(self, operator: Operator, value: Any) -> Narrowing:
        """Narrow by nanoseconds since 1970, never exactly: messages may be out of order by some time."""
        if type(value) is not int or operator in ("in", "prefix"):
            return self
        begin, end = self.begin_ns, self.end_ns
        if operator in ("=", ">", ">="):
            begin = max(value - _CLOCKS, begin if begin is not None else value - _CLOCKS)
        if operator in ("=", "<", "<="):
            end = min(value + _CLOCKS, end if end is not None else value + _CLOCKS)
        return replace(self, begin_ns=begin, end_ns=end)

    def _by_subject(self, operator: Operator, value: Any) -> tuple[Narrowing, bool]:
        texts = _subjects(operator, value)
        if texts is None:
            return self, False
        wanted = SubjectFilter(texts)
        if self.subjects is None:
            return replace(self, subjects=wanted), True
        if len(self.subjects.filters) * len(wanted.filters) > _MOST_VALUES:
            return self, False
        return replace(self, subjects=self.subjects.intersection(wanted)), True


def _bounds(operator: Operator, value: Any) -> tuple[int, int] | None:
    """Return the range of integers that a comparison allows; None if it is not one with an integer."""
    if type(value) is not int:
        return None
    bounds = {
        "=": (value, value + 1),
        "<": (0, value),
        "<=": (0, value + 1),
        ">": (value + 1, MAX_INT64),
        ">=": (value, MAX_INT64),
    }
    return bounds.get(operator)


def _numbers(values: Any) -> set[int]:
    """Return the values of an "in" condition; empty if it can't be used."""
    found = list(values)
    if len(found) > _MOST_VALUES or any(type(value) is not int for value in found):
        return set()
    return set(found)


def _subjects(operator: Operator, value: Any) -> list[str] | None:
    """Return the filters for a condition on the subject that they express exactly; None for none.

    A prefix is one if it ends with a dot. A wildcard in a value is no wildcard, so such a value is no filter.
    """
    values = [value] if operator in ("=", "prefix") else list(value) if operator == "in" else []
    if not values or not all(isinstance(text, str) for text in values):
        return None
    if operator == "prefix" and not values[0].endswith("."):
        return None
    bare = [text.removesuffix(".") if operator == "prefix" else text for text in values]
    try:
        parse_subjects(bare)
    except (UsageError, UsageTypeError):
        return None
    # Readers replace bytes that are no UTF-8, and the server does not.
    if any(not {"*", ">"}.isdisjoint(text.split(".")) or "\ufffd" in text for text in bare):
        return None
    return [f"{text}.>" for text in bare] if operator == "prefix" else bare
