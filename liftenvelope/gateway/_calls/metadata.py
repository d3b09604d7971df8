"""Serves FetchMetadata and FetchPartitionMetadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope._pb import api_pb2
from liftenvelope.errors import StreamNotFoundError
from liftenvelope.gateway._protocol.requests import read_request
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._partitions.storage import PartitionState
    from liftenvelope.gateway._readers.groups import GroupFace

__all__ = ["MetadataService"]


class MetadataService:
    """Describes streams, partitions, brokers and consumer groups to clients.

    Args:
        core: The gateway's parts.
        groups: Describes the consumer groups.
    """

    def __init__(self, core: Core, groups: GroupFace) -> None:
        self._core = core
        self._groups = groups

    async def fetch(self, raw: bytes) -> bytes:
        """Serve FetchMetadata: the requested streams, or all if none is named; all brokers; the groups."""
        request = read_request(api_pb2.FetchMetadataRequest, raw, self._core.options.limits)
        response = api_pb2.FetchMetadataResponse()
        records = await self._records(response, list(dict.fromkeys(request.streams)))
        states = await self._states(records)
        for record in records:
            self._add_stream(response, record, states)
        self._add_brokers(response)
        await self._groups.describe(response, request.groups)
        return response.SerializeToString()

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

    async def _records(self, response: api_pb2.FetchMetadataResponse, names: list[str]) -> list[StreamRecord]:
        if not names:
            return list(self._core.registry)
        found = []
        for name in names:
            try:
                found.append(await self._core.registry.find(name))
            except RpcError:
                response.streamMetadata.add(name=name, error=api_pb2.StreamMetadata.UNKNOWN_STREAM)
        return found

    async def _states(self, records: Iterable[StreamRecord]) -> dict[str, PartitionState]:
        streams = [record.stream_of(n) for record in records for n in range(len(record.partitions))]
        return await self._core.storage.states(streams)

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
        if state is not None and state.latest_ns:
            out.messagesReceivedTimestamps.firstTimestamp = state.first_ns or state.latest_ns
            out.messagesReceivedTimestamps.latestTimestamp = state.latest_ns
        if part.paused_ns:
            out.pauseTimestamps.firstTimestamp = part.first_paused_ns
            out.pauseTimestamps.latestTimestamp = part.paused_ns
        if part.readonly_ns:
            out.readonlyTimestamps.firstTimestamp = part.first_readonly_ns
            out.readonlyTimestamps.latestTimestamp = part.readonly_ns

    def _add_brokers(self, response: api_pb2.FetchMetadataResponse) -> None:
        brokers = self._core.brokers
        partitions, leads = 0, dict.fromkeys(brokers.alive, 0)
        for record in self._core.registry:
            for number in range(len(record.partitions)):
                partitions += 1
                leads[brokers.leader(record.name, number)] += 1
        for broker in brokers.alive.values():
            response.brokers.add(
                id=broker.id,
                host=broker.host,
                port=broker.port,
                partitionCount=partitions,
                leaderCount=leads[broker.id],
            )
