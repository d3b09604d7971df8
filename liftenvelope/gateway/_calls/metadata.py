"""Serves FetchMetadata and FetchPartitionMetadata."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

from liftenvelope._pb import api_pb2
from liftenvelope.errors import StreamNotFoundError
from liftenvelope.gateway._calls.listing import StreamListing, add_brokers
from liftenvelope.gateway._protocol.requests import read_request
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._partitions.storage import PartitionState
    from liftenvelope.gateway._readers.groups import GroupFace
    from liftenvelope.rpc.server import ServerCall

__all__ = ["MetadataService"]

#: Bytes of a name of a request beside its text: entries of a dict, and the group's coordinator.
_PER_NAME: Final = 150


class MetadataService:
    """Describes streams, partitions, brokers and consumer groups to clients.

    Args:
        core: The gateway's parts.
        groups: Describes the consumer groups.
    """

    def __init__(self, core: Core, groups: GroupFace) -> None:
        self._core = core
        self._groups = groups
        self._listing = StreamListing(core.registry, core.brokers, self._describe)
        # Gateways and number of changes at the last count of the leaders, and the count.
        self._counted: tuple[tuple[str, ...], int, Counter[str]] = ((), -1, Counter())

    async def fetch(self, call: ServerCall) -> None:
        """Serve FetchMetadata: the requested streams, or all if none is named; all brokers; the groups.

        The answer is built after JetStream's. A call that waits for JetStream holds its names alone, which
        count as pending bytes with what they cost in memory: short ones cost ten times their bytes.

        Raises:
            RpcError: RESOURCE_EXHAUSTED: the client would exceed its quota of pending bytes.
                INVALID_ARGUMENT: the request exceeds a limit.
        """
        raw = await call.one_request()
        request = read_request(api_pb2.FetchMetadataRequest, raw, self._core.options.limits)
        streams, groups = dict.fromkeys(request.streams), dict.fromkeys(request.groups)
        # The names are copies, and the request costs as much as they do.
        del raw, request
        with self._core.quotas.hold(call, _cost(streams) + _cost(groups)):
            await call.send([await self._metadata(streams, groups)])

    async def _metadata(self, streams: Collection[str], groups: Collection[str]) -> bytes:
        records = [await self._find(name) for name in streams]
        coordinators = await self._groups.coordinators(groups)
        states = await self._states(records or self._core.registry)
        response = api_pb2.FetchMetadataResponse()
        for name, record in zip(streams, records, strict=True):
            if record is None:
                response.streamMetadata.add(name=name, error=api_pb2.StreamMetadata.UNKNOWN_STREAM)
            else:
                self._add_stream(response, record, states)
        if streams:
            add_brokers(response, tuple(self._core.brokers.alive.values()), self._leads())
        for name, found in zip(groups, coordinators, strict=True):
            if found is None:
                response.groupMetadata.add(groupId=name, error=api_pb2.ConsumerGroupMetadata.UNKNOWN_GROUP)
            else:
                response.groupMetadata.add(groupId=name, coordinator=found[0], epoch=found[1])
        # Serialized messages that follow each other are one message with the lists of both.
        data = b"" if streams else await self._listing.response(states)
        return data + response.SerializeToString()

    async def fetch_partition(self, raw: bytes) -> bytes:
        """Serve FetchPartitionMetadata.

        Raises:
            RpcError: FAILED_PRECONDITION: another gateway leads the partition. NOT_FOUND: the stream or the
                partition does not exist. INVALID_ARGUMENT: the request exceeds a limit.
        """
        request = read_request(api_pb2.FetchPartitionMetadataRequest, raw, self._core.options.limits)
        record = await self._core.partition(request.stream, request.partition)
        self._core.check_leader(record.name, request.partition)
        try:
            state = await self._core.storage.state(record.stream_of(request.partition))
        except StreamNotFoundError as exc:
            raise RpcError(StatusCode.NOT_FOUND, "No such stream") from exc
        response = api_pb2.FetchPartitionMetadataResponse()
        self._describe(response.metadata, record, request.partition, state)
        return response.SerializeToString()

    async def _find(self, name: str) -> StreamRecord | None:
        try:
            return await self._core.registry.find(name)
        except RpcError:
            return None

    async def _states(self, records: Iterable[StreamRecord | None]) -> dict[str, PartitionState]:
        return await self._core.storage.states(
            record.stream_of(number)
            for record in records
            if record is not None
            for number in range(len(record.partitions))
        )

    def _add_stream(
        self,
        response: api_pb2.FetchMetadataResponse,
        record: StreamRecord,
        states: dict[str, PartitionState],
    ) -> None:
        stream = response.streamMetadata.add(
            name=record.name, subject=record.subject, creationTimestamp=record.created_ns
        )
        for number in range(len(record.partitions)):
            state = states.get(record.stream_of(number))
            self._describe(stream.partitions[number], record, number, state)

    def _describe(
        self,
        out: api_pb2.PartitionMetadata,
        record: StreamRecord,
        number: int,
        state: PartitionState | None,
    ) -> None:
        part, brokers = record.partitions[number], self._core.brokers
        out.id = number
        out.leader = brokers.leader(record.name, number)
        # JetStream replicates, and every gateway can read all of it. So any gateway can serve a client that
        # asks for a replica.
        out.replicas.extend(brokers.alive)
        out.isr.extend(brokers.alive)
        out.paused, out.readonly = part.paused, part.readonly
        newest = -1 if state is None else state.newest
        out.highWatermark = out.newestOffset = newest
        # Liftbridge sends all three even if they are empty, and not every language can read a missing one.
        for times in (out.messagesReceivedTimestamps, out.pauseTimestamps, out.readonlyTimestamps):
            times.SetInParent()
        if state is not None and state.latest_ns:
            out.messagesReceivedTimestamps.firstTimestamp = state.first_ns or state.latest_ns
            out.messagesReceivedTimestamps.latestTimestamp = state.latest_ns
        if part.paused_ns:
            out.pauseTimestamps.firstTimestamp = part.first_paused_ns
            out.pauseTimestamps.latestTimestamp = part.paused_ns
        if part.readonly_ns:
            out.readonlyTimestamps.firstTimestamp = part.first_readonly_ns
            out.readonlyTimestamps.latestTimestamp = part.readonly_ns

    def _leads(self) -> Counter[str]:
        """Return the number of partitions by leader, counted once for each change of streams or gateways."""
        alive, changes = tuple(self._core.brokers.alive), self._core.registry.changes
        if self._counted[:2] != (alive, changes):
            leaders = (
                self._core.brokers.leader(record.name, number)
                for record in self._core.registry
                for number in range(len(record.partitions))
            )
            self._counted = alive, changes, Counter(leaders)
        return self._counted[2]


def _cost(names: Collection[str]) -> int:
    """Return the memory in bytes that names take while their call is served."""
    return sum(map(sys.getsizeof, names)) + _PER_NAME * len(names)
