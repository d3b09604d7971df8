"""The ``liftenvelope`` command. Each command has its own module, which only parses, prints and exits.

docs/command.md lists the commands. Exit codes: 0 for success; 1 for a failure, or silently if the reader of
the output has closed the pipe (as with ``| head``); 2 for a usage error; 130 when interrupted, 143
when terminated.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
from types import FrameType
from typing import Never


def main() -> None:
    """Run the command line."""
    # Imports leave no garbage: to look for it takes a seventh of the start, and as long again at the end. The
    # root command lets the collector run again, once the command's module is imported.
    gc.disable()
    atexit.register(gc.freeze)
    from liftenvelope.errors import MissingExtraError

    try:
        from liftenvelope._checks import require

        require("click", "cli")
        require("rich", "cli")
    except MissingExtraError as exc:
        sys.exit(f"liftenvelope: {exc}")
    import click

    from liftenvelope._secrets import without_secrets
    from liftenvelope.cli._root import root

    signal.signal(signal.SIGTERM, _exit)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal has every character
    try:
        # Not standalone: click would exit with 1 when interrupted.
        sys.exit(root.main(prog_name="liftenvelope", standalone_mode=False))
    except click.ClickException as exc:
        # Click repeats arguments in the wrong place, such as a URL without --url before it.
        exc.show(shown := io.StringIO())
        text = shown.getvalue()
        click.echo(without_secrets(text) if "://" in text else text, err=True, nl=False)
        sys.exit(exc.exit_code)
    except click.Abort:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except OSError as exc:  # such as a full disk behind standard output
        sys.exit(f"Error: {exc}")


def _open_closed_streams() -> None:
    """Drop the output of a stream that the caller closed, as by ``>&-``: Python has None in its place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Open until the end, as the original.
            setattr(sys, name, open(os.open(os.devnull, os.O_WRONLY), "w", closefd=False))  # noqa: SIM115


def _exit(number: int, _: FrameType | None) -> Never:
    """Exit by an exception, so that a command removes its drafts and ends what it has started."""
    sys.exit(128 + number)
