"""Options of the commands that decode or encode the values of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from liftenvelope.cli._options.places import check_file, complete_path

__all__ = ["bad_messages", "payload_of", "with_payload"]

_F = TypeVar("_F", bound=Callable[..., Any])

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    _ParamType = click.ParamType[Any]
else:  # generic only in new versions of click
    _ParamType = click.ParamType

_RAW: Final = "raw"
_FORMATS: Final = (_RAW, "json", "msgpack", "arrow", "avro", "protobuf")


class _PayloadType(_ParamType):
    """Name of a format, or a JSON object with its options, which becomes a dict."""

    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in _FORMATS:
            return value
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            expected = f"one of {', '.join(_FORMATS)}, or a JSON object with the key format"
            self.fail(f"must be {expected}, got {value!r:.100}", param, ctx)
        return found

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - of click
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in _FORMATS if name.startswith(incomplete)]


def with_payload(help_: str) -> Callable[[_F], _F]:
    """Return a decorator that adds ``--payload``, ``--schema`` and ``--message``. See :func:`payload_of`.

    Args:
        help_: Beginning of the help of ``--payload``.
    """
    names = ", ".join(_FORMATS)

    def decorate(function: _F) -> _F:
        for option in (
            click.option(
                "--message", metavar="NAME", help="With --payload protobuf: full name of the message type."
            ),
            click.option(
                "--schema",
                metavar="FILE",
                shell_complete=complete_path,
                help="Schema of the payload. avro: the schema in JSON; protobuf: a descriptor set of protoc "
                "--include_imports --descriptor_set_out; json, msgpack, arrow: names and types in JSON, such "
                'as {"id": "int64"}.',
            ),
            click.option(
                "--payload",
                default=_RAW,
                show_default=True,
                type=_PayloadType(),
                metavar="FORMAT",
                help=f"{help_} One of {names}, or a JSON object such as "
                """'{"format": "json", "unknown": "keep"}'.""",
            ),
        ):
            function = option(function)
        return function

    return decorate


def payload_of(payload: str | dict[str, Any], schema: str | None, message: str | None) -> Any:
    """Return the argument ``payload`` of :mod:`liftenvelope.bulk` for the options.

    Raises:
        click.UsageError: The options do not fit together, or the file can't be read.
    """
    _check(payload, schema, message)
    if schema is None:
        return payload
    check_file("--schema", schema)
    if payload == "protobuf":
        return {"format": payload, "file": Path(schema), "message": message}
    return {"format": payload, "schema": _read(schema)}


def _check(payload: str | dict[str, Any], schema: str | None, message: str | None) -> None:
    if isinstance(payload, dict):
        if schema is not None or message is not None:
            option = "--schema" if schema is not None else "--message"
            raise click.UsageError(f"{option} must be left out with a JSON object in --payload")
    elif schema is not None and payload == _RAW:
        raise click.UsageError("--schema needs --payload, such as --payload avro")
    elif schema is None and payload in ("avro", "protobuf"):
        raise click.UsageError(f"--payload {payload} needs --schema with a file")
    elif payload == "protobuf" and message is None:
        raise click.UsageError("--payload protobuf needs --message with the name of the message type")
    elif payload != "protobuf" and message is not None:
        raise click.UsageError("--message must be left out without --payload protobuf")


def _read(path: str) -> Any:
    try:
        found = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as exc:
        raise click.UsageError(f"--schema must be a file with JSON, got {path!r}: {exc}") from exc
    if not isinstance(found, dict):
        raise click.UsageError(f"--schema must be a file with a JSON object, got {path!r}")
    return found


def bad_messages(stream: str, source: Any, how: dict[str, Any]) -> Any:
    """Return the argument ``on_bad`` of :mod:`liftenvelope.bulk` for the options, which are removed.

    Args:
        stream: Stream to read.
        source: Servers of the stream.
        how: Options of the command.

    Raises:
        click.UsageError: The options do not fit together.
    """
    on_bad, letters, subject = (how.pop(name) for name in ("on_bad", "dead_letter", "dead_letter_subject"))
    _check_bad(on_bad, letters, subject, how["payload"])
    if letters is None:
        return on_bad or "fail"
    if letters == stream:
        raise click.UsageError(f"--dead-letter must be another stream than STREAM, got {letters!r}")
    from liftenvelope import bulk
    from liftenvelope.bulk.access import ServerKind, find_target

    if subject is None and find_target(source, how["access"]).kind is ServerKind.NATS:
        raise click.UsageError("--dead-letter needs --dead-letter-subject for a stream of JetStream")
    return bulk.DeadLetter(stream=letters, subject=subject)


def _check_bad(on_bad: str | None, letters: str | None, subject: str | None, payload: object) -> None:
    for option, value in (("--on-bad", on_bad), ("--dead-letter", letters)):
        if value is not None and payload == _RAW:
            raise click.UsageError(f"{option} needs --payload: without it no message is bad")
    if subject is not None and letters is None:
        raise click.UsageError("--dead-letter-subject needs --dead-letter")
    if on_bad is not None and letters is not None:
        raise click.UsageError("--on-bad must be left out with --dead-letter, which takes bad messages")
