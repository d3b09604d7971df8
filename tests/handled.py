"""Waiting until a NATS server has handled what a connection sent."""

from __future__ import annotations

from nats.aio.client import Client


async def handled(nc: Client) -> None:
    """Wait until the server has handled all that ``nc`` sent.

    The PING of the first ``flush()`` overtakes what nats-py has buffered; the second does not.
    """
    for _ in range(2):
        await nc.flush(timeout=240)
