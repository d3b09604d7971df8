"""A well-behaved client in a process of its own: publishes with acks and prints how long each took.

``python -m tests.hostile.bystander`` with a JSON object as its argument. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import threading
import time
from typing import Any, Final

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.errors import LiftEnvelopeError

#: Seconds within which a message must be acked.
_TIMEOUT: Final = 60.0


def _tls(files: list[str] | None) -> ssl.SSLContext | None:
    if files is None:
        return None
    authority, own = files
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(own)
    return context


async def _publish(client: Client, stream: str) -> None:
    began, error = time.monotonic(), ""
    try:
        await client.publish(stream, b"bystander", timeout=_TIMEOUT)
    except LiftEnvelopeError as exc:
        error = f"{type(exc).__name__}: {exc}"
    ended = time.monotonic()
    print(json.dumps([ended, ended - began, error]), flush=True)


async def _main(address: str, stream: str, tls: list[str] | None, pause: float) -> None:
    leaves, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait_for_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(leaves.set)

    threading.Thread(target=wait_for_end, daemon=True).start()
    async with liftenvelope.connect(
        address, tls=_tls(tls), connect_timeout=_TIMEOUT, timeout=_TIMEOUT
    ) as client:
        await client.create_stream(stream, stream)
        while not leaves.is_set():
            await _publish(client, stream)
            await asyncio.sleep(pause)


def _arguments() -> dict[str, Any]:
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    return arguments


if __name__ == "__main__":
    asyncio.run(_main(**_arguments()))
