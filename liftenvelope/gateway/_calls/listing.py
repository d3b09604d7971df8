"""Metadata of all streams, serialised, for calls of FetchMetadata that name none.

A partition takes 10 us, and there may be 100,000 of them. So the metadata of a stream is kept until its
record, the states of its partitions or the gateways change. The rest is built in slices, one call at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftenvelope._pb import api_pb2

if TYPE_CHECKING:
    from liftenvelope.gateway._cluster.brokers import Broker, LiveBrokers
    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._cluster.registry import StreamRegistry
    from liftenvelope.gateway._partitions.storage import PartitionState

__all__ = ["StreamListing", "add_brokers"]

#: Partitions to describe, and to compare with what is kept, before other tasks run: 2 ms each.
_BUILT: Final = 200
_COMPARED: Final = 4_000
#: Builds of an answer, at most, if gateways come or go during each of them.
_BUILDS: Final = 3

#: Describes a partition of a stream in a message.
Describe = Callable[[api_pb2.PartitionMetadata, "StreamRecord", int, "PartitionState | None"], None]


@dataclass(slots=True)
class _Kept:
    """Metadata of one stream.

    Attributes:
        record: Record of the stream that it was made from.
        states: States of its partitions that it was made from.
        data: The metadata, as a response without anything else.
        leads: Number of partitions of the stream by their leader.
    """

    record: StreamRecord
    states: list[PartitionState | None]
    data: bytes
    leads: Counter[str]


class StreamListing:
    """Builds the metadata of all streams and brokers.

    Args:
        registry: All streams.
        brokers: The gateways.
        describe: Describes a partition.
    """

    def __init__(self, registry: StreamRegistry, brokers: LiveBrokers, describe: Describe) -> None:
        self._registry = registry
        self._brokers = brokers
        self._describe = describe
        self._building = asyncio.Lock()
        # Metadata described while the gateways were those of ``_alive``. A build adds each stream when it is
        # described, so that calls whose deadlines are shorter than a build complete it together.
        self._kept: dict[str, _Kept] = {}
        self._alive: tuple[Broker, ...] = ()
        # The last answer, and the states and the number of changes that it was made from.
        self._last: tuple[Mapping[str, PartitionState], int, bytes] | None = None

    async def response(self, states: Mapping[str, PartitionState]) -> bytes:
        """Return the metadata with all changes that this gateway knew at the call.

        Args:
            states: States of partitions by the names of their JetStream streams.
        """
        async with self._building:
            if self._last is not None and self._alive == self._now_alive():
                its_states, its_changes, data = self._last
                if its_states is states and its_changes == self._registry.changes:
                    return data
            data = await self._build(states)
            for _ in range(_BUILDS - 1):
                if self._last is not None:
                    break
                data = await self._build(states)
            return data

    def _now_alive(self) -> tuple[Broker, ...]:
        return tuple(self._brokers.alive.values())

    async def _build(self, states: Mapping[str, PartitionState]) -> bytes:
        """Return the metadata, and keep it as the last answer unless a gateway came or went meanwhile."""
        alive, changes = self._now_alive(), self._registry.changes
        self._last = None
        if self._alive != alive:
            self._kept, self._alive = {}, alive
        kept: dict[str, _Kept] = {}
        compared, is_whole = 0, True
        for record in self._registry:
            count = len(record.partitions)
            its_states = [states.get(record.stream_of(number)) for number in range(count)]
            known = self._kept.get(record.name)
            if known is None or known.record is not record or known.states != its_states:
                known = await self._stream(record, its_states)
                # A gateway that comes or goes during the build is in some of it.
                is_whole = is_whole and alive == self._now_alive()
                if is_whole:
                    self._kept[record.name] = known
                compared = _COMPARED if count >= _BUILT else compared + count * (_COMPARED // _BUILT)
            kept[record.name] = known
            compared += count
            if compared >= _COMPARED:
                compared = 0
                await asyncio.sleep(0)
        leads: Counter[str] = Counter()
        for known in kept.values():
            leads.update(known.leads)
        response = api_pb2.FetchMetadataResponse()
        add_brokers(response, alive, leads)
        data = b"".join([*(known.data for known in kept.values()), response.SerializeToString()])
        if is_whole and alive == self._now_alive():
            self._kept, self._last = kept, (states, changes, data)
        else:
            self._kept, self._alive = {}, ()
        return data

    async def _stream(self, record: StreamRecord, states: list[PartitionState | None]) -> _Kept:
        response, leads = api_pb2.FetchMetadataResponse(), Counter[str]()
        stream = response.streamMetadata.add(
            name=record.name, subject=record.subject, creationTimestamp=record.created_ns
        )
        for number, state in enumerate(states):
            self._describe(stream.partitions[number], record, number, state)
            leads[stream.partitions[number].leader] += 1
            if number % _BUILT == _BUILT - 1:
                await asyncio.sleep(0)
        return _Kept(record, states, response.SerializeToString(), leads)


def add_brokers(
    response: api_pb2.FetchMetadataResponse, brokers: tuple[Broker, ...], leads: Counter[str]
) -> None:
    """Add the gateways to a response.

    Args:
        response: The response.
        brokers: The gateways.
        leads: Number of partitions by the id of their leader.
    """
    partitions = leads.total()
    for broker in brokers:
        response.brokers.add(
            id=broker.id,
            host=broker.host,
            port=broker.port,
            partitionCount=partitions,
            leaderCount=leads[broker.id],
        )
