"""``python -m liftenvelope.testing build``: builds the Liftbridge server in advance and prints its path."""

from __future__ import annotations

import argparse
import sys

from liftenvelope.testing._binaries import find_liftbridge, find_nats_server
from liftenvelope.testing._errors import ServerStartError

_COMMANDS = {
    "build": "build the Liftbridge server if it is not built yet, and print its path",
    "nats": "print the path of nats-server",
}


def main() -> int:
    """Run the command named in the arguments; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m liftenvelope.testing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in _COMMANDS.items():
        commands.add_parser(name, help=text)
    command = parser.parse_args().command
    try:
        print(find_liftbridge().path if command == "build" else find_nats_server())
    except ServerStartError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
