"""Limits on repeated log lines."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from dataclasses import dataclass

import pytest

from liftenvelope._logs import event_logger, log_event
from liftenvelope._logs.throttle import RepeatFilter, Throttle


def record(text: str, created: float, *args: object, name: str = "liftenvelope.x") -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, __file__, 1, text, args, None)
    made.created = created
    return made


def test_kinds_are_counted_apart() -> None:
    throttle = Throttle(2, seconds=10.0)
    assert [throttle.admits("a", 0.0) for _ in range(3)] == [True, True, False]
    assert throttle.admits("b", 0.0)
    assert not throttle.admits("a", 9.9)
    assert throttle.admits("a", 10.0)
    assert throttle.refused("a") == 2
    assert throttle.refused("a") == 0
    assert throttle.refused("unknown") == 0


def test_clock_that_is_set_back_begins_a_new_span() -> None:
    throttle = Throttle()
    assert throttle.admits("a", 1_000.0)
    assert throttle.admits("a", 10.0)
    assert not throttle.admits("a", 11.0)


def test_number_of_kinds_is_limited() -> None:
    throttle = Throttle()
    for number in range(5_000):
        assert throttle.admits(str(number), 0.0)
    assert len(throttle._spans) == 1_000
    assert not throttle.admits("4999", 1.0)


def test_repeated_lines_are_left_out_and_counted() -> None:
    limit = RepeatFilter()
    passed = [limit.filter(record("lost %d", 0.0, number)) for number in range(50)]
    assert passed == [True] * 20 + [False] * 30
    assert limit.filter(record("back", 0.0))
    assert limit.filter(record("lost %d", 0.0, 1, name="liftenvelope.y"))
    later = record("lost %d", 61.0, 7)
    assert limit.filter(later)
    assert later.getMessage() == "lost 7 (30 lines like this were left out)"
    assert later.left_out == 30  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Happened:
    error: Exception
    offset: int


@pytest.fixture
def lines() -> io.StringIO:
    """What the logger of a part ``test`` writes."""
    logger = event_logger("test")
    logger.setLevel(logging.INFO)
    logger.handlers[:] = [logging.StreamHandler(lines := io.StringIO())]
    return lines


def test_event_is_logged_without_secrets(lines: io.StringIO) -> None:
    event = Happened(ConnectionError("no connection to nats://me:s3cret@host:4222"), 7)
    texts: dict[type, tuple[int, str]] = {Happened: (logging.INFO, "%(consumer)s at %(offset)d: %(error)s")}
    log_event(event_logger("test"), texts, event, consumer="c")
    assert lines.getvalue() == "c at 7: no connection to nats://host:4222\n"


def test_event_without_a_line_or_below_the_level_is_not_logged(lines: io.StringIO) -> None:
    event = Happened(ConnectionError(), 7)
    log_event(event_logger("test"), {}, event)
    log_event(event_logger("test"), {Happened: (logging.DEBUG, "%(offset)d")}, event)
    assert lines.getvalue() == ""


@pytest.mark.parametrize("number", [1, 2])
def test_limit_on_lines_is_not_used_up_by_an_earlier_test(lines: io.StringIO, number: int) -> None:
    for _ in range(20):
        event_logger("test").info("a line")
    assert lines.getvalue().count("a line") == 20


def test_library_configures_no_handlers_or_levels() -> None:
    """In a process of its own: commands that ran in this one may have added a handler."""
    parts = ("bulk", "client", "gateway", "group", "jetstream", "nats", "rpc")
    names = ["liftenvelope", *(f"liftenvelope.{part}" for part in parts)]
    program = f"""
import logging
from importlib import import_module

for name in {names}:
    import_module(name)
loggers = [logging.getLogger(name) for name in {names}]
print([(one.name, one.handlers, one.level) for one in loggers if one.handlers or one.level])
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout == "[]\n"
