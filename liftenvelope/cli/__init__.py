"""The ``liftenvelope`` command. One file per command; they print and exit, and hold no logic.

Exit codes: 0 for success, 1 for a failure, or without a word when nobody reads what is printed any more (as
behind ``| head``), 2 for a wrong call, 130 when interrupted.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    from liftenvelope.errors import MissingExtraError

    try:
        from liftenvelope._extras import require

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
