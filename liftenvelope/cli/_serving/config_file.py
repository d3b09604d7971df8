"""The file of ``liftenvelope serve --config``: TOML with a table for each group of settings.

Unknown keys and wrong types are errors, because a setting that is silently ignored shows only in production.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final

import click

from liftenvelope._secrets import without_secrets
from liftenvelope.cli._serving.settings import SETTINGS, Setting
from liftenvelope.errors import UsageError

__all__ = ["LIMITS", "ConfigFile", "read_config"]

#: Table of the limits on clients.
LIMITS: Final = "limits"
_LONGEST_SHOWN: Final = 60
_TYPES: Final[Mapping[type, str]] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    tuple: "an array of strings",
    dict: "a table",
}


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Content of a file of settings, checked.

    Attributes:
        path: Path of the file, as given.
        settings: Values by the names of the settings.
        limits: Values by the names of the limits.
    """

    path: str
    settings: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)


def read_config(path: str) -> ConfigFile:
    """Read a file of settings.

    Raises:
        UsageError: The file can't be read or is not TOML, a key is unknown, or a value has the wrong type or
            is out of range. The text names file and key.
    """
    from liftenvelope.gateway.toml_file import load_toml

    shown = without_secrets(path)
    found = ConfigFile(shown)
    for table, entries in load_toml(path, shown).items():
        known = _entries()
        if table not in known:
            raise UsageError(f"{shown}: {_unknown_table(table, entries, known)}")
        if not isinstance(entries, dict):
            raise UsageError(f"{shown}: [{table}] must be a table, got {_got(entries)}")
        for entry, value in entries.items():
            if entry not in known[table]:
                raise UsageError(f"{shown}: [{table}] {_unknown(table, entry, known)}")
            where = f"{shown}: [{table}] {entry}"
            what = known[table][entry]
            if isinstance(what, Setting):
                found.settings[what.name] = _checked(where, what, value)
            else:
                _check_type(where, what, value)
                found.limits[entry] = value
    return found


def _entries() -> dict[str, dict[str, Setting | type]]:
    """Return what is known: by table, then by key. Limits have the type of their default."""
    from liftenvelope.gateway.limits import Limits

    known: dict[str, dict[str, Setting | type]] = {}
    for setting in SETTINGS:
        known.setdefault(setting.table, {})[setting.entry] = setting
    known[LIMITS] = {one.name: type(one.default) for one in fields(Limits)}
    return known


def _unknown_table(table: str, entries: object, known: Mapping[str, Mapping[str, object]]) -> str:
    if not isinstance(entries, dict):
        return _unknown("", table, known)
    return f"[{table}] is unknown: {_advice(table, known, '[{}]')}"


def _unknown(table: str, entry: str, known: Mapping[str, Mapping[str, object]]) -> str:
    elsewhere = [other for other, entries in known.items() if entry in entries]
    if elsewhere:
        return f"{entry} is unknown: did you mean [{elsewhere[0]}] {entry}?"
    return f"{entry} is unknown: {_advice(entry, known.get(table, known), '{}' if table else '[{}]')}"


def _advice(name: str, known: Iterable[str], form: str) -> str:
    if near := get_close_matches(name, known, 1):
        return f"did you mean {form.format(near[0])}?"
    return f"use one of {', '.join(map(form.format, sorted(known)))}"


def _checked(where: str, setting: Setting, value: Any) -> Any:
    _check_type(where, _type_of(setting), value)
    try:
        return click.types.convert_type(setting.kind).convert(value, None, None)
    except click.BadParameter as exc:
        raise UsageError(f"{where}: {exc.message}") from exc


def _type_of(setting: Setting) -> type:
    if isinstance(setting.kind, type):
        return setting.kind
    numbers: dict[type, type] = {click.IntRange: int, click.FloatRange: float}
    return numbers.get(type(setting.kind), str)


def _check_type(where: str, expected: type, value: object) -> None:
    """Check the type of a value; strings may have no control characters, since most of them are paths.

    Raises:
        UsageError: The value has another type.
    """
    strings = value if isinstance(value, list) and expected is tuple else [value]
    texts = all(isinstance(one, str) for one in strings)
    fits: dict[type, bool] = {
        tuple: isinstance(value, list) and texts,
        str: isinstance(value, str),
        bool: isinstance(value, bool),
        int: isinstance(value, int) and not isinstance(value, bool),
        float: isinstance(value, int | float) and not isinstance(value, bool),
    }
    if not fits[expected]:
        raise UsageError(f"{where} must be {_TYPES[expected]}, got {_got(value)}")
    if texts and not all(str(one).isprintable() for one in strings):
        raise UsageError(f"{where} must have no control characters, got {_got(value)}")


def _got(value: object) -> str:
    """Describe a value of the wrong type. An array or a table may hold a password, so they are not shown."""
    kind = _TYPES.get(type(value), "a date or a time")
    if isinstance(value, str):
        shown = without_secrets(value)
        return f"{kind}, {shown[:_LONGEST_SHOWN]!r}{'...' if len(shown) > _LONGEST_SHOWN else ''}"
    if isinstance(value, bool):
        return f"{kind}, {str(value).lower()}"
    return f"{kind}, {value!r:.{_LONGEST_SHOWN}}" if isinstance(value, int | float) else kind
