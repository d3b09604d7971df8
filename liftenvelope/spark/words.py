"""Options as text: what Spark hands to a source is a mapping of words, whatever their case."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from liftenvelope.spark.errors import OptionError

__all__ = ["Words", "duration", "nearest"]

_TRUTH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
#: Units of durations, in seconds: those of Spark's own options.
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
#: What other sources and sinks call it, where the letters are no hint.
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
    """Return a hint at the known name that was probably meant, or at all of them."""
    names = {one.lower(): one for one in known}
    # Kafka's client has its settings with dots in them: kafka.bootstrap.servers.
    last = name.lower().rsplit(".", 1)[-1]
    found = [one for one in _ELSEWHERE.get(last, ()) if one.lower() in names]
    found = [one.lower() for one in found] or difflib.get_close_matches(last, names, 1, 0.6)
    if found:
        return f"did you mean {names[found[0]]!r}?"
    return f"expected some of {', '.join(sorted(names.values()))}"


class Words:
    """The options of one source or sink, taken one after the other.

    Args:
        given: Names and texts; the case of names does not matter.
        known: Every name that means something.
        ignored: Names that Spark adds by itself.

    Raises:
        OptionError: A name is unknown; the nearest known one is named.
    """

    def __init__(self, given: Mapping[str, Any], known: Iterable[str], ignored: Iterable[str] = ()) -> None:
        self._names = {name.lower(): name for name in known}
        passed_over = {name.lower() for name in ignored}
        self._texts: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() in self._names:
                self._texts[name.lower()] = str(value).strip()
            elif name.lower() not in passed_over:
                raise OptionError(f"there is no option {name!r}: {nearest(name, self._names.values())}")

    def text(self, name: str) -> str | None:
        """Return an option's text, None if it was not given.

        Raises:
            OptionError: It is empty.
        """
        found = self._texts.get(name.lower())
        if found == "":
            raise OptionError(f"{name}='': expected some text")
        return found

    def given(self, *names: str) -> list[str]:
        """Return which of these options were given."""
        return [name for name in names if name.lower() in self._texts]

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of some words, the first of them by default.

        Raises:
            OptionError: It is none of them.
        """
        found = self.text(name)
        if found is None:
            return choices[0]
        if found.lower() not in choices:
            raise OptionError(f"{name}={found!r}: {nearest(found, choices)}")
        return found.lower()

    def truth(self, name: str, default: bool) -> bool:
        """Return whether something is wanted.

        Raises:
            OptionError: The text is neither ``true`` nor ``false``.
        """
        found = self.text(name)
        if found is None:
            return default
        if found.lower() not in _TRUTH:
            raise OptionError(f"{name}={found!r}: expected 'true' or 'false'")
        return _TRUTH[found.lower()]

    def number(self, name: str, least: int = 1) -> int | None:
        """Return a whole number, None if it was not given.

        Raises:
            OptionError: It is none, or out of range.
        """
        found = self.text(name)
        if found is None:
            return None
        number = whole(found)
        if number is None or not least <= number <= _LARGEST:
            raise OptionError(f"{name}={found!r}: expected a whole number, {least} or more")
        return number

    def seconds(self, name: str, default: float) -> float:
        """Return a time such as ``90s``, ``15m`` or ``500ms``, in seconds; a bare number is of seconds.

        Raises:
            OptionError: It is none.
        """
        found = self.text(name)
        return default if found is None else duration(name, found)

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Return a JSON object, None if it was not given.

        Raises:
            OptionError: It is none, or names something twice.
        """
        found = self.text(name)
        if found is None:
            return None
        try:
            made = json.loads(found, object_pairs_hook=_once)
        except ValueError as exc:
            raise OptionError(f"{name}={found!r}: expected a JSON object: {exc}") from exc
        if not isinstance(made, dict):
            raise OptionError(f"{name}={found!r}: expected a JSON object")
        return made


def whole(text: str) -> int | None:
    """Return the whole number that a text is, None if it is none: ASCII digits, perhaps after a minus."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands in it twice")
    return found


def duration(name: str, text: str) -> float:
    """Return the seconds of a text such as ``90s``, ``15m`` or ``500ms``.

    Raises:
        OptionError: It is no such time, or not positive.
    """
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip() or "s"
    try:
        found = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        found = math.nan
    if not 0 < found < math.inf:
        raise OptionError(f"{name}={text!r}: expected a time such as 500ms, 90s or 15m")
    return found
