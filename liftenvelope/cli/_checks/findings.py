"""Findings of ``liftenvelope doctor``, and rules that are applied to any number of things. Sans-io."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from liftenvelope.cli._output.terminal import counted

__all__ = ["NEAR", "Finding", "FindingStatus", "Rule", "RuleBook"]

#: Share of a limit from which on there is a warning.
NEAR: Final = 0.9
_Item = TypeVar("_Item")
#: Names that a finding lists. The others are only counted.
_NAMED: Final = 5


class FindingStatus(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    #: The check could not be made, for the reason in ``got``.
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Outcome of one check.

    Attributes:
        status: Outcome.
        check: Name of the check.
        got: Observed value.
        expected: Value that is all right; empty for a check that only informs.
        remedy: What to do; empty if there is nothing to do.
        names: The first of the things that are concerned.
        count: Number of things that are concerned.
    """

    status: FindingStatus
    check: str
    got: str
    expected: str = ""
    remedy: str = ""
    names: tuple[str, ...] = ()
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[_Item]):
    """A check that is applied to each of many things.

    Attributes:
        check: Name of the check.
        test: Returns None for a thing that passes, otherwise a detail to show; empty to show the name alone.
        expected: Value that is all right.
        remedy: What to do.
        status: Status if a thing does not pass.
    """

    check: str
    test: Callable[[_Item], str | None]
    expected: str
    remedy: str
    status: FindingStatus = FindingStatus.WARNING


class RuleBook(Generic[_Item]):
    """Applies rules to things one by one, and keeps no more of them than a finding shows.

    Args:
        noun: Name of a thing, such as ``stream``.
        rules: The rules.

    Example:
        >>> rule = Rule[int](check="even", test=lambda n: "" if n % 2 else None, expected="even", remedy="-")
        >>> book = RuleBook("number", [rule])
        >>> for number in range(3):
        ...     book.look(str(number), number)
        >>> [(one.status.value, one.got) for one in book.findings()]
        [('warning', '1 of 3 numbers: 1')]
    """

    def __init__(self, noun: str, rules: Sequence[Rule[_Item]]) -> None:
        self._noun = noun
        self._rules = rules
        self._counts = [0] * len(rules)
        self._shown: list[list[str]] = [[] for _ in rules]
        #: Number of things so far.
        self.total = 0

    def look(self, name: str, item: _Item) -> None:
        """Apply all rules to a thing."""
        self.total += 1
        for index, rule in enumerate(self._rules):
            detail = rule.test(item)
            if detail is not None:
                self._counts[index] += 1
                if len(self._shown[index]) < _NAMED:
                    self._shown[index].append(f"{name} ({detail})" if detail else name)

    def findings(self) -> list[Finding]:
        """Return a finding for each rule."""
        return [self._finding(*found) for found in zip(self._rules, self._counts, self._shown, strict=True)]

    def _finding(self, rule: Rule[_Item], count: int, names: list[str]) -> Finding:
        if not count:
            got = f"{counted(self.total, self._noun)} checked"
            return Finding(status=FindingStatus.OK, check=rule.check, got=got, expected=rule.expected)
        more = f" and {count - len(names):,} more" if count > len(names) else ""
        return Finding(
            status=rule.status,
            check=rule.check,
            got=f"{count:,} of {counted(self.total, self._noun)}: {', '.join(names)}{more}",
            expected=rule.expected,
            remedy=rule.remedy,
            names=tuple(names),
            count=count,
        )
