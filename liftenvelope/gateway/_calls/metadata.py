"""Serves FetchMetadata and FetchPartitionMetadata."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from liftenvelope._pb import api_pb2
from liftenvelope.errors import StreamNotFoundError
from liftenvelope.gateway._protocol.requests import read_request
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from liftenvelope.gateway._cluster.brokers import Broker
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
        # The last metadata of all streams: the states, the brokers and the number of changes that it was made
        # from, and the answer.
        self._last: tuple[dict[str, PartitionState], tuple[Broker, ...], int, bytes] | None = None

    async def fetch(self, call: ServerCall) -> None:
        """Serve FetchMetadata: the requested streams, or all if none is named; all brokers; the groups.

        The answer is built after the last wait. A call that waits for JetStream holds its names alone, which
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
            self._add_brokers(response)
        for name, found in zip(groups, coordinators, strict=True):
            if found is None:
                response.groupMetadata.add(groupId=name, error=api_pb2.ConsumerGroupMetadata.UNKNOWN_GROUP)
            else:
                response.groupMetadata.add(groupId=name, coordinator=found[0], epoch=found[1])
        # Serialized messages that follow each other are one message with the lists of both.
        return (b"" if streams else self._all_streams(states)) + response.SerializeToString()

    def _all_streams(self, states: dict[str, PartitionState]) -> bytes:
        """Return the metadata of all streams and brokers.

        It takes 10 us for each partition, and the states of many are shared by all calls of a second. So one
        answer serves these calls, as long as no stream and no gateway has changed.
        """
        brokers, changes = tuple(self._core.brokers.alive.values()), self._core.registry.changes
        if self._last is not None:
            its_states, its_brokers, its_changes, answer = self._last
            if its_states is states and (its_brokers, its_changes) == (brokers, changes):
                return answer
        response = api_pb2.FetchMetadataResponse()
        for record in self._core.registry:
            self._add_stream(response, record, states)
        self._add_brokers(response)
        answer = response.SerializeToString()
        self._last = states, brokers, changes, answer
        return answer

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


def _cost(names: Collection[str]) -> int:
    """Return the memory in bytes that names take while their call is served."""
    return sum(map(sys.getsizeof, names)) + _PER_NAME * len(names)
