"""Shared parts of the commands on streams: options, and start and stop positions."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from liftenvelope._checks import MAX_INT64

__all__ = [
    "AddressType",
    "DurationType",
    "NumberType",
    "PlaceType",
    "SizeType",
    "StartType",
    "TimeType",
    "check_file",
    "check_folder",
    "check_lines",
    "check_open",
    "complete_path",
    "fail_cleanly",
]

#: File suffixes that are accepted for lines of JSON. Other suffixes, such as .csv, imply another format.
_LINES: Final = ("", ".ndjson", ".jsonl", ".json", ".txt", ".log")

_F = TypeVar("_F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:  # generic only in new versions of click
    _ParamType = click.ParamType

#: Durations such as 90s, 15m, 1h or 1.5d.
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d|w)", re.ASCII)
_TIME: Final = "a time such as 2026-01-31T12:00"
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
#: Sizes such as 512, 64K, 1.5GiB or 2GB. All units are powers of 1,024, as in the nats command.
_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_FACTORS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class NumberType(click.IntRange):
    """A whole number within bounds, which errors call *integer*, not *integer range* as Click does."""

    name = "integer"


class DurationType(_ParamType):
    """A duration such as ``30s``, ``15m``, ``1h`` or ``7d``, as seconds. A plain number is in seconds.

    Args:
        word: A word that stands for itself, such as ``never``.
    """

    name = "duration"

    def __init__(self, word: str | None = None) -> None:
        self._word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the seconds, or the word."""
        if value == self._word:
            return value
        if not isinstance(value, str):
            return float(value)
        found = _DURATION.fullmatch(value if not value or value[-1].isalpha() else f"{value}s")
        if found is None:
            word = f", or {self._word}" if self._word else ""
            self.fail(f"must be a duration such as 30s, 15m, 1h or 7d{word}, got {value!r}", param, ctx)
        return float(found[1]) * _SECONDS[found[2]]


class SizeType(_ParamType):
    """A size such as ``512``, ``64K`` or ``1GB``, in bytes; -1 for no limit. Units are powers of 1,024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        if not isinstance(value, str):
            return int(value)
        if value == "-1":
            return -1
        found = _SIZE.fullmatch(value)
        if found is None:
            self.fail(f"must be a size such as 512, 64K or 1GB, got {value!r}", param, ctx)
        factor = _FACTORS[found[2].lower()]
        return int(found[1]) * factor if found[1].isdigit() else int(float(found[1]) * factor)


class AddressType(_ParamType):
    """An address to listen on, as ``host:port``; port 0 is any free port."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, checked."""
        from liftenvelope.errors import UsageError
        from liftenvelope.rpc.address import parse_address

        try:
            parse_address(value, any_port=True)
        except UsageError as exc:
            self.fail(str(exc).removeprefix("address "), param, ctx)
        return str(value)


def _moment(text: str) -> datetime | None:
    """Return a time in ISO format, UTC if it has no offset; None for another text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


class TimeType(_ParamType):
    """A time in ISO format (UTC if it has no offset)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time."""
        moment = value if isinstance(value, datetime) else _moment(value)
        if moment is None:
            self.fail(f"must be {_TIME}, got {value!r}", param, ctx)
        return moment


class PlaceType(_ParamType):
    """A keyword, an offset, or a time in ISO format (UTC if it has no offset)."""

    name = "place"
    _others: tuple[str, ...] = ("an offset",)

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the keyword, an int or a datetime."""
        if value in self._words or not isinstance(value, str):
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        if (moment := _moment(value)) is None:
            expected = ", ".join([*self._words, *self._others, _TIME])
            self.fail(f"must be one of {expected}, got {value!r}", param, ctx)
        return moment


class StartType(PlaceType):
    """A place, or one that is relative to the end: ``-5`` for the last five messages, or an age."""

    name = "start"
    _others = ("an offset", "-N for the last N messages", "an age such as 1h")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the keyword, an int (negative for the last messages), a datetime or a timedelta."""
        if isinstance(value, str):
            if value.startswith("-") and value[1:].isascii() and value[1:].isdigit() and int(value):
                return int(value)
            if _DURATION.fullmatch(value):
                # Nothing is older than 1970 for servers, and a longer time may have no datetime.
                return timedelta(seconds=min(DurationType().convert(value, param, ctx), time.time()))
        found = super().convert(value, param, ctx)
        if isinstance(found, int) and found > MAX_INT64:
            self.fail(f"must be at most {MAX_INT64}, got {value}", param, ctx)
        return found


def complete_path(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the path of a file or a folder."""
    return [CompletionItem(incomplete, type="file")]


def check_lines(option: str, path: str) -> None:
    """Check that a file's suffix allows lines of JSON.

    Raises:
        click.UsageError: The suffix implies another format.
    """
    if Path(path).suffix.lower() not in _LINES:
        text = f"{option} must be a .parquet file, or .ndjson for lines of JSON, got {path}"
        raise click.UsageError(text)


def check_open(option: str, path: str, stream: object) -> None:
    """Check that the standard stream that ``-`` stands for is open. Python sets a closed one to None.

    Raises:
        click.UsageError: It is closed.
    """
    if path == "-" and stream is None:
        which = "input" if option == "--from" else "output"
        raise click.UsageError(f"{option} must be a path, because standard {which} is closed, got -")


def _obstacle(path: str) -> str | None:
    """Return why a path is no file that exists; None if it is one."""
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as exc:
        return exc.strerror
    except ValueError as exc:  # a null byte
        return str(exc)
    return "Is a directory" if is_folder else None


def check_file(option: str, path: str, *, or_input: bool = False) -> None:
    """Check that a file to read exists.

    Args:
        option: Name of the option, for the error.
        path: Path of the file.
        or_input: True if ``-`` is standard input.

    Raises:
        click.UsageError: It does not exist, is a folder, or is ``-`` where that is no file.
    """
    if path == "-":
        if or_input:
            return
        raise click.UsageError(f"{option} must be a file, got '-'")
    if (reason := _obstacle(path)) is not None:
        raise click.UsageError(f"{option} must be a file that can be read, got {path!r}: {reason}")


def check_folder(option: str, path: str) -> None:
    """Check that the folder of a file to write exists; ``-`` is a standard stream.

    Raises:
        click.UsageError: It does not exist.
    """
    if path != "-" and not Path(path).parent.is_dir():
        raise click.UsageError(f"{option} must be in a folder that exists, got {path!r}")


def fail_cleanly(work: Callable[[], object]) -> None:
    """Call ``work``; convert errors of the package and of files to errors of the command.

    Raises:
        click.ClickException: ``work`` failed.
        BrokenPipeError: The reader of the output has closed the pipe.
    """
    from liftenvelope.cli._options.names import with_option_names
    from liftenvelope.cli._output.terminal import shown
    from liftenvelope.errors import LiftEnvelopeError, UsageError

    try:
        work()
    except UsageError as exc:
        raise click.UsageError(shown(with_option_names(str(exc)), keep="\n")) from exc
    except BrokenPipeError:  # click exits silently
        raise
    except (LiftEnvelopeError, OSError) as exc:
        # Errors repeat names and texts of servers.
        text = shown(with_option_names(str(exc)), keep="\n")
        raise click.ClickException(text or type(exc).__name__) from exc
