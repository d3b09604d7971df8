"""Durations, sizes and start positions of the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from liftenvelope.cli._options.places import DurationType, SizeType, StartType

START = StartType("earliest", "latest", "new")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("15m", 900),
        ("1h", 3600),
        ("7d", 604_800),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("5", 5),
        ("0", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert DurationType().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "1y", "1h30m", "\u0661h", "1e5s", " 1h", "1" * 50 + "h"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(click.BadParameter, match="must be a duration such as"):
        DurationType().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512),
        ("64K", 65_536),
        ("1GB", 2**30),
        ("1gib", 2**30),
        ("1.5M", 1_572_864),
        ("-1", -1),
        ("9223372036854775", 9223372036854775),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert SizeType().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "-2", "1X", "K", "1e3", "\u0663", "0x10"])
def test_invalid_sizes(text: str) -> None:
    with pytest.raises(click.BadParameter, match="must be a size such as"):
        SizeType().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("-5", -5),
        ("5", 5),
        ("0", 0),
        ("1h", timedelta(hours=1)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_starts(text: str, start: Any) -> None:
    assert START.convert(text, None, None) == start


def test_age_older_than_any_message_is_1970() -> None:
    for text in ("999999999d", "999999999w"):
        age = START.convert(text, None, None)
        assert abs((datetime.now(UTC) - age).timestamp()) < 86_400


def test_offset_beyond_64_bits() -> None:
    with pytest.raises(click.BadParameter, match="must be at most 9223372036854775807"):
        START.convert(str(2**63), None, None)


@pytest.mark.parametrize("text", ["", "-0", "--5", "-5x", "soon", "-1h", "\u0665"])
def test_invalid_starts(text: str) -> None:
    with pytest.raises(click.BadParameter, match="-N for the last N messages, an age such as 1h"):
        START.convert(text, None, None)
