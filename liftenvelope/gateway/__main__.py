"""``python -m liftenvelope.gateway FILE``: serves a gateway configured by a JSON file.

The file holds the arguments of :class:`Serving`. :func:`liftenvelope.testing.run_gateway` starts gateways
this way. On the command line, use ``liftenvelope serve``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway._gateway import Gateway
from liftenvelope.gateway.serving import Serving, serve


def main() -> int:
    """Serve until stopped; return the exit status."""
    serving = Serving.from_json(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    try:
        asyncio.run(serve(serving, _say))
    except LiftEnvelopeError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


def _say(gateway: Gateway, url: str) -> None:
    print(f"serving on {gateway.address}, with NATS at {url}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
