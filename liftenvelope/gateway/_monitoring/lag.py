"""Measures how far readers lag behind the messages that JetStream has stored, when metrics are read.

The end of a partition is known to JetStream alone, so a measurement sends requests: one for each of up to 64
partitions, and one for each 256 streams beyond that. It runs only if somebody reads the metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from liftenvelope.errors import LiftEnvelopeError

if TYPE_CHECKING:
    from liftenvelope.gateway._acks.reader import PartitionAckReader
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._leader.leading import Leading
    from liftenvelope.gateway._partitions.storage import PartitionState

__all__ = ["LagMeter", "StreamLag", "ack_lags"]

#: Seconds for which a measurement is used.
_AGE: Final = 5.0
#: Partitions computed between two turns of the event loop.
_SLICE: Final = 500

_Lags = TypeVar("_Lags")


class LagMeter(Generic[_Lags]):
    """Keeps the newest measurement of a lag.

    Args:
        core: Parts of the gateway.
        measured: Measures. Raises LiftEnvelopeError if JetStream does not answer.

    Attributes:
        newest: Newest measurement. None before the first one, and if JetStream did not answer the last one:
            the other metrics tell that.
    """

    def __init__(self, core: Core, measured: Callable[[], Awaitable[_Lags]]) -> None:
        self._core = core
        self._measured = measured
        self._measuring = asyncio.Lock()
        self._expires = 0.0
        self.newest: _Lags | None = None

    async def measure(self) -> None:
        """Measure, unless the newest measurement is younger than 5 seconds."""
        loop = asyncio.get_running_loop()
        async with self._measuring:
            if loop.time() < self._expires:
                return
            found: _Lags | None = None
            try:
                with suppress(LiftEnvelopeError):
                    if self._core.nc.is_connected:
                        found = await self._measured()
            finally:
                self.newest = found  # None also if it took the caller too long
            self._expires = loop.time() + _AGE


class StreamLag(NamedTuple):
    """Acks of one stream's partitions that this gateway leads.

    Attributes:
        messages: Stored messages without an ack. Messages that name no ack inbox count until they are read.
        acks_sent: Acks sent to raw NATS publishers since this gateway leads the partitions.
    """

    messages: int
    acks_sent: int


async def ack_lags(core: Core, leading: Leading) -> dict[str, StreamLag]:
    """Return the lag of the acks of all partitions that a gateway leads, by stream.

    Raises:
        LiftEnvelopeError: JetStream does not answer.
    """
    readers = leading.readers()
    states = await core.storage.states([stream for _, stream, _ in readers])
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
