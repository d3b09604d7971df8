"""Compaction by key: deletes messages that a newer one with the same key replaces, keeps those without a key.

A message is deleted only after a newer one with its key was read. So the newest message of a key survives a
restart, a lost connection, and another gateway that compacts the same partition.

A stream can go back to an older state under the same name: nats-server loses the newest messages in a crash
of the machine, or a backup is restored. Its next messages then get sequences that the index has for other
keys. So the index is used only while the last message read is still stored with the same timestamp.

The first compaction reads the partition from its beginning. The newest sequence of each key stays in memory,
and later compactions read only new messages. Two limits bound that memory: one for a partition and one for
all partitions of a gateway. A partition whose keys do not fit is read from the beginning every time, once for
each share of the keys that fits. So such a partition is compacted only after the new messages reach half the
number of messages in the partition, like Kafka's ``min.cleanable.dirty.ratio``.

Compaction runs in the gateway's event loop, next to the acks of other streams. Therefore one partition is
compacted at a time, in slices of about half a millisecond with pauses of twice that.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from liftenvelope import envelope as codec
from liftenvelope._checks import as_seconds
from liftenvelope.consumers.tasks import background, cancel
from liftenvelope.errors import (
    CallTimeoutError,
    EnvelopeError,
    JetStreamError,
    LiftEnvelopeError,
    MessageNotFoundError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.gateway._leader.compaction_plan import CompactionPlan
from liftenvelope.gateway._partitions.feed import DeliveryFeed, sequences_of, stored_at
from liftenvelope.jetstream.api import parse_ns
from liftenvelope.jetstream.counting import is_stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftenvelope.gateway._partitions.feed import PartitionDelivery
    from liftenvelope.jetstream.context import JetStream
    from liftenvelope.jetstream.infos import StreamInfo

__all__ = ["Compaction", "CompactionBudget", "Compactor"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: JetStream's error codes for deleting a message that does not exist.
_NOT_THERE: Final = (10037, 10043, 10057)
#: JetStream's error code for a stream that does not exist.
_NO_STREAM: Final = 10059
#: Messages between two pauses, and the length of a pause relative to the work before it.
_SLICE: Final = 128
_PAUSE: Final = 2.0
#: Number of messages to delete that are collected before any is deleted, and of concurrent deletions.
_COLLECTED: Final = 128
_DELETIONS_AT_ONCE: Final = 8
#: Ratio of new to stored messages at which a partition without an index is compacted again.
_DIRTY_RATIO: Final = 0.5
#: Waits of the feed without a delivery, about one second each, after which reading fails.
_QUIET: Final = 5


class CompactionBudget:
    """Limits shared by the compactors of a gateway: one compaction at a time, and memory for their indexes.

    Args:
        max_memory: Maximum bytes of all kept indexes together. Default: 64 MiB, enough for 2.4 million keys.
            The running compaction may take another 16 MiB.

    Attributes:
        turn: Lock held by the running compaction.
        runs: Number of compactions that have read messages.
        deleted: Number of messages deleted by compactions.
        failures: Number of compactions that have failed.
    """

    def __init__(self, max_memory: int = 64 << 20) -> None:
        self._max_memory = max_memory
        self._kept: dict[object, int] = {}
        self.turn = asyncio.Lock()
        self.runs = self.deleted = self.failures = 0

    def keep(self, owner: object, size: int) -> bool:
        """Reserve memory for an index and release its owner's last reservation; return False if it is full.

        Args:
            owner: The compactor.
            size: Size of the index in bytes.
        """
        self.release(owner)
        if size + sum(self._kept.values()) > self._max_memory:
            return False
        self._kept[owner] = size
        return True

    def release(self, owner: object) -> None:
        """Release an owner's reservation."""
        self._kept.pop(owner, None)


@dataclass(frozen=True, slots=True)
class Compaction:
    """Statistics of one compaction.

    Attributes:
        readings: Number of times that the partition, or its new messages, were read.
        read: Messages read, over all readings.
        deleted: Messages deleted.
    """

    readings: int = 0
    read: int = 0
    deleted: int = 0


class Compactor:
    """Compacts a partition at intervals, in the background.

    Args:
        js: JetStream.
        stream: The JetStream stream that holds the partition.
        interval: Seconds between two compactions. Default: 300, as in Liftbridge.
        max_memory: Maximum bytes of the index of the partition's keys. Default: 16 MiB, enough for 600,000
            keys. Beyond that the partition is read several times and less often: see the module's docstring.
        budget: Budget shared with the gateway's other compactors. Default: a separate one.
        is_wanted: Called before messages are deleted. Must return False once the stream may be deleted,
            because a new stream of the same name has other messages at these sequences. Default: always True.

    Raises:
        UsageError: ``interval`` is not positive.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        *,
        interval: float = 300.0,
        max_memory: int = 16 << 20,
        budget: CompactionBudget | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._js = js
        self._stream = stream
        self._interval = as_seconds("interval", interval)
        self._max_memory = max_memory
        self._budget = budget or CompactionBudget()
        self._is_wanted = is_wanted
        self._task: asyncio.Task[None] | None = None
        # Keys of all messages up to the position, and sequences of the messages to delete. The position is
        # the sequence of the last message read, which was stored at this time.
        self._plan = CompactionPlan(max_memory)
        self._position = self._stored_at = 0
        self._obsolete: list[int] = []
        # Last sequence of the newest complete compaction, and creation time of the stream at that time.
        self._compacted = 0
        self._created: object = None

    async def start(self) -> None:
        """Start the background task, which first compacts after one interval."""
        self._task = background(self._run(), name=f"compact {self._stream}", log=_log)

    async def close(self) -> None:
        """Stop and drop the index. A running compaction is cancelled, which loses nothing."""
        task, self._task = self._task, None
        if task is not None:
            await cancel([task])
        self._forget()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.compact()
            except (LiftEnvelopeError, TimeoutError) as exc:
                self._budget.failures += 1
                _log.warning("could not compact %s, retrying at the next interval: %s", self._stream, exc)

    async def compact(self) -> Compaction:
        """Compact the messages stored now.

        Nothing is read if no messages came since the last time. The same holds if the partition must be read
        from its beginning and too few messages came. Only one compactor of a budget works at a time.

        Raises:
            StreamNotFoundError: The partition is gone.
            UsageError: The JetStream stream was changed so that no message can be deleted.
            JetStreamError, CallTimeoutError, TransportError: The partition can't be read or changed now. All
                deleted messages were obsolete. The next compaction deletes the rest.
        """
        async with self._budget.turn:
            try:
                return await self._compact()
            except BaseException:
                if not (self._plan.is_whole and self._budget.keep(self, self._plan.memory)):
                    self._forget()
                raise

    async def _compact(self) -> Compaction:
        info = await self._known_stream()
        if info.config.deny_delete or info.config.sealed:  # deletions would fail as if nothing were there
            raise UsageError(f"no message can be deleted: {self._stream} has deny_delete or sealed set")
        last = info.state.last_seq
        result, again = Compaction(), self._is_due(info)
        while again:
            result = await self._read(last, replace(result, readings=result.readings + 1))
            again = self._plan.next_reading()
            self._position = 0 if again else self._position
        if result.readings:
            self._budget.runs += 1
            self._compacted = last
            if result.readings > 1 or not self._budget.keep(self, self._plan.memory):
                self._forget(compacted=last)
        return result

    def _is_due(self, info: StreamInfo) -> bool:
        state = info.state
        if state.last_seq == self._compacted:
            return False
        is_incremental = self._position > 0
        few = (state.last_seq - self._compacted) < _DIRTY_RATIO * state.messages
        return is_incremental or not self._compacted or not few

    def _forget(self, *, compacted: int = 0) -> None:
        self._plan, self._position, self._compacted = CompactionPlan(self._max_memory), 0, compacted
        self._obsolete.clear()
        self._budget.release(self)

    async def _known_stream(self) -> StreamInfo:
        """Request the stream's state; drop the index if the stream no longer has the index's messages."""
        info = await self._info()
        if info.created != self._created or self._is_shorter(info):
            self._forget()
            self._created = info.created
        elif self._is_due(info) and await self._time_at_position() != self._stored_at:
            self._forget()  # the message may also be deleted: then nothing tells that the others are the same
        return info

    async def _info(self) -> StreamInfo:
        return (await self._js.stream(self._stream)).cached_info

    def _is_shorter(self, info: StreamInfo) -> bool:
        return info.state.last_seq < max(self._position, self._compacted)

    async def _time_at_position(self) -> int | None:
        """Return the time at which the message at the position was stored, None if it is deleted."""
        if not self._position:
            return self._stored_at
        try:
            return await self._js.api.request_as(
                lambda answer: parse_ns(answer["message"]["time"]),
                f"STREAM.MSG.GET.{self._stream}",
                {"seq": self._position},
            )
        except MessageNotFoundError:
            return None

    async def _read(self, last: int, so_far: Compaction) -> Compaction:
        """Read from the position up to sequence ``last`` and delete obsolete messages."""
        loop, read, deleted, reached = asyncio.get_running_loop(), 0, 0, self._position
        feed = DeliveryFeed(self._js, self._stream, reached + 1)
        try:
            await feed.open()
            while reached < last:
                if not feed.pending:
                    # A consumer on a replica that lags has nothing pending although the leader has more.
                    if not await is_stored(self._js.api, self._stream, reached + 1, last):
                        break
                    feed.replace_consumer()
                deliveries = await _take(feed)
                for start in range(0, len(deliveries), _SLICE):
                    began = loop.time()
                    read += self._see(deliveries[start : start + _SLICE], last)
                    await asyncio.sleep(_PAUSE * (loop.time() - began))
                    if len(self._obsolete) >= _COLLECTED:
                        deleted += await self._delete()
                reached = max([reached, *sequences_of(deliveries[-1:])])
            deleted += await self._delete()
        finally:
            await feed.close()
        return replace(so_far, read=so_far.read + read, deleted=so_far.deleted + deleted)

    def _see(self, deliveries: list[PartitionDelivery], last: int) -> int:
        """Add deliveries up to sequence ``last`` to the plan; return their number."""
        count = 0
        for sequence, delivery in zip(sequences_of(deliveries), deliveries, strict=True):
            if sequence > last:
                break
            if (obsolete := self._plan.see(sequence, _key(delivery[3]))) is not None:
                self._obsolete.append(obsolete)
            self._position = sequence
            count += 1
        if count:
            self._stored_at = stored_at(deliveries[count - 1])
        return count

    async def _delete(self) -> int:
        """Delete obsolete messages. The next compaction retries those that can't be deleted now."""
        loop, deleted = asyncio.get_running_loop(), 0
        if self._obsolete:
            await self._check_stream()
        while some := self._obsolete[-_DELETIONS_AT_ONCE:]:
            began = loop.time()
            if not self._is_wanted():
                raise self._is_gone()
            count = sum(await asyncio.gather(*(self._delete_one(sequence) for sequence in some)))
            deleted += count
            self._budget.deleted += count
            del self._obsolete[-len(some) :]
            await asyncio.sleep(_PAUSE * (loop.time() - began))
        return deleted

    async def _check_stream(self) -> None:
        """Check that the sequences to delete are still those of the messages read.

        Raises:
            StreamNotFoundError: Another stream of the same name has replaced the stream.
            TransportError: The stream has gone back to an older state.
        """
        info = await self._info()
        if info.created != self._created:
            raise self._is_gone()
        # The message at the position may have been deleted meanwhile, by a client or another gateway.
        if self._is_shorter(info) or await self._time_at_position() not in (None, self._stored_at):
            self._forget()
            raise TransportError(f"{self._stream} has gone back to an older state during its compaction")

    def _is_gone(self) -> StreamNotFoundError:
        self._forget()
        return StreamNotFoundError(404, f"{self._stream} was deleted during its compaction", _NO_STREAM)

    async def _delete_one(self, sequence: int) -> bool:
        try:
            request = {"seq": sequence, "no_erase": True}
            await self._js.api.request(f"STREAM.MSG.DELETE.{self._stream}", request)
        except JetStreamError as exc:
            if exc.err_code not in _NOT_THERE:
                raise
            return False  # retention or another gateway deleted it first
        return True


async def _take(feed: DeliveryFeed) -> list[PartitionDelivery]:
    """Wait for deliveries; return an empty list if all remaining messages were purged."""
    for _ in range(_QUIET):
        deliveries = await feed.take()
        if deliveries or not feed.pending:
            return deliveries
    raise CallTimeoutError(f"none of {feed.pending} pending messages arrived within {_QUIET} s")


def _key(payload: bytes) -> bytes:
    try:
        return codec.unmarshal_message(payload).key
    except EnvelopeError:
        return b""  # a plain value
