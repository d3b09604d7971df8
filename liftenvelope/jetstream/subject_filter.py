"""Filters for subjects with NATS wildcards: normalised, and matched without a server. No I/O.

A filter is a subject whose tokens may be ``*`` (any one token) or, at its end, ``>`` (one or more tokens).
The filters are kept in a tree of tokens, so that a lookup does not depend on their number. Each token of a
filter is the key of a branch, also ``*`` and ``>``. So one lookup finds out if the tree matches a subject, or
covers another filter: a ``*`` is covered by a ``*`` or ``>`` alone, and a ``>`` by a ``>`` alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from liftenvelope._checks import about
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream.names import check_filter
from liftenvelope.nats.subjects import wire_subject

__all__ = ["SubjectFilter", "parse_subjects"]

#: Filters in one call. Each takes some hundred bytes of memory.
MOST_FILTERS: Final = 100_000
#: Key of a branch that ends a filter. No token is empty.
_END: Final = ""


class SubjectFilter:
    """Subjects that match at least one of several filters.

    Args:
        filters: The filters, valid as checked by :func:`parse_subjects`.

    Attributes:
        filters: The filters without those that another one covers, sorted.
    """

    def __init__(self, filters: Iterable[str]) -> None:
        self._tree: dict[str, Any] = {}
        kept = []
        for text in sorted(set(filters), key=_generality):
            if not self.covers(text):
                self._insert(text)
                kept.append(text)
        self.filters = tuple(sorted(kept))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubjectFilter) and self.filters == other.filters

    def __hash__(self) -> int:
        return hash(self.filters)

    def __repr__(self) -> str:
        shown = ", ".join(self.filters[:3])
        return f"<SubjectFilter {shown}{', ...' if len(self.filters) > 3 else ''}>"

    def _insert(self, text: str) -> None:
        node = self._tree
        for token in text.split("."):
            node = node.setdefault(token, {})
        node[_END] = {}

    def covers(self, subject: str) -> bool:
        """Return True if one filter matches every subject that ``subject`` matches, which may have wildcards.

        Example:
            >>> wide = SubjectFilter(["a.*", "b.>"])
            >>> wide.covers("a.x"), wide.covers("a.x.y"), wide.covers("b.*.c"), wide.covers("a.>")
            (True, False, True, False)
        """
        tokens = subject.split(".")
        left = [(0, self._tree)]
        while left:
            at, node = left.pop()
            if at == len(tokens):
                if _END in node:
                    return True
                continue
            if ">" in node:
                return True
            word = tokens[at]
            branches = (word,) if word in ("*", ">") else (word, "*")
            left += [(at + 1, node[branch]) for branch in branches if branch in node]
        return False

    def intersection(self, other: SubjectFilter) -> SubjectFilter:
        """Return the filter for the subjects that both match. It has no filters if there are none.

        Example:
            >>> SubjectFilter(["a.*", "b.>"]).intersection(SubjectFilter(["*.x.>", "a.y"])).filters
            ('a.y', 'b.x.>')
        """
        pairs = (_both(one.split("."), two.split(".")) for one in self.filters for two in other.filters)
        return SubjectFilter(".".join(tokens) for tokens in pairs if tokens is not None)


def _both(one: list[str], two: list[str]) -> list[str] | None:
    """Return the filter for the subjects that two filters match: always one filter, or None."""
    found: list[str] = []
    for at, (mine, its) in enumerate(zip(one, two, strict=False)):
        if mine == ">" or its == ">":
            return found + (two if mine == ">" else one)[at:]
        if mine != its and "*" not in (mine, its):
            return None
        found.append(its if mine == "*" else mine)
    return found if len(one) == len(two) else None


def _generality(text: str) -> tuple[int, int, bool, str]:
    """Return a sort key that puts every filter behind those that cover it.

    A filter has a literal token wherever a filter that covers it has one. If both have equally many, the
    covering one ends in ``>`` and is not longer.
    """
    tokens = text.split(".")
    literal = sum(token not in ("*", ">") for token in tokens)
    return literal, len(tokens), tokens[-1] != ">", text


def parse_subjects(subjects: Iterable[str] | str | None) -> SubjectFilter | None:
    """Return the filter for the argument ``subjects``; None for None, which stands for all subjects.

    Args:
        subjects: One subject, or several. ``*`` stands for one token, ``>`` at the end for one or more.

    Raises:
        UsageError: A subject is invalid, there is none, or there are more than 100,000.
        UsageTypeError: The argument is not a str or an iterable of str.
    """
    if subjects is None:
        return None
    if not isinstance(subjects, str | Iterable):
        raise UsageTypeError(f"subjects must be a subject or several, got {subjects!r:.80}")
    found = dict[str, None]()
    for text in [subjects] if isinstance(subjects, str) else subjects:
        found[wire_subject("subjects", check_filter(text))] = None
        if len(found) > MOST_FILTERS:
            raise about(
                UsageError(f"subjects must have at most {MOST_FILTERS:,} subjects, got more"), "subjects"
            )
    if not found:
        raise about(UsageError("subjects must have at least one subject, or be None for all"), "subjects")
    return SubjectFilter(found)
