"""Leader work for partitions: sends acks, compacts, and pauses idle partitions.

One background task reconciles the partitions led here with those that this gateway should lead. Each change
of a stream or of the gateways wakes the task, which waits for a valid lease before it acts. A full pass every
30 s catches failures that no change announced. Every tenth pass also compares JetStream with the records, as
the last request of a killed gateway may arrive late. JetStream may not answer for a partition that has no
leader. So the task waits only a second for the partitions that it starts to lead, and then handles the next
changes. After a full pass, a second task cleans up after gateways that died.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from liftenvelope._checks import RESERVED
from liftenvelope.consumers.tasks import cancel
from liftenvelope.errors import LiftEnvelopeError, StreamNotFoundError
from liftenvelope.gateway._acks.reader import PartitionAckReader
from liftenvelope.gateway._cluster.brokers import leader_of
from liftenvelope.gateway._leader.bindings import Bindings
from liftenvelope.gateway._leader.compaction import CompactionBudget
from liftenvelope.gateway._leader.led_partition import LedPartition
from liftenvelope.gateway._partitions.probes import remove_old_probes
from liftenvelope.gateway._partitions.recordings import is_as_recorded, width_order
from liftenvelope.gateway._streams.orphans import remove_all_orphans
from liftenvelope.jetstream.watch import watch_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._readers.reads import OpenReads
    from liftenvelope.gateway._streams.service import StreamService

__all__ = ["Leading"]

_log: Final = logging.getLogger("liftenvelope.gateway")
_T = TypeVar("_T")
#: Partitions whose leader work starts concurrently.
_AT_ONCE: Final = 16
#: Most streams whose subjects are checked one by one, without the list of all streams.
_ONE_BY_ONE: Final = 16
#: Seconds for which the start of partitions may hold up the next changes.
_SLOW: Final = 1.0
#: Delay before a retry after a failure, in seconds.
_RETRY: Final = 1.0
#: Interval of full passes in seconds, and passes between two checks of JetStream.
_SELDOM: Final = 30.0
_CHECK_EVERY: Final = 10


class Leading:
    """Starts and stops leader work as streams and gateways come and go.

    Args:
        core: The gateway's parts.
        streams: Pauses partitions and cleans up the unfinished work of dead gateways.
        reads: Subscriptions open at this gateway.

    Attributes:
        bindings: State of the acks of the partitions led here.
        compaction: Limits and counts of the compactions.
    """

    def __init__(self, core: Core, streams: StreamService, reads: OpenReads) -> None:
        self._core = core
        self._streams = streams
        self._reads = reads
        self.compaction = CompactionBudget()
        self.bindings = Bindings()
        # Partitions led here, by stream, then by partition.
        self._led: dict[str, dict[int, LedPartition]] = {}
        # Partitions whose leader work is being started, and the tasks that do so.
        self._beginning: set[tuple[str, int]] = set()
        self._batches: set[asyncio.Task[None]] = set()
        # Partitions no longer led here whose work is not stopped yet.
        self._ending: set[LedPartition] = set()
        self._wanted = asyncio.Event()
        # Names of the streams to reconcile; None for all.
        self._changed: set[str] | None = None
        # Set if the next full pass must compare JetStream's subjects with the stream records.
        self._check = True
        # Number of partitions that the log has said to be led here.
        self._told = 0
        self._tasks: list[asyncio.Task[None]] = []
        # Set after each full pass.
        self._passed = asyncio.Event()
        self._is_broken = False
        self._watch = watch_of(core.nc)

    async def start(self) -> None:
        """Start the background tasks: one reconciles the partitions led here, the other cleans up."""
        self._wanted.set()
        self._watch.add(self)
        for work, name in ((self._run(), "lead partitions"), (self._clean_up(), "clean up")):
            self._tasks.append(asyncio.create_task(work, name=name))
            self._tasks[-1].add_done_callback(self._ended)

    async def close(self) -> None:
        """Stop leading all partitions."""
        self._watch.remove(self)
        await cancel({*self._tasks, *self._batches})
        led, self._led = self._led, {}
        parts = {one for parts in led.values() for one in parts.values()}
        # The task may have been cancelled while it stopped some.
        await asyncio.gather(*(one.close() for one in parts | self._ending))
        self._ending.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (defect := task.exception()) is not None:
            self._is_broken = True
            _log.error("the leader work of this gateway ended with a defect", exc_info=defect)

    def fault(self) -> str:
        """Return why the gateway is not ready; ``""`` if its leader work does not prevent it."""
        return "the leader work has ended with a defect" if self._is_broken else self.bindings.fault()

    def readers(self) -> list[tuple[str, str, PartitionAckReader]]:
        """Return the ack readers of the partitions led here, with their streams, here and in JetStream."""
        return [(name, led.stream, led.acks) for name, parts in self._led.items() for led in parts.values()]

    async def catch_up(self) -> None:
        """Wait until every message now stored in the partitions led here has its ack.

        Raises:
            LiftEnvelopeError: JetStream does not report how many messages are stored.
        """
        led = [one for parts in self._led.values() for one in parts.values()]
        await _each(LedPartition.catch_up, led)

    def stream_changed(self, before: StreamRecord | None, after: StreamRecord | None) -> None:
        """Reconcile a stream whose record changed."""
        known = before if after is None else after
        if known is not None:
            self.look(known.name)

    def look(self, stream: str | None = None, *, gateways: bool = False) -> None:
        """Request a reconciliation in the background.

        Args:
            stream: Name of the stream to reconcile; None for all streams.
            gateways: Whether the set of gateways changed. A gateway that is gone may have died in the middle
                of a change, so the subjects in JetStream are checked as well.
        """
        self._check = self._check or gateways
        if stream is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.add(stream)
        self._wanted.set()

    # Callbacks of the connection's watch

    def lost(self) -> None:
        """Note that all partitions lose their ack consumers with the connection."""
        self.bindings.disturb()

    def restored(self) -> None:
        """Wait until all partitions have ack consumers again."""
        self.bindings.disturb()
        # By then the watch has told the readers, which then have no consumers.
        asyncio.get_running_loop().call_soon(self.bindings.restored)

    def gone(self, reason: str) -> None:  # noqa: ARG002 - the readers report it
        """Note that all partitions lose their ack consumers with the connection."""
        self.bindings.disturb()

    # Reconciliation

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due, passes = loop.time() + _SELDOM, 0
        while True:
            try:
                async with asyncio.timeout_at(due):
                    await self._wanted.wait()
            except TimeoutError:
                self._changed = None  # something may have failed without a notification
                due, passes = loop.time() + _SELDOM, passes + 1
                self._check = self._check or not passes % _CHECK_EVERY
            self._wanted.clear()
            # With a valid lease this gateway has also read the beats that others wrote before its own.
            if not await self._core.brokers.lease():
                return
            names, self._changed = self._changed, set()
            try:
                await self._settle(names)
            except LiftEnvelopeError as exc:
                _log.warning("could not start or stop the work for all partitions, retrying: %s", exc)
                self._look_again()

    def _look_at(self, names: Iterable[str]) -> None:
        for name in names:
            self.look(name)

    def _look_again(self) -> None:
        asyncio.get_running_loop().call_later(_RETRY, self.look)

    async def _settle(self, names: set[str] | None) -> None:
        """Start and stop leader work so that it matches the records of ``names``, or of all streams."""
        registry = self._core.registry
        known = registry if names is None else [registry.known(name) for name in names]
        wanted = self._to_lead(record for record in known if record is not None)
        looked_at = set(self._led) if names is None else names
        old = {name: self._unwanted(name, wanted) for name in looked_at}
        await asyncio.gather(*(self._end(name, numbers) for name, numbers in old.items() if numbers))
        self.bindings.drop_unwanted(names, wanted)
        new = [key for key in wanted if key[1] not in self._led.get(key[0], {})]
        new = [key for key in new if key not in self._beginning]
        for key in new:
            self.bindings.expect(key)
        self._beginning.update(new)
        batch = asyncio.create_task(self._begin_all(new, is_full=names is None), name="begin to lead")
        self._batches.add(batch)
        batch.add_done_callback(self._batches.discard)
        if (await asyncio.wait([batch], timeout=_SLOW))[0]:
            batch.result()
            return
        batch.add_done_callback(self._ended)
        # The streams may have changed meanwhile, without another start for their partitions.
        batch.add_done_callback(lambda _: self._look_at({name for name, _ in new}))

    async def _begin_all(self, new: list[tuple[str, int]], *, is_full: bool) -> None:
        begun: list[LedPartition] = []

        async def begin(key: tuple[str, int]) -> None:
            led = await self._begin(key)
            if led is not None:
                begun.append(led)

        await _each(begin, new)
        self._tell(by_clients=not is_full)
        if is_full:
            self.bindings.passed()
        # Deletions take JetStream as long as creations, and no ack waits for them.
        await _each(LedPartition.take_over, begun)
        if is_full:
            self._passed.set()

    def _tell(self, *, by_clients: bool) -> None:
        """Log the number of partitions led here, if it has changed.

        Args:
            by_clients: True if clients have changed streams. That is logged for debugging alone: they may do
                so all the time.
        """
        now = sum(map(len, self._led.values()))
        before, self._told = self._told, now
        if now != before:
            level = logging.DEBUG if by_clients else logging.INFO
            _log.log(level, "leads %d partitions, %d before", now, before, extra={"partitions": now})

    def _to_lead(self, records: Iterable[StreamRecord]) -> dict[tuple[str, int], str]:
        return {
            (record.name, number): record.id
            for record in records
            if record.name not in RESERVED
            for number in range(len(record.partitions))
            if self._core.brokers.is_leader(record.name, number)
        }

    def _unwanted(self, name: str, wanted: dict[tuple[str, int], str]) -> list[int]:
        """Return the partitions of a stream that are led here and not in ``wanted``."""
        led = self._led.get(name, {})
        return [number for number, one in led.items() if wanted.get((name, number)) != one.record_id]

    async def _end(self, name: str, numbers: list[int]) -> None:
        """Stop leader work for some partitions of a stream."""
        led = self._led[name]
        ending = {led.pop(number) for number in numbers}
        self._ending |= ending
        if not led:
            del self._led[name]
        await asyncio.gather(*(one.close() for one in ending))
        self._ending -= ending
        for number in numbers:
            self.bindings.drop((name, number))

    async def _begin(self, key: tuple[str, int]) -> LedPartition | None:
        """Start the leader work for a partition; return None if that is not possible now."""
        record = self._core.registry.known(key[0])
        try:
            return await self._try_to_begin(key, record)
        finally:
            self._beginning.discard(key)
            # A pass has left out this partition if the stream was recreated meanwhile.
            if _id_of(self._core.registry.known(key[0])) != _id_of(record):
                self.look(key[0])

    async def _try_to_begin(self, key: tuple[str, int], record: StreamRecord | None) -> LedPartition | None:
        if record is None:
            self.bindings.drop(key)
            return None
        led = LedPartition(
            self._core, self._streams, self._reads, record, key[1], self.compaction, self.bindings
        )
        try:
            await led.start()
        except StreamNotFoundError:
            # Deleted: the registry is about to report that, unless the storage alone was removed.
            self.bindings.note(key, False)
            return None
        except LiftEnvelopeError as exc:
            text = "%s, partition %d: could not start sending acks, retrying: %s"
            _log.warning(text, *key, exc, extra={"stream": key[0], "partition": key[1]})
            self.bindings.note(key, False)
            self._look_again()
            return None
        self._led.setdefault(key[0], {})[key[1]] = led
        return led

    async def _clean_up(self) -> None:
        while True:
            await self._passed.wait()
            self._passed.clear()
            if not await self._core.brokers.lease():
                return
            await self._finish_work()
            if self._check:
                self._check = False
                await self._remove_orphans()
                wanted = self._to_lead(self._core.registry)
                await self._check_subjects({name for name, partition in wanted if partition == 0})

    @property
    def _cleans_up(self) -> bool:
        """True if this gateway cleans up after dead ones. Only one living gateway does."""
        return leader_of("", 0, self._core.brokers.alive) == self._core.options.id

    async def _remove_orphans(self) -> None:
        if not self._cleans_up:
            return
        try:
            await remove_all_orphans(self._core)
        except LiftEnvelopeError as exc:
            _log.warning("could not look for partitions of removed streams, retrying: %s", exc)
            self._check = True
            self._look_again()

    async def _finish_work(self) -> None:
        """Clean up unfinished creations, deletions and probes, and publish the events left over."""
        alive, of_the_dead = self._core.brokers.alive, self._cleans_up
        try:
            await self._streams.unfinished.finish_work(alive, of_the_dead=of_the_dead)
            await self._streams.tell_left_over(alive, of_the_dead=of_the_dead)
            if of_the_dead:
                await remove_old_probes(self._core.js)
        except LiftEnvelopeError as exc:
            _log.warning("could not clean up an unfinished stream, event or probe, retrying: %s", exc)
            self._look_again()

    async def _check_subjects(self, names: Iterable[str]) -> None:
        """Repair the subjects of streams: a gateway may have died between two steps of a change.

        The widest subjects come first: of two that overlap, JetStream refuses the wider one beside the other.
        """
        for name in sorted(await self._to_check(set(names)), key=self._width):
            try:
                await self._streams.repairs.repair(name)
            except StreamNotFoundError:
                continue  # deleted meanwhile
            except LiftEnvelopeError as exc:
                _log.warning("could not check the subjects of stream %s, retrying: %s", name, exc)
                self._check = True
                self._look_again()

    def _width(self, name: str) -> tuple[int, ...]:
        record = self._core.registry.known(name)
        return width_order("" if record is None else record.subject)

    async def _to_check(self, names: set[str]) -> set[str]:
        """Return the streams whose subjects must be checked one by one.

        Many streams are compared with the list of all streams first, 256 of them per request.
        """
        if len(names) <= _ONE_BY_ONE:
            return names
        try:
            recordings = await self._core.storage.recordings()
        except LiftEnvelopeError:
            return names  # each check reports what JetStream does not answer
        records = [self._core.registry.known(name) for name in names]
        return {one.name for one in records if one is not None and not is_as_recorded(one, recordings)}


async def _each(work: Callable[[_T], Awaitable[None]], items: Iterable[_T]) -> None:
    """Do some work for each item, for 16 at a time.

    A task for each of thousands, made in one turn of the event loop, would hold up the heartbeats.
    """
    left = iter(items)

    async def some() -> None:
        for item in left:
            await work(item)

    await asyncio.gather(*(some() for _ in range(_AT_ONCE)))


def _id_of(record: StreamRecord | None) -> str | None:
    return None if record is None else record.id
