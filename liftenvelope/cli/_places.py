"""What the commands on streams have in common: their options, and how places in a stream are said."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

__all__ = ["Place", "check_lines", "fail_cleanly", "url_option"]

#: What files with lines of JSON are called. Others, such as .csv, are of another kind.
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


class Place(_ParamType):
    """A word, an offset, or a moment in ISO form (UTC unless it says otherwise)."""

    name = "place"

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word, an int or a datetime."""
        if value in self._words or not isinstance(value, str):
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            expected = ", ".join([*self._words, "an offset", "a moment such as 2026-01-31T12:00"])
            self.fail(f"{value!r}: expected {expected}", param, ctx)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def check_lines(option: str, path: str) -> None:
    """Make sure that nobody expects more of a file than lines of JSON.

    Raises:
        click.UsageError: Its name has the ending of another kind.
    """
    if Path(path).suffix.lower() not in _LINES:
        text = f"{option} {path}: expected a .parquet file, or .ndjson for lines of JSON"
        raise click.UsageError(text)


def fail_cleanly(work: Callable[[], object]) -> None:
    """Do something, with the errors of the package and of files as those of the command.

    Raises:
        click.ClickException: One occurred.
        BrokenPipeError: Nobody reads what is printed any more.
    """
    from liftenvelope.errors import LiftEnvelopeError, UsageError

    try:
        work()
    except UsageError as exc:
        raise click.UsageError(str(exc)) from exc
    except BrokenPipeError:  # click ends without a word
        raise
    except (LiftEnvelopeError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc
