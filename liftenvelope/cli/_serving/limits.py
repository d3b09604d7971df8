"""Limits of ``liftenvelope serve``: from ``--limit``, from environment variables and from the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields, replace
from typing import TYPE_CHECKING, Any

import click

from liftenvelope.cli._serving.settings import PREFIX
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.cli._serving.config_file import ConfigFile
    from liftenvelope.gateway.limits import Limits

__all__ = ["limit_variable", "parse_limits"]


def limit_variable(name: str) -> str:
    """Return the environment variable of a limit."""
    return f"{PREFIX}LIMIT_{name.upper()}"


def parse_limits(
    given: Iterable[str],
    max_message: int | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    file: ConfigFile | None = None,
) -> tuple[Limits, dict[str, str]]:
    """Return the limits, and the origin of each that is not a default.

    A limit of the command line replaces that of the environment, which replaces that of the file.

    Args:
        given: One ``NAME=VALUE`` per limit. The prefixes of ``allowed_ack_inboxes`` are separated by commas.
        max_message: Value of ``--max-message``, an alias of ``max_message_bytes``.
        environment: Environment variables. Default: none.
        file: File of settings. Default: none.

    Raises:
        click.BadParameter: An option has an unknown name or an invalid value, or gives a limit twice.
        UsageError: A value of the environment or of the file is invalid.
    """
    from liftenvelope.gateway.limits import Limits

    limits, origins = Limits(), {}
    for name, value in (file.limits if file is not None else {}).items():
        assert file is not None
        limits = _replaced(limits, name, value, f"{file.path}: [limits] ")
        origins[name] = "file"
    for name, text in _variables(fields(Limits), environment or {}):
        limits = _replaced(limits, name, text, f"{limit_variable(name)}: ")
        origins[name] = "environment"
    if max_message is not None:
        limits = replace(limits, max_message_bytes=max_message)
        origins["max_message_bytes"] = "option"
    for text in given:
        name, found, value = text.partition("=")
        if not found or name not in {one.name for one in fields(Limits)}:
            known = ", ".join(sorted(one.name for one in fields(Limits)))
            raise _bad(f"{text!r} must be NAME=VALUE, with one of the names {known}")
        if name == "max_message_bytes" and max_message is not None:
            raise _bad(f"{text!r} and --max-message are the same limit: give one of them")
        try:
            limits = _replaced(limits, name, value, "")
        except UsageError as exc:
            raise _bad(f"{text!r}: {exc}") from exc
        origins[name] = "option"
    return limits, origins


def _variables(limits: Iterable[Field[Any]], environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the limits in environment variables. An empty variable counts as not set."""
    for one in limits:
        if text := environment.get(limit_variable(one.name)):
            yield one.name, text


def _replaced(limits: Limits, name: str, value: Any, where: str) -> Limits:
    """Return limits with another value, which may be text.

    Raises:
        UsageError: The value is invalid. The text begins with ``where``.
    """
    try:
        return replace(limits, **{name: _value(type(getattr(limits, name)), name, value)})
    except UsageError as exc:
        raise UsageError(f"{where}{exc}") from exc


def _value(kind: type, name: str, given: Any) -> Any:
    if kind is tuple:
        return tuple(given) if isinstance(given, list) else tuple(given.split(",")) if given else ()
    try:
        return kind(given)
    except (ValueError, OverflowError) as exc:
        what = "an integer" if kind is int else "a number of seconds"
        raise UsageError(f"{name} must be {what}, got {given!r}") from exc


def _bad(text: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint="'--limit'")
