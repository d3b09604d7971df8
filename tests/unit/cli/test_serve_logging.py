"""The log of ``liftenvelope serve``: its lines of text and of JSON, and its levels."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from liftenvelope.cli._serving.logging import JsonFormatter, TextFormatter


def record(text: str, *args: object, **more: Any) -> logging.LogRecord:
    logger = logging.getLogger("liftenvelope.client")
    return logger.makeRecord(logger.name, logging.WARNING, __file__, 1, text, args, None, extra=more)


def formatted(one: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(one)
    assert line.isascii()
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_json_line_has_time_level_logger_message_and_extras() -> None:
    one = record("lost at %d", 7, stream="orders", partition=0, position=None)
    one.created = datetime(2026, 1, 31, 12, 0, 0, 123_000, UTC).timestamp()
    assert formatted(one) == {
        "time": "2026-01-31T12:00:00.123Z",
        "level": "warning",
        "logger": "liftenvelope.client",
        "message": "lost at 7",
        "stream": "orders",
        "partition": 0,
        "position": None,
    }


def test_json_line_has_the_exception() -> None:
    one = record("failed")
    try:
        raise ValueError("wrong\nvalue")
    except ValueError:
        one.exc_info = sys.exc_info()
    found = formatted(one)
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: wrong\nvalue")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.inf, "inf"),
        (math.nan, "nan"),
        (b"\xff", "b'\\xff'"),
        (ValueError("x"), "x"),
        ("a\udcff\n", "a\udcff\n"),
        ((1, [2.5, {"a": None}]), [1, [2.5, {"a": None}]]),
    ],
)
def test_json_line_holds_any_extra(value: object, expected: object) -> None:
    assert formatted(record("text", value=value))["value"] == expected


def test_json_line_of_an_extra_that_contains_itself() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert formatted(record("text", value=endless))["value"]


def test_extra_does_not_replace_a_field_of_the_line() -> None:
    assert formatted(record("text", level="none", time="never", logger="mine"))["level"] == "warning"


def test_text_line_can_not_be_forged_or_change_the_terminal() -> None:
    line = TextFormatter().format(record("refused %s", "a\n2026-01-31 ERROR b\r\x1b[31m\u2028\x9b"))
    assert line.endswith("WARNING refused a\\n2026-01-31 ERROR b\\r\\x1b[31m\\u2028\\x9b")
    assert len(line.splitlines()) == 1


#: Logs on every logger and level, after the log was started with the arguments of the command line.
PROGRAM = """
import logging, sys
from liftenvelope.cli._serving.logging import start_logging

start_logging(*sys.argv[1:])
import warnings

warnings.warn("a warning")
for name in ("liftenvelope.client", "liftenvelope.gateway", "liftenvelope.gateway.nats", "asyncio", "hpack"):
    for level in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger(name), level)("%s %s", name, level)
"""


@pytest.mark.parametrize(
    ("level", "nats", "own", "others"),
    [
        ("off", "off", [], []),
        ("error", "warn", ["error"], ["warning", "error"]),
        ("warn", "info", ["warning", "error"], ["info", "warning", "error"]),
        ("info", "error", ["info", "warning", "error"], ["error"]),
        ("debug", "debug", ["debug", "info", "warning", "error"], ["debug", "info", "warning", "error"]),
    ],
)
def test_level_is_that_of_our_own_loggers_alone(
    level: str, nats: str, own: list[str], others: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, level, "json", nats], capture_output=True, text=True, check=True
    )
    warning, *lines = [json.loads(line)["message"] for line in done.stderr.splitlines()]
    assert "UserWarning: a warning" in warning
    expected = [f"liftenvelope.{part} {one}" for part in ("client", "gateway") for one in own]
    expected += [f"liftenvelope.gateway.nats {one}" for one in others]
    # Frames of asyncio and hpack would hide everything else.
    expected += [f"{name} {one}" for name in ("asyncio", "hpack") for one in ("warning", "error")]
    assert lines == expected
