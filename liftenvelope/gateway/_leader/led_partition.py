"""Leader work for one partition: acks, checked offsets, idle pausing and compaction."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from liftenvelope.consumers.tasks import background, cancel
from liftenvelope.errors import LiftEnvelopeError, StreamNotFoundError
from liftenvelope.gateway._acks.checked import CheckedIntake
from liftenvelope.gateway._acks.reader import PartitionAckReader
from liftenvelope.gateway._leader.compaction import CompactionBudget, Compactor

if TYPE_CHECKING:
    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._leader.bindings import Bindings
    from liftenvelope.gateway._readers.reads import OpenReads
    from liftenvelope.gateway._streams.service import StreamService

__all__ = ["LedPartition"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Idle checks of a partition within its ``autoPauseTime``.
_LOOKS: Final = 4
#: Least delay between two idle checks, in seconds.
_SHORTEST_LOOK: Final = 0.05
#: Default compaction interval of a stream, in seconds, as in Liftbridge.
_CLEANER_INTERVAL: Final = 300.0
#: Heartbeat interval of an ack reader's consumer, in seconds. Long, because thousands of partitions may be
#: idle. A lost connection or consumer is noticed without heartbeats.
_HEARTBEAT: Final = 300.0


class LedPartition:
    """Leader work for one partition: acks, checked offsets, idle pausing and compaction."""

    def __init__(
        self,
        core: Core,
        streams: StreamService,
        reads: OpenReads,
        record: StreamRecord,
        partition: int,
        compaction: CompactionBudget,
        bindings: Bindings,
    ) -> None:
        self._core = core
        self._streams = streams
        self._reads = reads
        self._name = record.name
        self.record_id = record.id
        self._partition = partition
        self.stream = record.stream_of(partition)
        self._idle_time = record.setting("autoPauseTime") / 1000
        self._unless_read = bool(record.setting("autoPauseDisableIfSubscribers"))
        self.acks = PartitionAckReader(
            core.nc,
            jetstream_stream=self.stream,
            stream=record.name,
            # Liftbridge reports the stream's subject as the subject of every partition.
            partition_subject=record.subject,
            api_prefix=core.js.api.prefix,
            heartbeat=_HEARTBEAT,
            on_error=self._tell,
            may_ack=partial(core.brokers.leads, record.name, partition),
            lease=core.brokers.lease,
            inboxes=core.ack_inboxes.prefixes,
            on_refused=self._warn_of,
            on_bound=partial(bindings.note, (record.name, partition)),
            on_acked=bindings.acked,
        )
        self._intake: CheckedIntake | None = None
        if record.checks_offsets:
            self._intake = CheckedIntake(
                core.raw_js,
                record,
                partition,
                inboxes=core.ack_inboxes,
                held=core.quotas.pending_on_nats(),
                on_error=self._tell,
            )
        self._idle: asyncio.Task[None] | None = None
        self._compactor: Compactor | None = None
        if record.setting("compactEnabled"):
            interval = record.setting("cleanerInterval") / 1000 or _CLEANER_INTERVAL
            self._compactor = Compactor(
                core.js, self.stream, interval=interval, budget=compaction, is_wanted=self._is_there
            )

    async def start(self) -> None:
        """Start all parts. If one fails, stop those already started."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        await self.acks.start(take_over=False)
        if self._intake is not None:
            await self._intake.start()
        if self._idle_time:
            self._idle = background(self._pause_when_idle(), name=f"idle {self.stream}", log=_log)
        if self._compactor is not None:
            await self._compactor.start()

    async def take_over(self) -> None:
        """Delete the ack consumers that earlier leaders have left."""
        await self.acks.take_over()

    async def catch_up(self) -> None:
        """Wait until every message now stored in the partition has its ack."""
        await self.acks.catch_up(self._core.js)

    async def close(self) -> None:
        """Stop all parts. After a close that was cancelled, stop the rest."""
        if self._intake is not None:
            await self._intake.close()
        if self._idle is not None:
            await cancel([self._idle])
        if self._compactor is not None:
            await self._compactor.close()
        await self.acks.close()

    def _is_there(self) -> bool:
        """Return False once this gateway knows that the stream was deleted or made anew."""
        record = self._core.registry.known(self._name)
        return record is not None and record.id == self.record_id

    def _leads(self) -> bool:
        return self._core.brokers.leads(self._name, self._partition)

    def _tell(self, error: LiftEnvelopeError) -> None:
        if isinstance(error, StreamNotFoundError) and not self._is_there():
            return  # deleted by a client: JetStream has told the reader before this gateway has closed it
        where = {"stream": self._name, "partition": self._partition}
        _log.warning("acks of %s, partition %d: %s", self._name, self._partition, error, extra=where)

    def _warn_of(self, inbox: bytes) -> None:
        now = asyncio.get_running_loop().time()
        self._core.ack_inboxes.warn(self._name, self._partition, inbox, now)

    async def _pause_when_idle(self) -> None:
        """Pause the partition after ``autoPauseTime`` without new messages.

        Open subscriptions count as activity if the stream sets ``autoPauseDisableIfSubscribers``. Only a
        gateway with a valid lease pauses the partition.
        """
        loop = asyncio.get_running_loop()
        newest, since = -2, loop.time()
        while True:
            await asyncio.sleep(max(self._idle_time / _LOOKS, _SHORTEST_LOOK))
            record = self._core.registry.known(self._name)
            if record is None:
                return
            try:
                state = await self._core.storage.state(self.stream)
                read = self._unless_read and self._reads.has(self._name, self._partition)
                if state.newest != newest or read or record.partitions[self._partition].paused:
                    newest, since = state.newest, loop.time()
                elif loop.time() - since >= self._idle_time and self._leads():
                    await self._streams.set_paused(self._name, [self._partition])
            except StreamNotFoundError:
                return
            except LiftEnvelopeError as exc:
                _log.warning("%s, partition %d: not paused: %s", self._name, self._partition, exc)
