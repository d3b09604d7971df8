"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from liftenvelope.cli._options.places import NumberType, complete_path

__all__ = ["input_option", "partitions_option", "with_options"]

_F = TypeVar("_F", bound=Callable[..., Any])


def input_option(content: str) -> Callable[[_F], _F]:
    """Return the option ``--file`` of a command that reads a file or standard input.

    Args:
        content: What the file has, such as ``the value``.
    """
    help_ = f"File with {content}; - for standard input."
    return click.option("--file", "-f", "file", metavar="PATH", shell_complete=complete_path, help=help_)


def partitions_option(server: str = "") -> Callable[[_F], _F]:
    """Return the option ``--partition`` of a command that takes several partitions, by default all.

    Args:
        server: Server that alone has the option, such as ``Liftbridge``. Default: all have it.
    """
    help_ = f"{server}: partition" if server else "Partition"
    return click.option(
        "--partition",
        "-p",
        "partitions",
        multiple=True,
        type=NumberType(min=0),
        help=f"{help_}; repeatable.  [default: all]",
    )


def with_options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Return a decorator that adds options to a command, in the order of the help.

    Args:
        options: Decorators, such as those of ``click.option``.
    """

    def add(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return add
