"""The ``liftenvelope`` command. Each command has its own module, which only parses, prints and exits.

Exit codes: 0 for success; 1 for a failure, or silently if the reader of the output has closed the pipe (as
with ``| head``); 2 for a usage error; 130 when interrupted.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    from liftenvelope.errors import MissingExtraError

    try:
        from liftenvelope._checks import require

        require("click", "cli")
        require("rich", "cli")
    except MissingExtraError as exc:
        sys.exit(f"liftenvelope: {exc}")
    import click

    from liftenvelope.cli._root import root

    try:
        # Not standalone: click would exit with 1 when interrupted.
        sys.exit(root.main(prog_name="liftenvelope", standalone_mode=False))
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except click.Abort:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
