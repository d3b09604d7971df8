"""Confirmation of commands that delete something."""

from __future__ import annotations

import sys

import click

from liftenvelope.cli._output.terminal import shown

__all__ = ["confirm", "yes_option"]

yes_option = click.option("--yes", "-y", "--force", "-f", "yes", is_flag=True, help="Do not ask.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is deleted.

    Args:
        question: Sentence that says what is deleted, such as ``Delete stream 'orders'``.
        yes: True to go on without asking.

    Raises:
        click.UsageError: There is no terminal to ask on.
        click.ClickException: The user said no.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("without a terminal, a command that deletes needs --yes")
    if not click.confirm(f"{shown(question)}?", err=True):
        raise click.ClickException("nothing was deleted")
