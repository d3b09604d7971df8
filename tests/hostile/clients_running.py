"""Runs the calls of clients against hostile servers, in a child process, and gives the verdict."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.hostile.grpc_servers import GRPC_SERVERS
from tests.hostile.hostile_servers import HostileServer, serving
from tests.hostile.nats_servers import NATS_SERVERS

__all__ = ["SERVERS", "CallFigures", "ClientVictims"]

SERVERS: Final = (*NATS_SERVERS, *GRPC_SERVERS)
assert len({row.name for row in SERVERS}) == len(SERVERS)
_ROOT: Final = Path(__file__).resolve().parents[2]
#: Seconds within which a call must end. Its own time-outs are 1 or 2 s, and it may use several, one by one.
PATIENCE: Final = 30.0


@dataclass
class CallFigures:
    """End of a call.

    Attributes:
        server, call: Names of the server and of the call.
        error: Class of the error, empty if the call returned.
        mib: Memory that it took at its peak.
        seconds: Its duration.
        faults: What is wrong; empty if nothing is.
    """

    server: str
    call: str
    error: str = ""
    mib: float = 0.0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


class ClientVictims:
    """A child process that makes calls; started again when one does not end. A context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def attack(self, row: HostileServer, call: str, patience: float = PATIENCE) -> CallFigures:
        """Have a call made to a hostile server; return how it ended."""
        figures = CallFigures(row.name, call)
        with serving(row) as port:
            began = time.monotonic()
            answer = self._ask(call, port, patience)
            figures.seconds = time.monotonic() - began
        if answer is None:
            figures.error = "none"
            figures.faults.append("the call has not ended, or has ended its process")
            self._kill()
            return figures
        figures.error, is_typed, text, figures.mib, figures.seconds = json.loads(answer)
        if not is_typed:
            figures.faults.append(f"untyped error {figures.error}: {text}")
        if figures.mib > row.rss_mib:
            figures.faults.append(f"the call took {figures.mib:.0f} MiB, more than {row.rss_mib:.0f}")
        return figures

    def _ask(self, call: str, port: int, patience: float) -> bytes | None:
        """Return the child's line about a call; None if it does not come."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([call, port]).encode() + b"\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            ready = selector.select(patience)
        return process.stdout.readline() or None if ready else None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.hostile.client_victims"],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            # The start, with its imports, is not part of a call.
            with serving(_WARM_UP) as port:
                for call in _WARM_UP.calls:
                    self._ask(call, port, 120)
        return self._process

    def _kill(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None


_WARM_UP: Final = HostileServer(
    name="closes", wire="nats", calls=("bulk.read", "client metadata"), greeting=b"", closes=True
)
