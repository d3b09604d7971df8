r"""Output that untrusted text can't control: terminals, tables and JSON.

Names, headers and payloads come from anybody who may publish. An escape sequence in one of them could move
the cursor, set the title or answer as if the user had typed; a bidirectional override could reorder a line.
So every character that is not shown as itself is written as an escape such as ``\x1b``.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

import click
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = [
    "as_json_bytes",
    "counted",
    "echo_json",
    "harmless_json",
    "plain",
    "print_facts",
    "print_table",
    "report",
    "rich_console",
    "shown",
    "shown_bytes",
    "shown_time",
    "time_text",
]

#: Unicode categories without a glyph: control, format (such as bidirectional overrides), lone surrogates,
#: private use, unassigned, and separators of lines and paragraphs.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
#: Columns of a table that does not go to a terminal: wide enough that no cell is folded.
_UNLIMITED: Final = 4_000
#: Widest column of names, such as those of headers.
_NAME: Final = 32
#: Width from which a column of names may be folded: that of the time of a day.
_FOLDED: Final = 12


def shown(text: str, *, keep: str = "") -> str:
    r"""Return a text with an escape in place of each character that a terminal would not show as itself.

    Args:
        text: Any text, also with lone surrogates.
        keep: Characters to leave as they are, such as line ends of a block of text.

    Example:
        >>> print(shown("red \x1b[31m, reversed \u202eabc, and ä"))
        red \x1b[31m, reversed \u202eabc, and ä
    """
    if text.isprintable():
        return text
    return "".join(one if one in keep else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return _SHORT.get(character) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def shown_bytes(data: bytes, *, keep: str = "") -> str:
    r"""Return bytes as text for a terminal; bytes that are not UTF-8 become escapes.

    Example:
        >>> print(shown_bytes(b"tea \xff\x00"))
        tea \xff\x00
    """
    return shown(data.decode("utf-8", "backslashreplace"), keep=keep)


def as_json_bytes(name: str, data: bytes) -> dict[str, str]:
    r"""Return bytes as a JSON field: text if they are UTF-8, otherwise base64 under ``name_base64``.

    Example:
        >>> as_json_bytes("value", b"tea"), as_json_bytes("value", b"\xff")
        ({'value': 'tea'}, {'value_base64': '/w=='})
    """
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def json_text(value: Any) -> str:
    r"""Return a value as one line of JSON, with ``\u`` escapes for characters without a glyph.

    Example:
        >>> print(json_text({"ä": "\x9b31m", "b": "\U000e0001"}))
        {"ä": "\u009b31m", "b": "\udb40\udc01"}
    """
    return harmless_json(json.dumps(value, ensure_ascii=False, default=str))


def harmless_json(text: str) -> str:
    """Return one line of JSON with escapes for characters without a glyph, which only strings can have."""
    if text.isprintable():
        return text
    return re.sub(r"[^ -~]", lambda found: _json_escaped(found[0]), text)


def _json_escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if unicodedata.category(character) in _HIDDEN else character


def plain(value: object) -> Any:
    """Return a value in a form that JSON has: objects by attribute, times as text, enumerations by name.

    Durations stay seconds. Bytes that are not UTF-8 become ``{"base64": ...}``.
    """
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, Sequence | frozenset) and not isinstance(value, str | bytes):
        return [plain(one) for one in value]
    if is_dataclass(value):
        names = (one.name for one in fields(value) if one.name not in ("extra", "exact"))
        return {name: plain(getattr(value, name)) for name in names}
    return _plain_scalar(value)


def _plain_scalar(value: object) -> object:
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, bytes):
        text = as_json_bytes("text", value)
        return text["text"] if "text" in text else {"base64": text["text_base64"]}
    return value


def echo_json(value: object) -> None:
    """Print a value as one line of JSON in UTF-8, whatever the encoding of the terminal is."""
    click.echo(json_text(plain(value)).encode("utf-8", "backslashreplace"))


def report(sentence: str, as_json: bool, **facts: object) -> None:
    """Print what was done: a sentence for people, or the facts as JSON."""
    if as_json:
        echo_json(facts)
    else:
        click.echo(shown(sentence))


def time_text(moment: datetime | int) -> str:
    """Return a time in RFC 3339, UTC. An int is in nanoseconds since 1970, and gets nine decimals."""
    if isinstance(moment, datetime):
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    seconds, ns = divmod(moment, 1_000_000_000)
    try:
        whole = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{moment} ns"
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def shown_time(moment: datetime | int | None) -> str:
    """Return a time for people: UTC, to the millisecond; ``-`` for None and 0."""
    if not moment:
        return "-"
    text = time_text(moment)
    if not text.endswith("Z"):
        return text
    whole, _, decimals = text.removesuffix("Z").partition(".")
    return f"{whole.replace('T', ' ')}.{decimals[:3]:0<3}"


def rich_console() -> Console:
    """Return the console for standard output, wide enough for whole rows if that is a pipe."""
    # Pipes are read by programs such as grep, so a row stays on one line there.
    is_narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_narrow else _UNLIMITED, highlight=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headings. Numbers are aligned to the right.

    If the terminal is too narrow, print each row as a block of lines: rich would cut numbers and columns off.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    cells = [list(row) for row in rows]
    needed = -2
    for index, name in enumerate(columns):
        column = [row[index] for row in cells]
        is_number = bool(cells) and all(isinstance(value, int | float | None) for value in column)
        # A long name is folded before a number is.
        table.add_column(name, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
        width = max(len(name), *(len(_cell(value)) for value in column), 0)
        needed += 2 + (width if is_number else min(width, _FOLDED))
    if needed > rich_console().width:
        for row in cells:
            _print(_pairs(zip(columns, row, strict=True)))
            click.echo()
        return
    for row in cells:
        table.add_row(*map(_cell, row))
    _print(table)


def print_facts(title: str, facts: Mapping[str, object]) -> None:
    """Print a title, and a line for each name and value. Values of None are left out."""
    click.echo(shown(title))
    known = _pairs((name, value) for name, value in facts.items() if value is not None)
    _print(Padding(known, (0, 0, 0, 2)))  # also indents a name that is folded


def _pairs(pairs: Iterable[tuple[str, object]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=_NAME)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(shown(name)), _cell(value))
    return table


def _print(output: RenderableType) -> None:
    console = rich_console()
    with console.capture() as captured:
        console.print(output)
    lines = captured.get().splitlines()
    # Without the blanks that fill the last column.
    click.echo("\n".join(line.rstrip() for line in lines))


def _cell(value: object) -> Text:
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int):
        return Text(f"{value:,}")
    return Text("-" if value is None else shown(str(value)))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1.

    Example:
        >>> counted(1, "stream"), counted(2_000, "stream")
        ('1 stream', '2,000 streams')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
