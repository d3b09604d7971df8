"""The acks that an iteration over an inbox has yet to see."""

from __future__ import annotations

import asyncio
from typing import Self

from liftenvelope.envelope import Ack
from liftenvelope.errors import TransportError


class AckFeed:
    """An asynchronous iterator of acks, without a bound: nothing is dropped for a slow reader."""

    def __init__(self, ended: str | None) -> None:
        self._acks: asyncio.Queue[Ack | TransportError | None] = asyncio.Queue()
        if ended is not None:
            self.end(TransportError(ended))

    def put(self, ack: Ack) -> None:
        """Add an ack."""
        self._acks.put_nowait(ack)

    def end(self, error: TransportError | None) -> None:
        """End the iteration after what is in it, by an error if there is one."""
        self._acks.put_nowait(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Ack:
        ack = await self._acks.get()
        if isinstance(ack, Ack):
            return ack
        self._acks.put_nowait(ack)  # for whoever asks again
        if ack is None:
            raise StopAsyncIteration
        raise ack
