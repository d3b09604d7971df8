"""Configurations of streams and consumers: from files, with options on top, and what an edit changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from liftenvelope.cli._output.terminal import echo_json, plain, print_table, shown
from liftenvelope.errors import JetStreamError, UsageError

if TYPE_CHECKING:
    from liftenvelope.jetstream import ConsumerConfig, StreamConfig

    _Config = TypeVar("_Config", StreamConfig, ConsumerConfig)

__all__ = [
    "config_option",
    "overlaid",
    "own_metadata",
    "print_changes",
    "read_config",
    "refused_change",
    "setting_text",
]

#: Fields in seconds, which tables show with their unit.
_SECONDS: Final = frozenset(
    {
        "ack_wait",
        "backoff",
        "duplicate_window",
        "inactive_threshold",
        "max_age",
        "max_expires",
        "priority_timeout",
    }
)
#: Start of the names of metadata that servers write, such as their version.
_OF_SERVERS: Final = "_nats."
#: Words of nats-server about settings that no update changes.
_NEVER_CHANGES: Final = ("can not change", "can not be updated")

config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False),
    help="JetStream: file with the configuration as JSON; options override it.",
)


def read_config(path: str) -> dict[str, Any]:
    """Return a configuration in the server's form, also out of the output of ``info --json``.

    Raises:
        UsageError: The file has no JSON object.
    """
    try:
        found = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"--config must be a file with JSON, got {path}: {exc}") from exc
    if isinstance(found, dict) and isinstance(found.get("config"), dict):
        found = found["config"]
    if not isinstance(found, dict):
        raise UsageError(f"--config must be a file with a JSON object, got {type(found).__name__} in {path}")
    return found


def overlaid(kind: type[_Config], base: Mapping[str, Any], fields: Mapping[str, Any]) -> _Config:
    """Return a configuration in the server's form with fields replaced.

    A field that is set to the server's default, such as -1 for no limit, replaces another value too.

    Raises:
        UsageError: A value is invalid.
    """
    written = kind(**fields).to_json()
    kept = {name: value for name, value in base.items() if name not in fields}
    return kind.from_json({**kept, **{name: written[name] for name in fields if name in written}})


@contextmanager
def refused_change(kind: str) -> Iterator[None]:
    """Add to the error for a setting that never changes what to do: create another stream or consumer."""
    try:
        yield
    except JetStreamError as exc:
        if not any(words in exc.description for words in _NEVER_CHANGES):
            raise
        text = f"{exc.description}: create another {kind} for it"
        raise type(exc)(exc.code, text, exc.err_code) from exc


def print_changes(
    kind: str,
    names: Mapping[str, str],
    old: StreamConfig | ConsumerConfig,
    new: StreamConfig | ConsumerConfig,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Print the settings that an edit changes, before and after.

    Args:
        kind: ``stream`` or ``consumer``.
        names: Names for JSON, such as ``{"stream": "orders"}``; the one of ``kind`` is shown to people.
        old: Configuration before the edit.
        new: Configuration after it.
        dry_run: True if nothing was changed.
        as_json: Print JSON.
    """
    was, now = _fields(old), _fields(new)
    changed = [name for name in now if was[name] != now[name]]
    if as_json:
        changes = {name: {"old": was[name], "new": now[name]} for name in changed}
        echo_json({**names, "dry_run": dry_run, "changes": changes})
    elif changed:
        rows = [(name, setting_text(name, was[name]), setting_text(name, now[name])) for name in changed]
        print_table(["setting", "old", "new"], rows)
    else:
        click.echo(shown(f"{kind} {names[kind]} has these settings already"))


def _fields(config: StreamConfig | ConsumerConfig) -> dict[str, Any]:
    found: dict[str, Any] = plain(config)
    return {**found, "metadata": own_metadata(config.metadata)}


def own_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return metadata without what servers write into it."""
    return {name: value for name, value in metadata.items() if not name.startswith(_OF_SERVERS)}


def setting_text(name: str, value: object) -> str:
    """Return the value of a setting for people, ``-`` for none."""
    if isinstance(value, list | tuple):
        return ", ".join(setting_text(name, one) for one in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}={one}" for key, one in value.items()) or "-"
    if value in (None, ""):
        return "-"
    if name in _SECONDS and isinstance(value, float):
        return f"{value:g} s"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)
