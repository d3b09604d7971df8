"""Measures how far the acks of raw NATS publishers lag behind the messages that JetStream has stored.

The end of a partition is known to JetStream alone, so a measurement sends requests: one for each of up to 64
partitions, and one for each 256 streams beyond that. It runs only if somebody reads the metrics.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from liftenvelope.errors import LiftEnvelopeError

if TYPE_CHECKING:
    from liftenvelope.gateway._acks import PartitionAckReader
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._leading import Leading
    from liftenvelope.gateway._storage import PartitionState

__all__ = ["AckLag", "StreamLag"]

#: Seconds for which a measurement is used.
_AGE: Final = 5.0
#: Partitions computed between two turns of the event loop.
_SLICE: Final = 500


class StreamLag(NamedTuple):
    """Acks of one stream's partitions that this gateway leads.

    Attributes:
        messages: Stored messages without an ack. Messages that name no ack inbox count until they are read.
        acks_sent: Acks sent to raw NATS publishers since this gateway leads the partitions.
    """

    messages: int
    acks_sent: int


class AckLag:
    """Lag of the acks of all partitions that a gateway leads.

    Args:
        core: Parts of the gateway.
        leading: Leader work of the gateway.

    Attributes:
        streams: Newest measurement, by stream. None before the first one, and if JetStream did not answer the
            last one.
    """

    def __init__(self, core: Core, leading: Leading) -> None:
        self._core = core
        self._leading = leading
        self._measuring = asyncio.Lock()
        self._expires = 0.0
        self.streams: dict[str, StreamLag] | None = None

    async def measure(self) -> None:
        """Measure, unless the newest measurement is younger than 5 seconds."""
        loop = asyncio.get_running_loop()
        async with self._measuring:
            if loop.time() < self._expires:
                return
            try:
                self.streams = await self._measured()
            except asyncio.CancelledError:  # it took the caller too long
                self.streams = None
                raise
            self._expires = loop.time() + _AGE

    async def _measured(self) -> dict[str, StreamLag] | None:
        """Return the lags, or None if JetStream does not answer: the other metrics tell that."""
        if not self._core.nc.is_connected:
            return None
        readers = self._leading.readers()
        try:
            states = await self._core.storage.states([stream for _, stream, _ in readers])
        except LiftEnvelopeError:
            return None
        return await _lags(readers, states)


async def _lags(
    readers: list[tuple[str, str, PartitionAckReader]], states: dict[str, PartitionState]
) -> dict[str, StreamLag]:
    found: dict[str, StreamLag] = {}
    for number, (name, stream, reader) in enumerate(readers, 1):
        state, so_far = states.get(stream), found.get(name, StreamLag(0, 0))
        # Messages may have been removed since, so there are not more than the stream holds.
        lag = 0 if state is None else min(max(state.newest + 1 - reader.acked, 0), state.messages)
        found[name] = StreamLag(so_far.messages + lag, so_far.acks_sent + reader.acks_sent)
        if not number % _SLICE:
            await asyncio.sleep(0)
    return found
