"""Queue of acks for an iteration over an inbox."""

from __future__ import annotations

import asyncio
from typing import Self

from liftenvelope.envelope import Ack
from liftenvelope.errors import TransportError


class AckFeed:
    """Asynchronous iterator of acks. The queue is unbounded: a slow reader loses no ack."""

    def __init__(self, ended: str | None) -> None:
        self._acks: asyncio.Queue[Ack | TransportError | None] = asyncio.Queue()
        if ended is not None:
            self.end(TransportError(ended))

    def put(self, ack: Ack) -> None:
        """Add an ack."""
        self._acks.put_nowait(ack)

    def end(self, error: TransportError | None) -> None:
        """End the iteration after the queued acks, with ``error`` if it is not None."""
        self._acks.put_nowait(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Ack:
        ack = await self._acks.get()
        if isinstance(ack, Ack):
            return ack
        self._acks.put_nowait(ack)  # so that the next call ends in the same way
        if ack is None:
            raise StopAsyncIteration
        raise ack
