"""Samples of a JetStream account: streams, consumers, storage, and the groups over NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final

from liftenvelope.errors import LiftEnvelopeError, StreamNotFoundError
from liftenvelope.group.calls import DEFAULT_PREFIX
from liftenvelope.jetstream import ConsumerInfo, JetStream, StreamInfo
from liftenvelope.jetstream.listing import consumer_infos, stream_infos
from liftenvelope.monitor._limits import MAX_SUBJECTS, MonitorLimits
from liftenvelope.monitor._nats_groups import NatsGroupSampler
from liftenvelope.monitor._parts import RoundRobin, each, fault_of, steady_clock
from liftenvelope.monitor._snapshots import (
    ConsumerSample,
    PartitionSample,
    PinSample,
    SampleFault,
    Snapshot,
    StorageSample,
    StreamSample,
)

__all__ = ["JetStreamSampler"]

#: Seconds for a page of streams: a server in a cluster waits 4 s for streams that have no leader.
_PAGE: Final = 10.0


class JetStreamSampler:
    """Takes samples of a JetStream account.

    A sample lists the streams, 256 with each request. Consumers are listed for the streams that have any, for
    some of these in each sample.

    Args:
        js: JetStream. The sampler does not close it.
        limits: Limits of a sample.
        group_prefix: Prefix of the coordinators of groups. Default ``liftenvelope.groups``.
    """

    def __init__(
        self, js: JetStream, limits: MonitorLimits | None = None, *, group_prefix: str = DEFAULT_PREFIX
    ) -> None:
        self._js = js
        self._limits = limits or MonitorLimits()
        self._clock = steady_clock()
        self._groups = NatsGroupSampler(js, self._limits, group_prefix)
        self._turns = RoundRobin()
        self._consumers: dict[str, dict[str, ConsumerSample]] = {}
        #: Number of consumers of each stream that are beyond the limit.
        self._left_out: dict[str, int] = {}
        self._storage: StorageSample | None = None
        self._faults: list[SampleFault] = []

    async def sample(self, focus: Sequence[str] = ()) -> Snapshot:
        """Take a sample.

        Args:
            focus: Streams whose consumers are read in any case, and groups.

        Raises:
            LiftEnvelopeError: The streams could not be listed.
        """
        at, self._faults = self._clock(), []
        streams, missing, left_out = await self._streams()
        await asyncio.gather(
            self._part("consumers", partial(self._read_consumers, streams, focus)),
            self._part("storage", self._read_storage),
            self._part("groups", partial(self._groups.update, streams, self._clock, focus)),
        )
        return Snapshot(
            at=at,
            kind="jetstream",
            streams=streams,
            consumers={
                (stream, name): one
                for stream, found in sorted(self._consumers.items())
                for name, one in sorted(found.items())
            },
            groups=dict(self._groups.groups),
            storage=self._storage,
            missing=missing,
            left_out={
                "streams": left_out,
                "consumers": sum(self._left_out.values()),
                **self._groups.left_out,
            },
            faults=[*self._faults, *self._groups.faults],
            took=self._clock() - at,
        )

    async def _part(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            # The coroutine is made here: one made earlier is never awaited if the part is cancelled first.
            await work()
        except LiftEnvelopeError as exc:
            self._faults.append(fault_of(name, exc))

    async def _streams(self) -> tuple[dict[str, StreamSample], list[str], int]:
        found: dict[str, StreamSample] = {}
        missing: list[str] = []
        left_out = 0
        async for info in stream_infos(self._js.api, timeout=_PAGE, missing=missing):
            if len(found) < self._limits.max_streams:
                found[info.config.name] = _stream(info, self._clock())
            else:
                left_out += 1
        return dict(sorted(found.items())), missing[: self._limits.max_streams], left_out

    async def _read_storage(self) -> None:
        info = await self._js.account_info()
        self._storage = StorageSample(
            disk=info.storage,
            max_disk=_limit(info.limits.max_storage),
            memory=info.memory,
            max_memory=_limit(info.limits.max_memory),
        )

    async def _read_consumers(self, streams: dict[str, StreamSample], focus: Sequence[str]) -> None:
        read = [name for name, one in streams.items() if one.consumers]
        self._consumers = {name: self._consumers[name] for name in read if name in self._consumers}
        self._left_out = {name: self._left_out[name] for name in self._consumers if name in self._left_out}
        wanted = self._turns.take(read, self._limits.reads, first=set(focus))
        answers = await each(wanted, self._consumers_of, self._limits.at_once)
        room = self._limits.max_consumers - sum(map(len, self._consumers.values()))
        failures: list[LiftEnvelopeError] = []
        for stream, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, LiftEnvelopeError) and not isinstance(answer, StreamNotFoundError):
                failures.append(answer)
                continue
            room += len(self._consumers.pop(stream, ()))
            self._left_out.pop(stream, None)
            if not isinstance(answer, LiftEnvelopeError):  # else the stream was deleted meanwhile
                self._consumers[stream] = dict(islice(answer.items(), room))
                kept = len(self._consumers[stream])
                room -= kept
                # The listing ends at the limit. Beyond that, only the stream tells the number.
                is_whole = len(answer) < self._limits.max_consumers
                total = len(answer) if is_whole else max(streams[stream].consumers or 0, len(answer))
                self._left_out[stream] = total - kept
        if failures:
            self._faults.append(fault_of("consumers", failures[0], len(failures) - 1))

    async def _consumers_of(self, stream: str) -> dict[str, ConsumerSample]:
        found: dict[str, ConsumerSample] = {}
        async for info in consumer_infos(self._js.api, stream, _PAGE):
            if len(found) >= self._limits.max_consumers:
                break
            found[info.name] = _consumer(info, self._clock())
        return found


def _limit(most: int) -> int | None:
    return most if most > 0 else None


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _stream(info: StreamInfo, at: float) -> StreamSample:
    state, cluster = info.state, info.cluster
    replicas = 1 if cluster is None else 1 + len(cluster.replicas)
    current = [] if cluster is None else [one for one in cluster.replicas if one.current and not one.offline]
    has_leader = cluster is None or bool(cluster.leader)
    part = PartitionSample(
        number=0,
        at=at,
        first=max(min(state.first_seq - 1, state.last_seq), 0),
        end=state.last_seq,
        leader=None if cluster is None else cluster.leader,
        replicas=replicas,
        in_sync=len(current) + has_leader,
        readonly=info.config.sealed,
    )
    return StreamSample(
        name=info.config.name,
        subjects=info.config.subjects[:MAX_SUBJECTS],
        partitions=(part,),
        messages=state.messages,
        bytes=state.bytes,
        consumers=state.consumer_count,
        newest=_seconds(state.last_ts) if state.messages else None,
    )


def _consumer(info: ConsumerInfo, at: float) -> ConsumerSample:
    return ConsumerSample(
        stream=info.stream_name,
        name=info.name,
        at=at,
        delivered=info.delivered.stream_seq,
        ack_floor=info.ack_floor.stream_seq,
        unprocessed=info.num_pending,
        ack_pending=info.num_ack_pending,
        redelivered=info.num_redelivered,
        waiting=info.num_waiting,
        is_push=info.config.is_push,
        paused=info.paused,
        pins=tuple(
            PinSample(group=one.group, client=one.pinned_client_id, since=_seconds(one.pinned_ts))
            for one in info.priority_groups
        ),
    )
