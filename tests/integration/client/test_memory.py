"""A subscriber that is slower than the server does not grow. `make soak` runs it for a minute."""

from __future__ import annotations

from benchmarks.slow_reader import read_slowly
from liftenvelope.testing import run_liftbridge

MIB = 2**20


async def test_memory_is_flat() -> None:
    with run_liftbridge() as cluster:
        sizes = await read_slowly(cluster.addresses, 6.0, prefetch_bytes=MIB // 2)
    # What was published meanwhile, tens of MiB, would have to be somewhere if it were not held back.
    assert max(sizes) - sizes[0] < 8 * MIB
