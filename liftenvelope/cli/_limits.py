"""The option ``--limit NAME=VALUE`` of ``liftenvelope serve``."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftenvelope.gateway.limits import Limits

__all__ = ["parse_limits"]


def parse_limits(given: Iterable[str], max_message: int | None = None) -> Limits:
    """Return the limits of a command line, with defaults for the others.

    Args:
        given: One ``NAME=VALUE`` per limit. The prefixes of ``allowed_ack_inboxes`` are separated by commas.
        max_message: Value of ``--max-message``, an alias of ``max_message_bytes``.

    Raises:
        click.BadParameter: A name is unknown, a value is invalid, or the same limit is given by both options.
    """
    from liftenvelope.gateway.limits import Limits

    limits = Limits() if max_message is None else Limits(max_message_bytes=max_message)
    kinds = {one.name: type(one.default) for one in fields(Limits)}
    for text in given:
        name, found, value = text.partition("=")
        if name not in kinds or not found:
            known = ", ".join(sorted(kinds))
            raise _bad(f"{text!r} must be NAME=VALUE, with one of the names {known}")
        if name == "max_message_bytes" and max_message is not None:
            raise _bad(f"{text!r} and --max-message are the same limit: give one of them")
        try:
            limits = replace(limits, **{name: _value(kinds[name], name, value)})
        except UsageError as exc:
            raise _bad(f"{text!r}: {exc}") from exc
    return limits


def _value(kind: type, name: str, text: str) -> Any:
    if kind is tuple:
        return tuple(text.split(",")) if text else ()
    try:
        return kind(text)
    except ValueError as exc:
        what = "an integer" if kind is int else "a number of seconds"
        raise UsageError(f"{name} must be {what}, got {text!r}") from exc


def _bad(text: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint="'--limit'")
