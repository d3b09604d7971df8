"""Memory of a subscriber that is slower than the server: ``python -m benchmarks.slow_reader --seconds 60``.

A stream is filled while it is read, as fast as it goes; the reader takes a thousand messages a second. What
it has not taken must wait in the server, so the process must not grow once its window is full.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import liftenvelope
from liftenvelope.testing import run_liftbridge

VALUE = b"x" * 256
RATE = 1_000


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()


async def _until(end: float) -> AsyncIterator[bytes]:
    while monotonic() < end:
        yield VALUE


async def read_slowly(addresses: list[str], seconds: float, prefetch_bytes: int) -> list[int]:
    """Return what was resident, once a second after the first two; the seconds begin with the subscription.

    Two processes would be truer to life, but both halves have to be flat anyway.
    """
    sizes = list[int]()
    async with liftenvelope.connect(addresses, prefetch_bytes=prefetch_bytes) as client:
        await client.create_stream("slow", "slow")
        async with client.subscribe("slow", start="earliest") as messages:
            second, taken = 0, 0
            began = monotonic()
            end = began + seconds
            filling = asyncio.ensure_future(_fill(client, end))
            while monotonic() < end:
                taken += await messages.next(timeout=1.0) is not None
                if taken >= RATE * (monotonic() - began):
                    await asyncio.sleep(0.01)
                while monotonic() - began > second:
                    second += 1
                    sizes.append(resident())
        await filling
    return sizes[2:]


async def _fill(client: liftenvelope.Client, end: float) -> None:
    await client.publish_many("slow", _until(end), max_in_flight=1_000, timeout=60.0)


def main() -> None:
    """Run it and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--prefetch-bytes", type=int, default=8 * 1024 * 1024)
    options = parser.parse_args()
    with run_liftbridge() as server:
        sizes = asyncio.run(read_slowly(server.addresses, options.seconds, options.prefetch_bytes))
    mib = [size / 2**20 for size in sizes]
    print(f"resident MiB: {mib[0]:.1f} after 2 s, {max(mib):.1f} at most, {mib[-1]:.1f} at the end")


if __name__ == "__main__":
    main()
