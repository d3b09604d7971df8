"""Shared parts of the commands on streams: options, and start and stop positions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

__all__ = ["PlaceType", "check_lines", "fail_cleanly", "url_option"]

#: File suffixes that are accepted for lines of JSON. Other suffixes, such as .csv, imply another format.
_LINES: Final = ("", ".ndjson", ".jsonl", ".json", ".txt", ".log")

_F = TypeVar("_F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:  # generic only in new versions of click
    _ParamType = click.ParamType

url_option = click.option(
    "--url",
    envvar="LIFTENVELOPE_URL",
    required=True,
    metavar="URL",
    show_envvar=True,
    help="nats://host:port for JetStream, liftbridge://host:port for Liftbridge; several between commas.",
)


class PlaceType(_ParamType):
    """A keyword, an offset, or a time in ISO format (UTC if it has no offset)."""

    name = "place"

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the keyword, an int or a datetime."""
        if value in self._words or not isinstance(value, str):
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            expected = ", ".join([*self._words, "an offset", "a time such as 2026-01-31T12:00"])
            self.fail(f"must be one of {expected}, got {value!r}", param, ctx)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def check_lines(option: str, path: str) -> None:
    """Check that a file's suffix allows lines of JSON.

    Raises:
        click.UsageError: The suffix implies another format.
    """
    if Path(path).suffix.lower() not in _LINES:
        text = f"{option} must be a .parquet file, or .ndjson for lines of JSON, got {path}"
        raise click.UsageError(text)


def fail_cleanly(work: Callable[[], object]) -> None:
    """Call ``work``; convert errors of the package and of files to errors of the command.

    Raises:
        click.ClickException: ``work`` failed.
        BrokenPipeError: The reader of the output has closed the pipe.
    """
    from liftenvelope.errors import LiftEnvelopeError, UsageError

    try:
        work()
    except UsageError as exc:
        raise click.UsageError(str(exc)) from exc
    except BrokenPipeError:  # click exits silently
        raise
    except (LiftEnvelopeError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc
