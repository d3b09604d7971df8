"""What a gateway does for the partitions that it leads: acks, compaction, pausing those that are idle."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from liftenvelope._stream_names import RESERVED
from liftenvelope.errors import LiftEnvelopeError, StreamNotFoundError
from liftenvelope.gateway.acks import AckReader
from liftenvelope.gateway.brokers import leader_of
from liftenvelope.gateway.checked import CheckedIntake
from liftenvelope.gateway.compaction import CompactionBudget, Compactor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftenvelope.gateway.core import Core
    from liftenvelope.gateway.reads import OpenReads
    from liftenvelope.gateway.records import StreamRecord
    from liftenvelope.gateway.streams import StreamService

__all__ = ["Leading"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: How many partitions are begun to be led at once.
_AT_ONCE: Final = 16
#: After how many seconds what failed is tried again.
_RETRY: Final = 1.0
#: How often to look where nothing seems to have changed, in seconds.
_SELDOM: Final = 30.0
#: How often the idle time of a partition is looked at: this many times while it passes.
_LOOKS: Final = 4
_SHORTEST_LOOK: Final = 0.05
#: How often a stream is compacted where it does not say, in seconds, as in Liftbridge.
_CLEANER_INTERVAL: Final = 300.0
#: How often the reader of a partition is told that it is still there, in seconds: seldom, for there may be
#: thousands that have nothing to read. A lost connection, or consumer, is noticed without.
_HEARTBEAT: Final = 300.0


class Leading:
    """Keeps up what a leader does, as streams and gateways come and go.

    Args:
        core: The gateway's parts.
        streams: Pauses partitions, and finishes what dead gateways have begun.
        reads: The subscriptions that are open here.
    """

    def __init__(self, core: Core, streams: StreamService, reads: OpenReads) -> None:
        self._core = core
        self._streams = streams
        self._reads = reads
        self._compaction = CompactionBudget()
        # By stream, then by partition.
        self._led: dict[str, dict[int, _Led]] = {}
        self._wanted = asyncio.Event()
        # The streams to look at; None for all.
        self._changed: set[str] | None = None
        # Whether to see that JetStream records what it should.
        self._check = True
        self._failed = False
        self._task: asyncio.Task[None] | None = None
        #: Whether all partitions that this gateway is to lead have had their acks since the start.
        self.settled = False

    async def start(self) -> None:
        """Lead what this gateway is to lead, and follow the changes, in the background."""
        self._wanted.set()
        self._task = asyncio.create_task(self._run(), name="lead partitions")

    async def close(self) -> None:
        """Lead nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        led, self._led = self._led, {}
        await asyncio.gather(*(one.close() for parts in led.values() for one in parts.values()))

    async def catch_up(self) -> None:
        """Wait until every message that is stored in the partitions led here now has its ack.

        Raises:
            LiftEnvelopeError: JetStream does not say how many those are.
        """
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(led: _Led) -> None:
            async with limit:
                await led.catch_up()

        await asyncio.gather(*(one(led) for parts in self._led.values() for led in parts.values()))

    def stream_changed(self, before: StreamRecord | None, after: StreamRecord | None) -> None:
        """Look at a stream that has changed."""
        known = before if after is None else after
        if known is not None:
            self.look(known.name)

    def look(self, stream: str | None = None, *, gateways: bool = False) -> None:
        """A stream has changed, or ``gateways`` have, or all that there is may have."""
        self._check = self._check or gateways
        if stream is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.add(stream)
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_SELDOM):
                    await self._wanted.wait()
            except TimeoutError:
                self._changed = None  # something may have failed, and nobody told of it
            self._wanted.clear()
            # What others do is known again when there is a lease again.
            if not await self._core.brokers.lease():
                return
            names, self._changed = self._changed, set()
            try:
                await self._settle(names)
            except LiftEnvelopeError as exc:
                _log.warning("not all that this gateway leads is taken care of: %s", exc)
                self._look_again()

    def _look_again(self) -> None:
        asyncio.get_running_loop().call_later(_RETRY, self.look)

    async def _settle(self, names: set[str] | None) -> None:
        """Lead what is to be led of some streams, or of all, and no more of them."""
        registry = self._core.registry
        self._failed = False
        known = registry if names is None else [registry.known(name) for name in names]
        wanted = self._to_lead(record for record in known if record is not None)
        looked_at = set(self._led) if names is None else names
        await asyncio.gather(*(self._end(name, wanted) for name in looked_at if name in self._led))
        limit = asyncio.Semaphore(_AT_ONCE)
        new = (key for key in wanted if key[1] not in self._led.get(key[0], {}))
        await asyncio.gather(*(self._begin(key, limit) for key in new))
        if names is not None:
            return
        self.settled = self.settled or not self._failed
        await self._finish_work()
        if self._check:
            self._check = False
            await self._check_subjects({name for name, partition in wanted if partition == 0})

    def _to_lead(self, records: Iterable[StreamRecord]) -> dict[tuple[str, int], str]:
        return {
            (record.name, number): record.id
            for record in records
            if record.name not in RESERVED
            for number in range(len(record.partitions))
            if self._core.brokers.is_leader(record.name, number)
        }

    async def _end(self, name: str, wanted: dict[tuple[str, int], str]) -> None:
        """Lead no more of a stream than is wanted."""
        led = self._led[name]
        old = [number for number, one in led.items() if wanted.get((name, number)) != one.record_id]
        closing = [led.pop(number) for number in old]
        if not led:
            del self._led[name]
        await asyncio.gather(*(one.close() for one in closing))

    async def _begin(self, key: tuple[str, int], limit: asyncio.Semaphore) -> None:
        record = self._core.registry.known(key[0])
        if record is None:
            return
        led = _Led(self._core, self._streams, self._reads, record, key[1], self._compaction)
        async with limit:
            try:
                await led.start()
            except StreamNotFoundError:
                return  # deleted: the registry is about to tell
            except LiftEnvelopeError as exc:
                _log.warning("%s, partition %d: no acks yet: %s", *key, exc)
                self._failed = True
                self._look_again()
                return
        self._led.setdefault(key[0], {})[key[1]] = led

    async def _finish_work(self) -> None:
        """Clean up what was left half done; behind the dead one gateway does, so that not all do at once."""
        alive = self._core.brokers.alive
        of_the_dead = leader_of("", 0, alive) == self._core.options.id
        try:
            await self._streams.finish_work(alive, of_the_dead=of_the_dead)
            await self._streams.tell_left_over(alive, of_the_dead=of_the_dead)
        except LiftEnvelopeError as exc:
            _log.warning("a stream that was not made or removed to the end is still there: %s", exc)
            self._look_again()

    async def _check_subjects(self, names: Iterable[str]) -> None:
        """A gateway that is gone may have died while it changed what a stream records."""
        for name in names:
            try:
                await self._streams.repair(name)
            except StreamNotFoundError:
                continue  # deleted meanwhile
            except LiftEnvelopeError as exc:
                _log.warning("whether %s records what it should is not known: %s", name, exc)
                self._check = True
                self._look_again()


class _Led:
    """One partition."""

    def __init__(
        self,
        core: Core,
        streams: StreamService,
        reads: OpenReads,
        record: StreamRecord,
        partition: int,
        compaction: CompactionBudget,
    ) -> None:
        self._core = core
        self._streams = streams
        self._reads = reads
        self._name = record.name
        self.record_id = record.id
        self._partition = partition
        self._stream = record.stream_of(partition)
        self._idle_time = record.setting("autoPauseTime") / 1000
        self._unless_read = bool(record.setting("autoPauseDisableIfSubscribers"))
        self._acks = AckReader(
            core.nc,
            jetstream_stream=self._stream,
            stream=record.name,
            # Liftbridge calls the stream's subject that of the partition.
            partition_subject=record.subject,
            api_prefix=core.js.api.prefix,
            heartbeat=_HEARTBEAT,
            on_error=self._tell,
            may_ack=partial(core.brokers.leads, record.name, partition),
            inboxes=core.ack_inboxes.prefixes,
            on_refused=self._warn_of,
        )
        self._intake: CheckedIntake | None = None
        if record.checks_offsets:
            self._intake = CheckedIntake(
                core.js, record, partition, inboxes=core.ack_inboxes, on_error=self._tell
            )
        self._idle: asyncio.Task[None] | None = None
        self._compactor: Compactor | None = None
        if record.setting("compactEnabled"):
            interval = record.setting("cleanerInterval") / 1000 or _CLEANER_INTERVAL
            self._compactor = Compactor(
                core.js, self._stream, interval=interval, budget=compaction, is_wanted=self._is_there
            )

    async def start(self) -> None:
        """Begin all of it, or nothing."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        await self._acks.start()
        if self._intake is not None:
            await self._intake.start()
        if self._idle_time:
            self._idle = asyncio.create_task(self._pause_when_idle(), name=f"idle {self._stream}")
        if self._compactor is not None:
            await self._compactor.start()

    async def catch_up(self) -> None:
        await self._acks.catch_up()

    async def close(self) -> None:
        if self._intake is not None:
            await self._intake.close()
        if self._idle is not None:
            self._idle.cancel()
            await asyncio.wait([self._idle])
        if self._compactor is not None:
            await self._compactor.close()
        await self._acks.close()

    def _is_there(self) -> bool:
        """Whether the stream was not deleted, as far as this gateway knows."""
        record = self._core.registry.known(self._name)
        return record is not None and record.id == self.record_id

    def _leads(self) -> bool:
        return self._core.brokers.leads(self._name, self._partition)

    def _tell(self, error: LiftEnvelopeError) -> None:
        _log.warning("acks of %s, partition %d: %s", self._name, self._partition, error)

    def _warn_of(self, inbox: bytes) -> None:
        now = asyncio.get_running_loop().time()
        self._core.ack_inboxes.warn(self._name, self._partition, inbox, now)

    async def _pause_when_idle(self) -> None:
        loop = asyncio.get_running_loop()
        newest, since = -2, loop.time()
        while True:
            await asyncio.sleep(max(self._idle_time / _LOOKS, _SHORTEST_LOOK))
            record = self._core.registry.known(self._name)
            if record is None:
                return
            try:
                state = await self._core.storage.state(self._stream)
                read = self._unless_read and self._reads.has(self._name, self._partition)
                if state.newest != newest or read or record.partitions[self._partition].paused:
                    newest, since = state.newest, loop.time()
                elif loop.time() - since >= self._idle_time and self._leads():
                    await self._streams.set_paused(self._name, [self._partition])
            except StreamNotFoundError:
                return
            except LiftEnvelopeError as exc:
                _log.warning("%s, partition %d: not paused: %s", self._name, self._partition, exc)
