"""What a user sees of results: tables for notebooks, short reprs, and the words of publish summaries.

Text is escaped, and every table and repr is bounded.

IPython and Jupyter call ``_repr_html_`` of the last value of a cell. Classes return :func:`html_table` or
:func:`html_fields` from it. Values may come from a peer, so names can be hostile and collections long.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "MAX_ROWS",
    "MAX_TEXT",
    "Outcomes",
    "changed_fields",
    "html_fields",
    "html_outcomes",
    "html_table",
    "raise_failures",
    "short",
    "warn_renamed",
]

_E_co = TypeVar("_E_co", bound=Exception, covariant=True)

#: Rows of a table in a notebook. A last row counts the rest.
MAX_ROWS: Final = 50
#: Characters of a cell, and of a value in a repr.
MAX_TEXT: Final = 200
#: Items of a collection in a cell.
_MAX_ITEMS: Final = 8
_LEFT: Final = ' style="text-align: left"'
#: Levels of values inside values.
_MAX_DEPTH: Final = 3


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], size: int) -> str:
    """Return an HTML table of the first rows; the title alone if there are none. Numbers are aligned right.

    Args:
        title: Caption of the table.
        columns: Names of the columns.
        rows: Cells of each row. Not more than :data:`MAX_ROWS` rows are taken.
        size: Number of all rows.
    """
    shown = [list(row) for row in islice(rows, MAX_ROWS)]
    if not shown:  # the caption of an empty table is as narrow as its longest word
        return f"<div>{_html(title)}</div>"
    caption = f"<caption>{_html(title)}</caption>"
    # Jupyter aligns all cells to the right.
    styles = ["" if all(map(_is_number, cells)) else _LEFT for cells in zip(*shown, strict=True)]
    head, *body = (_row("th", columns, styles), *(_row("td", row, styles) for row in shown))
    if size > len(shown):
        body.append(f'<tr><td colspan="{len(columns)}"{_LEFT}>… and {size - len(shown):,} more</td></tr>')
    return f"<table>{caption}<thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"


def _row(tag: str, cells: Iterable[object], styles: Iterable[str]) -> str:
    filled = (f"<{tag}{style}>{_html(cell)}</{tag}>" for cell, style in zip(cells, styles, strict=True))
    return f"<tr>{''.join(filled)}</tr>"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def html_fields(value: object) -> str:
    """Return an HTML table of the fields of a dataclass, without those that have no content."""
    rows = list(islice(_rows(value, "", _MAX_DEPTH), MAX_ROWS))
    return html_table(type(value).__name__, ("field", "value"), rows, len(rows))


def html_outcomes(
    title: str, failures: Mapping[int, Exception], offsets: Mapping[int, tuple[int, int]]
) -> str:
    """Return an HTML table of a publish summary: its failures, or without any the offsets by partition."""
    if failures:
        errors = ((index, type(error).__name__, str(error)) for index, error in failures.items())
        return html_table(title, ("message", "error", "text"), errors, len(failures))
    spans = ((partition, first, last) for partition, (first, last) in offsets.items())
    return html_table(title, ("partition", "first offset", "last offset"), spans, len(offsets))


def changed_fields(value: object) -> str:
    """Return a bounded repr of a dataclass, without the fields that have their default value."""
    shown = ", ".join(f"{name}={_repr(content)}" for name, content in _contents(value, all_numbers=False))
    return f"{type(value).__qualname__}({shown})"


def short(value: object, depth: int = _MAX_DEPTH) -> str:
    """Return a value as text of at most :data:`MAX_TEXT` characters."""
    if isinstance(value, Mapping) and depth:
        pairs = (f"{short(key, 0)}: {short(item, depth - 1)}" for key, item in value.items())
        return _joined(pairs, len(value))
    if isinstance(value, tuple | list | Set) and depth:
        return _joined((short(item, depth - 1) for item in value), len(value))
    if _is_record(value):
        contents = _contents(value, all_numbers=False) if depth else ()
        return _joined((f"{name}={short(content, depth - 1)}" for name, content in contents), 0)
    return _cut(_plain(value))


def _plain(value: object) -> str:
    match value:
        case None:
            return ""
        case Enum():
            return value.name
        case datetime():
            return value.isoformat(" ", "seconds")
        case bytes():
            return repr(value[:MAX_TEXT])
        case _:
            return str(value)


def _rows(value: object, prefix: str, depth: int) -> Iterator[tuple[str, object]]:
    for name, content in _contents(value, all_numbers=True):
        if _is_record(content) and depth:
            yield from _rows(content, f"{prefix}{name}.", depth - 1)
        else:
            yield f"{prefix}{name}", content


def _contents(value: object, *, all_numbers: bool) -> Iterator[tuple[str, object]]:
    """Yield the fields of a dataclass that differ from their defaults; ``all_numbers``: and counts."""
    assert _is_record(value)
    for each in fields(value):
        content = getattr(value, each.name)
        counts = all_numbers and (_is_record(content) or (type(content) is int and content >= 0))
        if each.repr and (counts or content != _default(each)):
            yield each.name, content


def _default(each: Field[object]) -> object:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _is_record(value: object) -> TypeGuard[DataclassInstance]:
    return is_dataclass(value) and not isinstance(value, type)


def _repr(value: object) -> str:
    """Return a repr of a field: whole for a short value, and the beginning of a long one."""
    if isinstance(value, Mapping | tuple | list | Set) and len(value) > MAX_ROWS:
        return f"<{len(value):,} items>"
    text = repr(value)
    return text if len(text) <= 10 * MAX_TEXT else f"{text[: 10 * MAX_TEXT]}…"


def _joined(parts: Iterable[str], size: int) -> str:
    text = ", ".join(islice(parts, _MAX_ITEMS))
    return _cut(text, more=f" and {size - _MAX_ITEMS:,} more" if size > _MAX_ITEMS else "")


def _cut(text: str, *, more: str = "") -> str:
    room = MAX_TEXT - len(more)
    return (text if len(text) <= room else f"{text[: room - 1]}…") + more


def _html(value: object) -> str:
    # A lone surrogate, which UTF-8 cannot encode, would make the whole notebook unreadable.
    return escape(short(value).encode("utf-8", "backslashreplace").decode())


# Summaries


class Outcomes(Protocol[_E_co]):
    """Outcomes of the messages of a ``publish_many``, which :class:`PublishSummary` implements.

    A summary has errors, and an error may carry a summary: this protocol keeps the modules of both apart.
    """

    @property
    def acked(self) -> int:
        """Number of messages that are stored."""
        ...

    @property
    def failures(self) -> Mapping[int, _E_co]:
        """Errors of the other messages by their index in the input, in ascending order."""
        ...

    @property
    def offsets(self) -> Mapping[int, tuple[int, int]]:
        """First and last offset of the stored messages, by partition."""
        ...

    @property
    def ok(self) -> bool:
        """True if every message is stored."""
        ...

    def raise_for_failures(self) -> None:
        """Raise an ExceptionGroup of the failures, if there are any."""
        ...


def raise_failures(failures: Mapping[int, Exception], size: int) -> None:
    """Raise the failures of a batch, if any.

    Args:
        failures: Errors by message index.
        size: Number of messages in the batch.

    Raises:
        ExceptionGroup: All failures, ordered by index. A note on each error names its index.
    """
    if failures:
        text = f"{len(failures)} of {size} messages failed"
        raise ExceptionGroup(text, [_noted(error, index) for index, error in sorted(failures.items())])


def _noted(error: Exception, index: int) -> Exception:
    note = f"message {index} of the batch"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def warn_renamed(owner: str, old: str, new: str) -> None:
    """Warn the caller of a renamed property. The next version drops the old name."""
    warnings.warn(f"{owner}.{old} is deprecated: use {owner}.{new}", DeprecationWarning, stacklevel=3)
