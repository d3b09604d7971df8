"""Counts of ``liftenvelope bench``, for acks that no server gives."""

from __future__ import annotations

import asyncio
from typing import Any

from liftenvelope.cli import bench


async def test_cancelled_ack_counts_as_failed() -> None:
    # FAKE: no server makes a client cancel its ack.
    async def send() -> asyncio.Future[Any]:
        ack = asyncio.get_running_loop().create_future()
        ack.cancel()
        return ack

    measured = await bench._publish(send, 1, 10)
    assert (measured.count, measured.failed, measured.latencies) == (0, 1, [])
    assert "cancelled" in str(measured.error)
