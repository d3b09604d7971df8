"""The first connection of a standalone gateway to NATS, with a client that drops a cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import TransportError
from liftenvelope.gateway._program import nats_connection


class Stubborn(Client):
    """FAKE, NOT REAL: tries one server after the other, and drops the first cancellation.

    So does nats-py before Python 3.12 if an attempt fails in the turn of the loop in which it is cancelled:
    ``asyncio.wait_for`` raises the error of the attempt then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cancellations = 0

    async def connect(self, *_: Any, **options: Any) -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancellations += 1
                if self.cancellations > 1:
                    raise
                await options["error_cb"](ConnectionRefusedError("an attempt failed"))


async def test_lost_cancellation_does_not_keep_a_gateway_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_connection, "_PATIENCE", 0.05)
    nc = Stubborn()
    with pytest.raises(TransportError, match=r"within 0\.05 s: an attempt failed$"):
        async with nats_connection.connection_to(nc, "nats://127.0.0.1:1", {}, "the connection", "nothing"):
            raise AssertionError
    assert nc.cancellations == 2
