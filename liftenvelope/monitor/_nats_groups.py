"""Samples of the groups over NATS."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from liftenvelope.errors import GroupError, LiftEnvelopeError
from liftenvelope.group import (
    GroupClient,
    GroupInfo,
    GroupUnavailableError,
    JetStreamTopic,
    JetStreamTopicSource,
    Place,
    TopicPartition,
)
from liftenvelope.jetstream import JetStream
from liftenvelope.monitor._limits import MonitorLimits
from liftenvelope.monitor._parts import RoundRobin, each, fault_of
from liftenvelope.monitor._snapshots import GroupSample, SampleFault, StreamSample
from liftenvelope.monitor.groups import GroupPartition

__all__ = ["NatsGroupSampler"]

#: Seconds to look for a coordinator, and between two looks while none is known. Most accounts have none.
_LOOK: Final = 0.5
_PAUSE: Final = 15.0
_TIMEOUT: Final = 5.0

_Streams = Mapping[str, StreamSample]
_Offsets = Mapping[TopicPartition, int | GroupError]


class NatsGroupSampler:
    """Keeps a sample of each group: all groups by one request, and the offsets of some in each sample.

    JetStream counts the lag of a partition that has its own subject in a stream, which makes a consumer for a
    moment. So few are counted in each sample, and only those whose stream or offset has changed.

    Args:
        js: JetStream, which has the topics.
        limits: Limits of a sample.
        prefix: Prefix of the coordinators' subjects.
    """

    def __init__(self, js: JetStream, limits: MonitorLimits, prefix: str) -> None:
        self._js = js
        self._client = GroupClient(js.api.nc, prefix=prefix, timeout=_TIMEOUT)
        self._limits = limits
        self._turns = RoundRobin()
        self._count_turns = RoundRobin()
        self._not_before = 0.0
        self._offsets: dict[str, tuple[float, _Offsets]] = {}
        self._counts: dict[tuple[str, Place], _Counted] = {}
        #: Groups by name, what could not be read, and numbers of what is beyond the limits.
        self.groups: dict[str, GroupSample] = {}
        self.faults: list[SampleFault] = []
        self.left_out: dict[str, int] = {}

    async def update(self, streams: _Streams, clock: Callable[[], float], focus: Sequence[str]) -> None:
        """Read the groups and their positions in the streams of a sample.

        While no coordinator answers, the groups stay as they were, with the fault of the last look.

        Raises:
            GroupError, TransportError, CallTimeoutError: The groups could not be listed.
        """
        if clock() < self._not_before:
            return
        self.faults = []
        try:
            listed = await self._client.list_groups(timeout=_TIMEOUT if self.groups else _LOOK)
        except GroupUnavailableError as exc:
            self._not_before = clock() + _PAUSE
            if self.groups:
                self.faults = [fault_of("groups", exc)]
            return
        infos = {one.name: one for one in listed.groups[: self._limits.max_groups]}
        sizes = (sum(topic.partitions for topic in info.topics) for info in infos.values())
        self.left_out = {
            "groups": len(listed.groups) - len(infos),
            "partitions of groups": sum(max(size - self._limits.max_rows, 0) for size in sizes),
        }
        wanted = self._turns.take(infos, self._limits.reads, first=set(focus))
        answers = await each(wanted, self._client.committed, self._limits.at_once)
        self._offsets = {name: one for name, one in self._offsets.items() if name in infos}
        for name, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, LiftEnvelopeError):
                self.faults.append(fault_of("groups", answer))
            else:
                self._offsets[name] = clock(), answer
        await self._count(streams, infos)
        self.groups = {name: self._group(infos[name], streams, clock) for name in sorted(infos)}

    def _places(self, infos: Mapping[str, GroupInfo]) -> Iterator[tuple[str, Place, int]]:
        """Yield each place with a subject, and the offset at which a group stands there."""
        for name, info in infos.items():
            for key, place in list(_places(info))[: self._limits.max_rows]:
                offset = self._offsets.get(name, (0.0, {}))[1].get(key, -1)
                if place is not None and place.subject and not isinstance(offset, GroupError):
                    yield name, place, offset

    async def _count(self, streams: _Streams, infos: Mapping[str, GroupInfo]) -> None:
        due: dict[tuple[str, Place], tuple[int, int]] = {}
        known = set()
        for name, place, offset in self._places(infos):
            stream = streams.get(place.stream)
            if stream is None or stream.end is None:
                continue
            known.add((name, place))
            first = stream.partitions[0].first or 0
            now, counted = (max(offset, first), stream.end), self._counts.get((name, place))
            if counted is None or counted.state != now:
                due[name, place] = now
        self._counts = {key: one for key, one in self._counts.items() if key in known}
        wanted = self._count_turns.take(due, self._limits.counts)

        async def count(key: tuple[str, Place]) -> int:
            source = JetStreamTopicSource(self._js, JetStreamTopic(key[1].stream, (key[1],)))
            return await source.lag(0, due[key][0])

        answers = await each(wanted, count, self._limits.at_once)
        for key, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, LiftEnvelopeError):
                self.faults.append(fault_of("groups", answer))
            else:
                self._counts[key] = _Counted(due[key], answer)

    def _group(self, info: GroupInfo, streams: _Streams, clock: Callable[[], float]) -> GroupSample:
        at, offsets = self._offsets.get(info.name, (clock(), {}))
        owners = {key: member.consumer_id for member in info.members for key in member.assignment}
        rows = [
            self._row(info.name, key, place, offsets.get(key, -1), streams, owners.get(key))
            for key, place in list(_places(info))[: self._limits.max_rows]
        ]
        return GroupSample(
            name=info.name,
            at=at,
            state=info.phase.name.lower(),
            coordinator=info.controller_id,
            generation=info.generation,
            members={member.consumer_id: member.topics for member in info.members},
            partitions=rows,
        )

    def _row(
        self,
        group: str,
        key: TopicPartition,
        place: Place | None,
        offset: int | GroupError,
        streams: _Streams,
        member: str | None,
    ) -> GroupPartition:
        committed = None if isinstance(offset, GroupError) or offset < 0 else offset
        end = lag = None
        stream = None if place is None else streams.get(place.stream)
        if place is not None and stream is not None and stream.end is not None:
            end = stream.end
            if place.subject:
                counted = self._counts.get((group, place))
                lag = None if counted is None else counted.lag
            else:
                lag = max(end - max(committed or 0, stream.partitions[0].first or 0), 0)
        return GroupPartition(
            topic=key.topic, partition=key.partition, member=member, committed=committed, end=end, lag=lag
        )


class _Counted:
    """Lag that JetStream has counted, for an offset and an end of the stream."""

    def __init__(self, state: tuple[int, int], lag: int) -> None:
        self.state = state
        self.lag = lag


def _places(info: GroupInfo) -> Iterator[tuple[TopicPartition, Place | None]]:
    """Yield the partitions of a group, and the place of each; None if only members can read it."""
    for topic in info.topics:
        for number in range(topic.partitions):
            place = topic.places[number] if topic.places else None
            yield TopicPartition(topic.name, number), place
