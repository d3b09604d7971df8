"""Output that untrusted text can't control."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, IntEnum

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.cli._output.terminal import (
    as_json_bytes,
    echo_json,
    json_text,
    plain,
    print_facts,
    print_table,
    shown,
    shown_bytes,
    shown_time,
    time_text,
)

CONTROLS = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
ANY_TEXT = st.text(st.characters(exclude_categories=()))


def is_harmless(text: str) -> bool:
    return not any(unicodedata.category(character) in CONTROLS for character in text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tea", "tea"),
        ("grüße 日本 　 שלום", "grüße 日本 　 שלום"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("two\nlines\tand\r", "two\\nlines\\tand\\r"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
        ("a\u2028b", "a\\u2028b"),
    ],
)
def test_characters_without_a_glyph_become_escapes(text: str, expected: str) -> None:
    assert shown(text) == expected


@given(ANY_TEXT)
def test_any_text_is_harmless_on_a_terminal(text: str) -> None:
    assert is_harmless(shown(text))
    assert is_harmless(shown(text, keep="\n").replace("\n", ""))
    if is_harmless(text):
        assert shown(text) == text


@given(st.binary())
def test_any_bytes_are_harmless_on_a_terminal(data: bytes) -> None:
    assert is_harmless(shown_bytes(data))


@given(st.dictionaries(ANY_TEXT, ANY_TEXT | st.integers() | st.none() | st.lists(ANY_TEXT)))
def test_json_is_harmless_and_complete(value: dict[str, object]) -> None:
    text = json_text(value)
    assert is_harmless(text)
    assert json.loads(text) == value


def test_bytes_in_json() -> None:
    assert as_json_bytes("key", "ä".encode()) == {"key": "ä"}
    assert as_json_bytes("key", b"\xff") == {"key_base64": "/w=="}
    assert plain({"a": b"x", "b": b"\xff", "c": b""}) == {"a": "x", "b": {"base64": "/w=="}, "c": ""}


class _Colour(Enum):
    RED = 1


class _Level(IntEnum):
    LOW = 1


@dataclass
class _Thing:
    name: str
    at: datetime
    parts: tuple[_Colour, ...]
    level: _Level
    extra: dict[str, int]


def test_plain_form_of_an_object() -> None:
    thing = _Thing("a", datetime(2026, 1, 2, tzinfo=UTC), (_Colour.RED,), _Level.LOW, {"x": 1})
    assert plain(thing) == {"name": "a", "at": "2026-01-02T00:00:00Z", "parts": ["RED"], "level": "LOW"}


@pytest.mark.parametrize(
    ("moment", "exact", "short"),
    [
        (1, "1970-01-01T00:00:00.000000001Z", "1970-01-01 00:00:00.000"),
        (1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789Z", "2023-11-14 22:13:20.123"),
        (2**63 - 1, "2262-04-11T23:47:16.854775807Z", "2262-04-11 23:47:16.854"),
        (-1, "1969-12-31T23:59:59.999999999Z", "1969-12-31 23:59:59.999"),
        (2**80, f"{2**80} ns", f"{2**80} ns"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00Z", "2026-01-02 03:00:00.000"),
    ],
)
def test_times(moment: datetime | int, exact: str, short: str) -> None:
    assert time_text(moment) == exact
    assert shown_time(moment) == short


def test_time_that_is_not_known() -> None:
    assert shown_time(None) == shown_time(0) == "-"


def printed(monkeypatch: pytest.MonkeyPatch, columns: str | None, work: object) -> str:
    import click

    @click.command()
    def command() -> None:
        assert callable(work)
        work()

    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    done = CliRunner().invoke(command)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_table_fits_80_columns_and_keeps_numbers_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("x" * 200, 1_234_567, "[red]:smile:\x1b[31m"), ("b", 2, None)]
    text = printed(monkeypatch, "80", lambda: print_table(["name", "messages", "note"], rows))
    assert max(map(len, text.splitlines())) <= 80
    assert "1,234,567" in text
    assert text.replace("\n", "").count("x") >= 200
    assert "[red]:smile:\\x1b[31m" in text


def test_table_that_is_too_wide_becomes_a_block_of_lines_for_each_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["stream", "subject", "messages", "bytes"]
    rows = [("orders", "orders.>", 1_234_567, 123_456_789), ("b", "c", 2, None)]
    text = printed(monkeypatch, "39", lambda: print_table(names, rows))
    assert text == (
        "stream    orders\nsubject   orders.>\nmessages  1,234,567\nbytes     123,456,789\n\n"
        "stream    b\nsubject   c\nmessages  2\nbytes     -\n\n"
    )
    assert len(printed(monkeypatch, "40", lambda: print_table(names, rows)).splitlines()) == 3


def test_table_for_a_pipe_has_one_line_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("x" * 200, 1), ("y", 2)]
    text = printed(monkeypatch, None, lambda: print_table(["name", "count"], rows))
    assert [line.split() for line in text.splitlines()] == [["name", "count"], ["x" * 200, "1"], ["y", "2"]]
    assert all(line == line.rstrip() for line in text.splitlines())


def test_facts_leave_out_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"messages": 12_000, "mirror": None, "is\x1bopen": True}
    text = printed(monkeypatch, "80", lambda: print_facts("Stream \x07", facts))
    assert text.splitlines() == ["Stream \\x07", "  messages    12,000", "  is\\x1bopen  yes"]


def test_folded_name_of_a_fact_keeps_its_indent(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"distinct subjects": 1, "created": "2026-11-28 09:14:49.570"}
    text = printed(monkeypatch, "30", lambda: print_facts("Stream S", facts))
    title, *lines = text.splitlines()
    assert title == "Stream S"
    assert [line[:3] for line in lines if line.lstrip().startswith("subjects")] == ["  s"]


def test_json_is_utf_8_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, None, lambda: echo_json({"a": "ä\n"})) == '{"a": "ä\\n"}\n'
