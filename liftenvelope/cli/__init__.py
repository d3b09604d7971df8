"""The ``liftenvelope`` command. One file per command; they print and exit, and hold no logic.

Exit codes: 0 for success, 1 for a failure, 2 for a wrong call, 130 when interrupted.
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
    from liftenvelope.cli._root import root

    root(prog_name="liftenvelope")
