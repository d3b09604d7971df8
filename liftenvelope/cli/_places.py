"""What the commands on streams have in common: their options, and how places in a stream are said."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

__all__ = ["Place", "fail_cleanly", "url_option"]

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


def fail_cleanly(work: Callable[[], None]) -> None:
    """Do something, with the errors of the package and of files as those of the command.

    Raises:
        click.ClickException: One occurred.
    """
    from liftenvelope.errors import LiftEnvelopeError, UsageError

    try:
        work()
    except UsageError as exc:
        raise click.UsageError(str(exc)) from exc
    except (LiftEnvelopeError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc
