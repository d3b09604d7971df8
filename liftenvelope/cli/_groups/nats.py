"""Groups over NATS for ``liftenvelope group``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from liftenvelope.cli._groups.groups import Aim, Reset, ResetOutcome
from liftenvelope.errors import (
    CallTimeoutError,
    GroupError,
    MessageNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.group import GroupClient, JetStreamTopic, JetStreamTopicSource
from liftenvelope.group.bounds import clamped
from liftenvelope.group.calls import DEFAULT_PREFIX
from liftenvelope.jetstream import DeliverPolicy, JetStream
from liftenvelope.jetstream.counting import first_sequence
from liftenvelope.monitor.groups import GroupDescription, GroupOverview, GroupPartition

if TYPE_CHECKING:
    from liftenvelope.cli._connecting.servers import CommandServers
    from liftenvelope.group import TopicPartition, TopicSpec

__all__ = ["NatsGroups"]

#: Partitions to ask about at a time.
_AT_ONCE: Final = 16


class NatsGroups:
    """Administration of groups over NATS, of one connection.

    Args:
        js: JetStream, which has the topics.
        timeout: Seconds for a call.
        prefix: Prefix of the coordinators' subjects.
    """

    def __init__(self, js: JetStream, timeout: float, prefix: str = DEFAULT_PREFIX) -> None:
        self._js = js
        self._client = GroupClient(js.api.nc, prefix=prefix, timeout=timeout)
        self._specs: dict[str, TopicSpec] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    @classmethod
    @asynccontextmanager
    async def open(cls, servers: CommandServers, prefix: str = DEFAULT_PREFIX) -> AsyncIterator[NatsGroups]:
        """Connect, and close the connection in the end."""
        async with servers.jetstream() as js:
            yield cls(js, servers.timeout, prefix)

    async def list_groups(self) -> list[GroupOverview]:
        """Return all groups."""
        found = await self._client.list_groups()
        return [
            GroupOverview(
                name=one.name,
                state=one.phase.name.lower(),
                members=len(one.members),
                topics=[topic.name for topic in one.topics],
            )
            for one in found.groups
        ]

    async def describe(self, name: str, topics: Sequence[str]) -> GroupDescription:
        """Return a group, with its positions in these topics, or in all of its topics.

        Raises:
            UsageError: The group has no such topic.
        """
        info = await self._client.describe_group(name)
        self._specs = {spec.name: spec for spec in info.topics}
        for topic in topics:
            if topic not in self._specs:
                known = ", ".join(self._specs) or "none"
                raise UsageError(f"--topic must be one of the group's topics, {known}, got {topic!r}")
        owners = {key: member.consumer_id for member in info.members for key in member.assignment}
        committed = await self._client.committed(name)
        rows = [
            self._row(spec, number, owners, committed)
            for spec in info.topics
            if not topics or spec.name in topics
            for number in range(spec.partitions)
        ]
        return GroupDescription(
            name=name,
            state=info.phase.name.lower(),
            coordinator=info.controller_id,
            generation=info.generation,
            members={member.consumer_id: member.topics for member in info.members},
            partitions=await asyncio.gather(*rows),
        )

    async def _row(
        self,
        spec: TopicSpec,
        number: int,
        owners: dict[TopicPartition, str],
        committed: dict[TopicPartition, int | GroupError],
    ) -> GroupPartition:
        from liftenvelope.group import TopicPartition

        key = TopicPartition(spec.name, number)
        offset = committed.get(key, -1)
        if isinstance(offset, GroupError):
            raise offset
        place = None if offset < 0 else offset
        row = GroupPartition(topic=spec.name, partition=number, member=owners.get(key), committed=place)
        if not spec.places:  # of a source that only its members can read
            return row
        source = self._source(spec)
        async with self._slots:
            oldest, end = await source.bounds(number)
            lag = await source.lag(number, oldest if place is None else max(place, oldest))
        return replace(row, end=end, lag=lag)

    def _source(self, spec: TopicSpec) -> JetStreamTopicSource:
        return JetStreamTopicSource(self._js, JetStreamTopic(spec.name, spec.places))

    async def plan(self, wanted: Sequence[GroupPartition], aim: Aim) -> list[Reset]:
        """Return the changes that move a group to a new position.

        Raises:
            UsageError: The aim is not an offset, and a topic is not in JetStream.
        """
        return await asyncio.gather(*(self._change(one, aim) for one in wanted))

    async def _change(self, row: GroupPartition, aim: Aim) -> Reset:
        spec = self._specs[row.topic]
        if not spec.places:
            if not isinstance(aim, int):
                text = f"--to-offset must be used for topic {row.topic!r}, which is not in JetStream"
                raise UsageError(text)
            offset = aim
        else:
            async with self._slots:
                offset = await self._aimed(spec, row.partition, aim)
        return Reset(topic=row.topic, partition=row.partition, old=row.committed, new=offset)

    async def _aimed(self, spec: TopicSpec, partition: int, aim: Aim) -> int:
        oldest, end = await self._source(spec).bounds(partition)
        if isinstance(aim, int):
            return clamped(aim, (oldest, end))  # as the coordinator does
        if isinstance(aim, str):
            return oldest if aim == "earliest" else end
        place = spec.places[partition]
        stream = await self._js.stream(place.stream)
        time = {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": aim}
        begin = await first_sequence(stream, time)
        try:
            first = await stream.get_message(begin, next_by_subject=place.subject or ">", direct=False)
        except MessageNotFoundError:
            return end
        return first.sequence - 1

    async def reset(self, name: str, plan: Sequence[Reset]) -> list[Reset]:
        """Make changes by one request, and return each with its outcome and the offset that was set.

        Raises:
            GroupError: The coordinator refused the request as a whole, and nothing was changed.
        """
        try:
            done = await self._client.rewind(name, {(one.topic, one.partition): one.new for one in plan})
        except (CallTimeoutError, TransportError) as exc:
            return [one.failed(exc) for one in plan]
        offsets = {(key.topic, key.partition): offset for key, offset in done.items()}
        return [_finished(one, offsets.get((one.topic, one.partition), one.new)) for one in plan]

    async def delete(self, name: str, topics: Sequence[str]) -> None:
        """Delete a group without members, with its positions.

        Raises:
            UsageError: Topics are given: a group is deleted as a whole.
            GroupError: There is no such group, or it has members.
        """
        if topics:
            raise UsageError("--topic must be left out: a group over NATS is deleted as a whole")
        await self._client.describe_group(name)  # its error for a missing group lists those that exist
        await self._client.delete_group(name)


def _finished(change: Reset, found: int | GroupError) -> Reset:
    if isinstance(found, GroupError):
        return change.failed(found)
    return replace(change, new=found, outcome=ResetOutcome.RESET)
