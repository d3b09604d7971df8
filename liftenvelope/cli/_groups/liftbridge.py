"""Liftbridge's groups for ``liftenvelope group``.

Liftbridge's API does not list groups or members: a group is found by its name alone, while it has members.
Its positions are cursors, which outlive it. Joins and leaves are in the activity stream, if servers keep one,
and that is where names, members and streams come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from liftenvelope.cli._groups.groups import Aim, Reset, ResetOutcome, incomplete_deletion
from liftenvelope.client import Client
from liftenvelope.client.cursor_names import group_cursor
from liftenvelope.errors import (
    GroupError,
    LiftEnvelopeError,
    NoSuchGroupError,
    NoSuchStreamError,
    NotLeaderError,
    ReadonlyPartitionError,
    UsageError,
)
from liftenvelope.group.bounds import clamped
from liftenvelope.monitor.group_activity import ActiveGroup, GroupActivity
from liftenvelope.monitor.groups import GroupDescription, GroupOverview, GroupPartition

if TYPE_CHECKING:
    from liftenvelope.cli._connecting.servers import CommandServers

__all__ = ["LiftbridgeGroups"]

#: Partitions to ask about at a time.
_AT_ONCE: Final = 16


class LiftbridgeGroups:
    """Administration of the groups of Liftbridge or a gateway, by one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(_AT_ONCE)

    @classmethod
    @asynccontextmanager
    async def open(cls, servers: CommandServers) -> AsyncIterator[LiftbridgeGroups]:
        """Connect, and close the client in the end."""
        async with servers.liftbridge() as client:
            yield cls(client)

    async def list_groups(self) -> list[GroupOverview]:
        """Return the groups that the activity stream mentions: those with members, and empty ones."""
        history = (await GroupActivity(self._client).update()).groups
        live = (await self._client.fetch_metadata(streams=[], groups=sorted(history))).groups
        return [
            GroupOverview(
                name=name,
                state="active" if name in live else "empty",
                members=len(one.members) if name in live else 0,
                topics=list(one.streams),
            )
            for name, one in sorted(history.items())
        ]

    async def describe(self, name: str, topics: Sequence[str]) -> GroupDescription:
        """Return a group, with its positions in these streams, or in those that its members have read.

        Raises:
            NoSuchGroupError: The group has no members, and its streams are not known.
        """
        try:
            found = await GroupActivity(self._client).update()
            history = found.groups.get(name, ActiveGroup())
        except NoSuchStreamError:
            history = ActiveGroup()  # the cluster keeps no activity stream
        streams = list(topics) or list(history.streams)
        metadata = await self._client.fetch_metadata(streams=streams, groups=[name])
        info = metadata.groups.get(name)
        if info is None and not streams:
            text = f"group {name!r} has no members, and no activity tells its streams: name them by --topic"
            raise NoSuchGroupError(text)
        for stream in topics:
            metadata.partition_count(stream)  # raises NoSuchStreamError
        rows = [
            self._row(name, stream, number)
            for stream in streams
            if stream in metadata.streams
            for number in metadata.streams[stream].partitions
        ]
        return GroupDescription(
            name=name,
            state="empty" if info is None else "active",
            coordinator=None if info is None else info.coordinator,
            generation=None if info is None else info.epoch,
            members={} if info is None else history.members,
            partitions=await asyncio.gather(*rows),
        )

    async def _row(self, group: str, stream: str, number: int) -> GroupPartition:
        async with self._slots:
            stored = await self._client.fetch_cursor(group_cursor(group), stream, number)
            try:
                end = (await self._client.fetch_partition_metadata(stream, number)).newest_offset + 1
            except NotLeaderError:  # such as of a paused partition
                end = None
        committed = None if stored is None else stored + 1
        lag = None if end is None else max(end - (committed or 0), 0)
        return GroupPartition(topic=stream, partition=number, committed=committed, end=end, lag=lag)

    async def plan(self, wanted: Sequence[GroupPartition], aim: Aim) -> list[Reset]:
        """Return the changes that move a group to a new position, also if it has members."""
        return await asyncio.gather(*(self._change(one, aim) for one in wanted))

    async def _change(self, row: GroupPartition, aim: Aim) -> Reset:
        if row.end is None:
            raise UsageError(f"partition {row.partition} of {row.topic!r} has no leader: leave it out")
        async with self._slots:
            if isinstance(aim, int):
                oldest = await self._first(row.topic, row.partition, "earliest", row.end)
                new = clamped(aim, (oldest, row.end))
            elif aim == "latest":
                new = row.end
            else:
                new = await self._first(row.topic, row.partition, aim, row.end)
        return Reset(topic=row.topic, partition=row.partition, old=row.committed, new=new)

    async def _first(self, stream: str, partition: int, start: str | datetime, end: int) -> int:
        """Return the offset of the first message from a place on; the end if there is none."""
        try:
            reading = self._client.subscribe(stream, partition=partition, start=start, stop="latest")
            async with reading as messages:
                async for message in messages:
                    return message.offset
        except ReadonlyPartitionError:
            pass
        return end

    async def reset(self, name: str, plan: Sequence[Reset]) -> list[Reset]:
        """Set the cursors of a group, up to the first that fails. Return each change with its outcome.

        If a member may have joined in the meantime, the outcome of all changes is unknown. Offset 0 deletes
        the cursor: no cursor can stand before offset 0.

        Raises:
            GroupError: The group has members, which would overwrite the change.
        """
        if await self._has_members(name):
            raise GroupError(f"group {name!r} has members, which would go on: stop them first")
        return await self._carry_out(name, plan, "set")

    async def _carry_out(self, name: str, plan: Sequence[Reset], verb: str) -> list[Reset]:
        """Make changes, up to the first that fails, and look for members that joined in the meantime."""
        done: list[Reset] = []
        for one in plan:
            try:
                await self._set(name, one)
            except LiftEnvelopeError as exc:
                rest = plan[len(done) + 1 :]
                return [*done, one.failed(exc), *(replace(r, outcome=ResetOutcome.NOT_TRIED) for r in rest)]
            done.append(replace(one, outcome=ResetOutcome.RESET))
        if doubt := await self._doubt(name, verb):
            return [replace(one, outcome=ResetOutcome.UNKNOWN, error=doubt) for one in done]
        return done

    async def _doubt(self, name: str, verb: str) -> str:
        """Return why a group may go on at its old offsets, although its cursors changed; empty if it can't.

        The API can't keep members out. One that joined before its cursor changed goes on at the old offset.
        """
        try:
            if not await self._has_members(name):
                return ""
        except LiftEnvelopeError as exc:
            return f"the cursor was {verb}, but no server told if a member joined meanwhile: {exc}"
        return (
            f"the cursor was {verb}, but a member joined meanwhile and may go on at the old offset: stop it"
        )

    async def _has_members(self, name: str) -> bool:
        return name in (await self._client.fetch_metadata(streams=[], groups=[name])).groups

    async def _set(self, group: str, change: Reset) -> None:
        cursor = group_cursor(group)
        if change.new == 0:
            await self._client.reset_cursor(cursor, change.topic, change.partition)
        else:
            await self._client.set_cursor(cursor, change.topic, change.partition, change.new - 1)

    async def delete(self, name: str, topics: Sequence[str]) -> None:
        """Delete the cursors of a group that has no members, up to the first that fails.

        Raises:
            GroupError: The group has members, some cursors were not deleted, or a member may have joined in
                the meantime. The text tells what became of each partition.
        """
        found = await self.describe(name, topics)
        if found.state == "active":
            raise GroupError(f"group {name!r} has members: stop them first, and the group ends by itself")
        plan = [
            Reset(topic=one.topic, partition=one.partition, old=one.committed, new=0)
            for one in found.partitions
        ]
        done = await self._carry_out(name, plan, "deleted")
        if (error := incomplete_deletion(name, done)) is not None:
            raise error
