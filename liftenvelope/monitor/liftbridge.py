"""Samples of a Liftbridge cluster or a gateway: streams, brokers and groups."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from liftenvelope.client import Client, Metadata, PartitionInfo, StreamInfo
from liftenvelope.client.cursor_names import group_cursor
from liftenvelope.errors import LiftEnvelopeError, NoSuchStreamError
from liftenvelope.monitor._limits import MAX_SUBJECTS, MonitorLimits
from liftenvelope.monitor._parts import RoundRobin, each, fault_of, steady_clock
from liftenvelope.monitor._snapshots import (
    GatewaySample,
    GroupSample,
    PartitionSample,
    SampleFault,
    Snapshot,
    StreamSample,
)
from liftenvelope.monitor.group_activity import GroupActivity
from liftenvelope.monitor.groups import GroupPartition

__all__ = ["LiftbridgeSampler"]

#: Seconds for the health checks and for one partition: a broker that hangs must not stop the samples.
_SHORT: Final = 2.0
#: Seconds between two looks for an activity stream while there is none.
_PAUSE: Final = 15.0

_Place = tuple[str, int]
_Cursor = tuple[str, str, int]


class LiftbridgeSampler:
    """Takes samples of a Liftbridge cluster or a gateway.

    One request lists all streams. The broker that answers knows the offsets of its own replicas alone, so in
    a cluster the leaders of some partitions are asked as well in each sample. Liftbridge tells neither the
    oldest offset nor the bytes of a stream.

    Args:
        client: An open client. The sampler does not close it.
        limits: Limits of a sample.
    """

    def __init__(self, client: Client, limits: MonitorLimits | None = None) -> None:
        self._client = client
        self._limits = limits or MonitorLimits()
        self._clock = steady_clock()
        self._turns = RoundRobin()
        self._cursor_turns = RoundRobin()
        self._asked: dict[_Place, PartitionSample] = {}
        self._activity = GroupActivity(client)
        self._not_before = 0.0
        self._activity_fault: SampleFault | None = None
        self._cursors: dict[_Cursor, int | None] = {}
        self._groups: dict[str, GroupSample] = {}
        #: Numbers of groups, and of partitions of groups, that are beyond the limits.
        self._left_out: dict[str, int] = {}
        self._brokers: dict[str, str] = {}
        self._faults: list[SampleFault] = []

    async def sample(self, focus: Sequence[str] = ()) -> Snapshot:
        """Take a sample.

        Args:
            focus: Streams and groups whose partitions are read in any case.

        Raises:
            LiftEnvelopeError: The metadata could not be read.
        """
        at, self._faults = self._clock(), []
        metadata = await self._client.fetch_metadata()
        names = sorted(name for name in metadata.streams if not name.startswith("__"))
        kept = names[: self._limits.max_streams]
        await self._ask_leaders(metadata, kept, focus)
        streams = {name: self._stream(metadata.streams[name], at) for name in kept}
        await asyncio.gather(self._check_brokers(), self._update_groups(streams, focus))
        return Snapshot(
            at=at,
            kind="liftbridge",
            streams=streams,
            groups=self._groups,
            brokers=self._brokers,
            gateways=self._gateways(metadata),
            left_out={"streams": len(names) - len(kept), **self._left_out},
            faults=self._faults,
            took=self._clock() - at,
        )

    # Streams

    async def _ask_leaders(self, metadata: Metadata, names: Sequence[str], focus: Sequence[str]) -> None:
        if len(metadata.brokers) < 2:
            self._asked.clear()
            return
        parts = {
            (name, part.id): part
            for name in names
            for part in metadata.streams[name].partitions.values()
            if part.leader and not part.paused
        }
        self._asked = {key: one for key, one in self._asked.items() if key in parts}
        first = {key for key in parts if key[0] in focus}
        wanted = self._turns.take(parts, self._limits.reads, first=first)

        async def ask(key: _Place) -> PartitionSample:
            found = await self._client.fetch_partition_metadata(*key, timeout=_SHORT)
            return _partition(found, self._clock())

        answers = await each(wanted, ask, self._limits.at_once)
        for key, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, PartitionSample):
                self._asked[key] = answer
            elif not isinstance(answer, NoSuchStreamError):  # deleted meanwhile
                self._faults.append(fault_of("streams", answer))

    def _stream(self, info: StreamInfo, at: float) -> StreamSample:
        parts = [
            self._asked.get((info.name, one.id)) or _partition(one, at) for one in info.partitions.values()
        ]
        newest = max((one.messages_received.latest_ns for one in info.partitions.values()), default=0)
        return StreamSample(
            name=info.name,
            subjects=(info.subject,)[:MAX_SUBJECTS],
            partitions=parts,
            newest=newest / 1e9 if newest else None,
        )

    async def _check_brokers(self) -> None:
        found = await self._client.check_health(timeout=_SHORT)
        self._brokers = {address: status.name.lower() for address, status in found.items()}

    def _gateways(self, metadata: Metadata) -> dict[str, GatewaySample]:
        leaders = Counter(
            part.leader
            for name, stream in metadata.streams.items()
            if not name.startswith("__")
            for part in stream.partitions.values()
        )
        return {
            one.id: GatewaySample(
                id=one.id,
                address=one.address,
                status=self._brokers.get(one.address),
                leaders=leaders[one.id],
            )
            for one in metadata.brokers.values()
        }

    # Groups

    async def _update_groups(self, streams: Mapping[str, StreamSample], focus: Sequence[str]) -> None:
        if self._clock() < self._not_before:
            if self._activity_fault is not None:
                self._faults.append(self._activity_fault)
            return
        self._activity_fault = None
        try:
            groups = (await self._activity.update()).groups
            names = sorted(groups)[: self._limits.max_groups]
            if not names:
                self._groups, self._left_out = {}, {}
                return
            live = (await self._client.fetch_metadata(streams=[], groups=names)).groups
            most = self._limits.max_rows
            rows = {name: list(islice(self._cursors_of(name, streams), most)) for name in names}
            sizes = (
                sum(len(streams[one].partitions) for one in groups[name].streams if one in streams)
                for name in names
            )
            self._left_out = {
                "groups": len(groups) - len(names),
                "partitions of groups": sum(max(size - most, 0) for size in sizes),
            }
            await self._read_cursors([key for keys in rows.values() for key in keys], focus)
        except NoSuchStreamError as exc:  # the cluster keeps no activity stream
            self._not_before = self._clock() + _PAUSE
            if self._groups:  # it did before: they stay as they were
                self._activity_fault = fault_of("groups", exc)
                self._faults.append(self._activity_fault)
            return
        except LiftEnvelopeError as exc:
            self._faults.append(fault_of("groups", exc))
            return
        found = {}
        for name in names:
            info = live.get(name)
            found[name] = GroupSample(
                name=name,
                at=self._clock(),
                state="empty" if info is None else "active",
                coordinator=None if info is None else info.coordinator,
                generation=None if info is None else info.epoch,
                members={} if info is None else dict(groups[name].members),
                partitions=[self._row(key, streams) for key in rows[name]],
            )
        self._groups = found

    def _cursors_of(self, group: str, streams: Mapping[str, StreamSample]) -> Iterator[_Cursor]:
        for stream in self._activity.groups[group].streams:
            for part in streams[stream].partitions if stream in streams else ():
                yield group, stream, part.number

    async def _read_cursors(self, keys: Sequence[_Cursor], focus: Sequence[str]) -> None:
        known = set(keys)
        self._cursors = {key: one for key, one in self._cursors.items() if key in known}
        first = {key for key in keys if key[0] in focus}
        wanted = self._cursor_turns.take(keys, self._limits.reads, first=first)

        async def read(key: _Cursor) -> int | None:
            return await self._client.fetch_cursor(group_cursor(key[0]), key[1], key[2])

        answers = await each(wanted, read, self._limits.at_once)
        for key, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, LiftEnvelopeError):
                self._faults.append(fault_of("groups", answer))
            else:
                self._cursors[key] = answer

    def _row(self, key: _Cursor, streams: Mapping[str, StreamSample]) -> GroupPartition:
        _, stream, number = key
        end = next((one.end for one in streams[stream].partitions if one.number == number), None)
        if key not in self._cursors:  # its turn has not come
            return GroupPartition(topic=stream, partition=number, end=end)
        stored = self._cursors[key]
        committed = None if stored is None else stored + 1
        lag = None if end is None else max(end - (committed or 0), 0)
        return GroupPartition(topic=stream, partition=number, committed=committed, end=end, lag=lag)


def _partition(info: PartitionInfo, at: float) -> PartitionSample:
    # Servers never clear the flag of a paused partition; one with messages since then is awake.
    paused = info.paused and info.messages_received.latest_ns <= info.pause_times.latest_ns
    return PartitionSample(
        number=info.id,
        at=at,
        end=info.newest_offset + 1,
        leader=info.leader,
        replicas=len(info.replicas),
        in_sync=len(info.isr),
        paused=paused,
        readonly=info.readonly,
    )
