"""``python -m liftenvelope.gateway FILE``: serves a gateway configured by a JSON file.

The file holds the arguments of :class:`Serving`. :func:`liftenvelope.testing.run_gateway` starts gateways
this way. On the command line, use ``liftenvelope serve``.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import gc
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftenvelope.gateway._gateway import Gateway


def main() -> int:
    """Serve until stopped; return the exit status."""
    # As in the command, because imports leave no garbage.
    gc.disable()
    atexit.register(gc.freeze)
    from liftenvelope.errors import LiftEnvelopeError
    from liftenvelope.gateway.serving import Serving, serve

    gc.freeze()
    gc.enable()
    text = "Serve a gateway for liftenvelope.testing. To run one yourself: liftenvelope serve"
    parser = argparse.ArgumentParser("python -m liftenvelope.gateway", description=text)
    parser.add_argument("file", metavar="FILE", type=Path, help="JSON file with the arguments of Serving")
    file: Path = parser.parse_args().file
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as exc:
        parser.error(f"FILE must be a JSON file that can be read, got {exc}")
    try:
        asyncio.run(serve(Serving.from_json(found), _say))
    except LiftEnvelopeError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


def _say(gateway: Gateway, url: str) -> None:
    print(f"serving on {gateway.address}, with NATS at {url}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
