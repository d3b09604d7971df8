"""Parses options: Spark passes a source a mapping of texts whose names are case-insensitive."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from liftenvelope.spark.errors import OptionError

__all__ = ["Words", "duration", "nearest"]

_TRUTH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
#: Units of durations in seconds, as in Spark's own options.
_UNITS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_LARGEST: Final = 2**63 - 1
#: Names in other sources and sinks, where spelling gives no hint.
_ELSEWHERE: Final = {
    "brokers": ("servers",),
    "url": ("servers",),
    "stream": ("subscribe", "topic"),
    "streams": ("subscribe",),
    "topic": ("subscribe",),
    "subscribe": ("topic",),
    "pattern": ("subscribePattern",),
    "partitions": ("minPartitions",),
    "batchsize": ("maxOffsetsPerTrigger",),
}


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name that was probably meant, or at all known names."""
    names = {one.lower(): one for one in known}
    # Names of Kafka settings have dots: kafka.bootstrap.servers.
    last = name.lower().rsplit(".", 1)[-1]
    found = [one for one in _ELSEWHERE.get(last, ()) if one.lower() in names]
    found = [one.lower() for one in found] or difflib.get_close_matches(last, names, 1, 0.6)
    if found:
        return f"did you mean {names[found[0]]!r}?"
    return f"expected one of {', '.join(sorted(names.values()))}"


class Words:
    """Typed access to the options of one source or sink.

    Args:
        given: Names and texts; names are case-insensitive.
        known: Every known name.
        ignored: Names that Spark adds by itself.

    Raises:
        OptionError: A name is unknown. The text suggests the nearest known one.
    """

    def __init__(self, given: Mapping[str, Any], known: Iterable[str], ignored: Iterable[str] = ()) -> None:
        self._names = {name.lower(): name for name in known}
        passed_over = {name.lower() for name in ignored}
        self._texts: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() in self._names:
                self._texts[name.lower()] = str(value).strip()
            elif name.lower() not in passed_over:
                raise OptionError(f"unknown option {name!r}: {nearest(name, self._names.values())}")

    def text(self, name: str) -> str | None:
        """Return the text of an option; None if the option is missing.

        Raises:
            OptionError: The text is empty.
        """
        found = self._texts.get(name.lower())
        if found == "":
            raise OptionError(f"{name} must not be empty; give it a value or leave it out")
        return found

    def given(self, *names: str) -> list[str]:
        """Return those of these options that were given."""
        return [name for name in names if name.lower() in self._texts]

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of several words; the first is the default.

        Raises:
            OptionError: The text is none of the words.
        """
        found = self.text(name)
        if found is None:
            return choices[0]
        if found.lower() not in choices:
            expected = " or ".join(map(repr, choices))
            raise OptionError(f"{name} must be {expected}, got {found!r}")
        return found.lower()

    def truth(self, name: str, default: bool) -> bool:
        """Return a boolean option.

        Raises:
            OptionError: The text is neither ``true`` nor ``false``.
        """
        found = self.text(name)
        if found is None:
            return default
        if found.lower() not in _TRUTH:
            raise OptionError(f"{name} must be 'true' or 'false', got {found!r}")
        return _TRUTH[found.lower()]

    def number(self, name: str, least: int = 1) -> int | None:
        """Return a whole number; None if the option is missing.

        Raises:
            OptionError: The text is not a whole number, or is out of range.
        """
        found = self.text(name)
        if found is None:
            return None
        number = whole(found)
        if number is None or not least <= number <= _LARGEST:
            raise OptionError(f"{name} must be a whole number of at least {least}, got {found!r}")
        return number

    def seconds(self, name: str, default: float) -> float:
        """Return a duration such as ``90s``, ``15m`` or ``500ms`` in seconds; a bare number is in seconds.

        Raises:
            OptionError: The text is not a duration.
        """
        found = self.text(name)
        return default if found is None else duration(name, found)

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Return a JSON object; None if the option is missing.

        Raises:
            OptionError: The text is not a JSON object, or repeats a name.
        """
        found = self.text(name)
        if found is None:
            return None
        try:
            made = json.loads(found, object_pairs_hook=_once)
        except ValueError as exc:
            raise OptionError(f"{name} must be a JSON object, got {found!r}: {exc}") from exc
        if not isinstance(made, dict):
            raise OptionError(f"{name} must be a JSON object, got {found!r}")
        return made


def whole(text: str) -> int | None:
    """Parse a whole number; None if the text is not one: ASCII digits, optionally after a minus sign."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is repeated")
    return found


def duration(name: str, text: str) -> float:
    """Parse a duration such as ``90s``, ``15m`` or ``500ms``; return seconds.

    Raises:
        OptionError: The text is not a duration, or not positive.
    """
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip() or "s"
    try:
        found = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        found = math.nan
    if not 0 < found < math.inf:
        raise OptionError(f"{name} must be a time such as 500ms, 90s or 15m, got {text!r}")
    return found
