"""Removes streams whose creation or deletion has ended half-way.

If JetStream does not answer a request of a creation or deletion, the record stays until a later request is
answered and a second has passed. nats-server executes requests concurrently: a deletion sent at once could
overtake the creation, and the stream would be left without a record. Streams that a dead gateway has left are
removed by another one.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import CallTimeoutError, LiftEnvelopeError, TransportError
from liftenvelope.gateway._cluster.records import StreamPhase
from liftenvelope.gateway._streams.repairing import OVERTAKEN, Repairs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._core import Core

__all__ = ["UNKNOWN_OUTCOME", "UnfinishedStreams"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Errors of a request that the server may still execute.
UNKNOWN_OUTCOME: Final = (asyncio.CancelledError, CallTimeoutError, TransportError)


class UnfinishedStreams:
    """Removes unfinished streams of this gateway and of dead ones.

    Args:
        core: The gateway's parts.
        repairs: Hands over the subjects of the streams.
    """

    def __init__(self, core: Core, repairs: Repairs) -> None:
        self._core = core
        self._repairs = repairs
        # By name: the streams whose creation or deletion ended without an answer, until they are removed.
        self._unsettled: dict[str, StreamRecord] = {}
        # Ids of those whose requests the server must have executed.
        self._executed: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def refuse(self) -> None:
        """Leave streams that end half-way from now on to the next run of this gateway, or to another one."""
        self._is_closing = True

    def close(self) -> None:
        """End the removals in the background."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()

    async def remove(self, record: StreamRecord, *, timeout: float = 0.0) -> None:
        """Remove the partitions and the record of a stream whose creation or deletion is unfinished.

        Raises:
            RpcError: UNAVAILABLE: another stream has not copied all messages within ``timeout`` seconds.
        """
        for number in range(len(record.partitions) if record.state is StreamPhase.DELETING else 0):
            await self._repairs.hand_over(record, number, timeout)
        for number in range(len(record.partitions)):
            await self._core.storage.delete(record, number)
        if record.events:
            # Removing the record drops its events, so they must be published first.
            self._core.activity.tell(record.name, record.events)
            await self._core.activity.told(record.events)
        await self._core.registry.remove(record)

    async def remove_partitions(self, record: StreamRecord) -> None:
        """Remove the partitions that were made for a record, and none of a later stream of the same name."""
        record = replace(record, state=StreamPhase.CREATING)
        for number in range(len(record.partitions)):
            await self._core.storage.delete(record, number)

    @asynccontextmanager
    async def lock_for(self, record: StreamRecord) -> AsyncIterator[None]:
        """Hold the locks for the creation of a stream, after the removal of one left under its name."""
        subjects = {record.subject}
        while True:
            async with self._core.changing.held(record.name, *subjects):
                left = self._unsettled.get(record.name)
                if left is None or left.subject in subjects:
                    await self._settle(record.name)
                    yield
                    return
            subjects.add(left.subject)

    @contextmanager
    def removed_after_errors(self, record: StreamRecord) -> Iterator[None]:
        """Remove later what an error in the block leaves of a stream's creation or deletion."""
        try:
            yield
        except (asyncio.CancelledError, LiftEnvelopeError) as exc:
            unfinished = self._core.registry.unfinished()
            if isinstance(exc, UNKNOWN_OUTCOME) or any(left.id == record.id for left in unfinished):
                self._remove_later(record)
            raise

    def _remove_later(self, record: StreamRecord) -> None:
        """Remove a stream once the requests of its creation or deletion must have been executed."""
        if self._is_closing:
            return
        self._unsettled[record.name] = record
        self._executed.discard(record.id)
        task = asyncio.get_running_loop().create_task(self._keep_settling(record.name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_settling(self, name: str) -> None:
        while (record := self._unsettled.get(name)) is not None:
            await asyncio.sleep(OVERTAKEN)
            try:
                await self._until_executed(record)
                await self._ask_partitions(record)
                async with self._core.changing.held(name, record.subject):
                    # Another change may have ended half-way meanwhile: its subject is not locked.
                    if self._unsettled.get(name) is record:
                        await self._settle(name)
            except LiftEnvelopeError as exc:
                _log.warning("stream %s, not created or deleted, can't be removed yet: %s", name, exc)

    async def _settle(self, name: str) -> None:
        """Remove a stream whose creation or deletion ended without an answer. The caller holds its lock."""
        record = self._unsettled.get(name)
        if record is None:
            return
        await self._until_executed(record)
        self._executed.discard(record.id)  # a removal sends more requests
        left = await self._core.registry.refresh(name)
        if left is None or left.id != record.id:
            await self.remove_partitions(record)  # another gateway has taken this one for dead
        elif left.state is not StreamPhase.READY:
            await self.remove(left)
        self._unsettled.pop(name, None)

    async def _until_executed(self, record: StreamRecord) -> None:
        """Wait until the server must have executed the requests of a creation or deletion."""
        if record.id not in self._executed:
            # Once this is answered, the server has received everything that was sent before.
            await self._core.registry.refresh(record.name)
            await asyncio.sleep(OVERTAKEN)
            self._executed.add(record.id)

    async def _ask_partitions(self, record: StreamRecord) -> None:
        """Ask about each partition before a removal takes the lock: one without a leader does not answer.

        Raises:
            LiftEnvelopeError: JetStream does not answer.
        """
        for number in range(len(record.partitions)):
            await self._core.storage.id_of(record.stream_of(number))

    async def finish_work(self, alive: Iterable[str], *, of_the_dead: bool) -> None:
        """Remove the streams whose creation or deletion this gateway did not finish.

        Args:
            alive: Ids of the gateways that are alive.
            of_the_dead: Whether to remove the unfinished streams of dead gateways as well.
        """
        me, living = self._core.options.id, set(alive)
        for found in self._core.registry.unfinished():
            if found.name in self._unsettled:
                continue
            if found.maker == me or (of_the_dead and found.maker not in living):
                await self._ask_partitions(found)
                async with self._core.changing.held(found.name, found.subject):
                    # This gateway has no change of the stream in progress while this task holds the lock. One
                    # that this task has waited for may have ended without an answer.
                    if found.name not in self._unsettled and found in self._core.registry.unfinished():
                        await self.remove(found)
