"""Compaction by key: of the messages with a key only the newest stays, those without one all stay.

A partition is read from its beginning, and a message is deleted once a newer one with its key has been seen:
so the newest of a key is never deleted, whatever happens in between. What has been seen is remembered up to
a limit. Beyond that only half of the keys are remembered, chosen by a hash, and the others are left to
another reading; and so on, so that any number of keys takes any number of readings and the same memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from liftenvelope import envelope as codec
from liftenvelope.errors import EnvelopeError, JetStreamError, LiftEnvelopeError, MessageNotFoundError
from liftenvelope.nats._outcomes import positive

if TYPE_CHECKING:
    from liftenvelope.jetstream.consuming import Messages
    from liftenvelope.jetstream.context import JetStream
    from liftenvelope.jetstream.stream import Stream

__all__ = ["Compaction", "CompactionPlan", "Compactor"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: What a remembered key takes beside its own bytes, roughly.
_PER_KEY: Final = 200
#: JetStream's number for a message to delete that is not there.
_NOT_THERE: Final = (10057, 10043)
#: How many messages are read between two pauses, and how long a pause is, in parts of the time they took.
_CHUNK: Final = 500
_PAUSE: Final = 2.0
_DELETIONS_AT_ONCE: Final = 64
#: How many bytes may be on their way.
_READ_AHEAD: Final = 4 << 20
#: How long a message that must be there may take to come, in seconds.
_PATIENCE: Final = 30.0


class CompactionPlan:
    """Says what to delete, of messages that it is shown in their order.

    Args:
        max_memory: How many bytes may be remembered, roughly.
        salt: Makes the hash of keys one that nobody can choose keys for. Default: a new one.

    Example:
        >>> plan = CompactionPlan()
        >>> [plan.see(sequence, key) for sequence, key in enumerate([b"a", b"b", b"a", b"", b""], 1)]
        [None, None, 1, None, None]
        >>> plan.next_reading()
        False
    """

    def __init__(self, max_memory: int = 16 << 20, *, salt: bytes | None = None) -> None:
        self._max_memory = max_memory
        self._salt = secrets.token_bytes(16) if salt is None else salt
        # Of the hashes of keys, those with this remainder by this number are looked at in this reading.
        self._share = (1, 0)
        self._left: list[tuple[int, int]] = []
        self._newest: dict[bytes, int] = {}
        self._memory = 0

    @property
    def memory(self) -> int:
        """How many bytes are remembered, roughly."""
        return self._memory

    def see(self, sequence: int, key: bytes) -> int | None:
        """Take a message of this reading; return the sequence of the one that it replaces, if it does.

        Args:
            sequence: Its sequence, larger than all before in this reading.
            key: Its key; empty for none.
        """
        if not key or not self._is_mine(key):
            return None
        older = self._newest.get(key)
        self._newest[key] = sequence
        if older is None:
            self._memory += len(key) + _PER_KEY
            while self._memory > self._max_memory and len(self._newest) > 1:
                self._split()
        return older

    def next_reading(self) -> bool:
        """Forget all; say whether the messages must be shown again, from the first on."""
        self._newest.clear()
        self._memory = 0
        if not self._left:
            return False
        self._share = self._left.pop()
        return True

    def _is_mine(self, key: bytes) -> bool:
        divisor, remainder = self._share
        return divisor == 1 or self._hash(key) % divisor == remainder

    def _hash(self, key: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(key, digest_size=8, salt=self._salt).digest(), "big")

    def _split(self) -> None:
        divisor, remainder = self._share
        self._share = (2 * divisor, remainder)
        self._left.append((2 * divisor, remainder + divisor))
        self._newest = {key: sequence for key, sequence in self._newest.items() if self._is_mine(key)}
        self._memory = sum(len(key) + _PER_KEY for key in self._newest)


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did.

    Attributes:
        readings: How many times the partition was read.
        read: How many messages that were.
        deleted: How many of them are gone now.
    """

    readings: int = 0
    read: int = 0
    deleted: int = 0


class Compactor:
    """Compacts a partition now and then, in the background.

    Args:
        js: JetStream.
        stream: The JetStream stream that holds the partition.
        interval: How long to wait before each compaction, in seconds. Default: 300, as in Liftbridge.
        max_memory: How many bytes of keys may be remembered, roughly. Default: 16 MiB.

    Raises:
        UsageError: The interval is none.
    """

    def __init__(
        self, js: JetStream, stream: str, *, interval: float = 300.0, max_memory: int = 16 << 20
    ) -> None:
        self._js = js
        self._stream = stream
        self._interval = positive("interval", interval)
        self._max_memory = max_memory
        self._done_up_to = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to wait for the first compaction."""
        self._task = asyncio.create_task(self._run(), name=f"compact {self._stream}")

    async def close(self) -> None:
        """Stop, also in the middle of a compaction: what is deleted is deleted, and nothing is lost."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.compact()
            except (LiftEnvelopeError, TimeoutError) as exc:
                _log.warning("%s is not compacted, until the next time: %s", self._stream, exc)

    async def compact(self) -> Compaction:
        """Compact what there is now; nothing if nothing has come since the last time.

        Raises:
            StreamNotFoundError: The partition is gone.
            JetStreamError, CallTimeoutError, TransportError, TimeoutError: It can't be read or changed now.
                What was done is right, and the rest is done the next time.
        """
        stream = await self._js.stream(self._stream)
        last = stream.cached_info.state.last_seq
        result = Compaction()
        if last == self._done_up_to:
            return result
        plan = CompactionPlan(self._max_memory)
        again = True
        while again:
            result = await self._read(stream, plan, last, replace(result, readings=result.readings + 1))
            again = plan.next_reading()
        self._done_up_to = last
        return result

    async def _read(self, stream: Stream, plan: CompactionPlan, last: int, so_far: Compaction) -> Compaction:
        if not (await stream.info()).state.messages:
            return so_far
        loop, obsolete, read, deleted = asyncio.get_running_loop(), list[int](), 0, 0
        consumer = stream.ordered_consumer()
        async with consumer.messages(max_bytes=_READ_AHEAD) as messages:
            began, more = loop.time(), True
            while more:
                count, more = await _read_chunk(messages, plan, last, obsolete)
                deleted += await self._delete(stream, obsolete)
                obsolete.clear()
                read += count
                await asyncio.sleep(_PAUSE * (loop.time() - began))
                began = loop.time()
        return replace(so_far, read=so_far.read + read, deleted=so_far.deleted + deleted)

    async def _delete(self, stream: Stream, sequences: list[int]) -> int:
        deleted = 0
        for start in range(0, len(sequences), _DELETIONS_AT_ONCE):
            chunk = sequences[start : start + _DELETIONS_AT_ONCE]
            deleted += sum(await asyncio.gather(*(_delete_one(stream, sequence) for sequence in chunk)))
        return deleted


async def _read_chunk(
    messages: Messages, plan: CompactionPlan, last: int, obsolete: list[int]
) -> tuple[int, bool]:
    """Read some messages; return how many, and whether there are more."""
    for count in range(1, _CHUNK + 1):
        message = await messages.next(timeout=_PATIENCE)
        place = message.metadata
        if place.stream_sequence > last:
            return count, False
        if (older := plan.see(place.stream_sequence, _key(message.data))) is not None:
            obsolete.append(older)
        if place.stream_sequence == last or not place.num_pending:
            return count, False
    return _CHUNK, True


def _key(payload: bytes) -> bytes:
    try:
        return codec.unmarshal_message(payload).key
    except EnvelopeError:
        return b""  # a plain value


async def _delete_one(stream: Stream, sequence: int) -> bool:
    try:
        await stream.delete_message(sequence)
    except MessageNotFoundError:
        return False
    except JetStreamError as exc:
        if exc.err_code not in _NOT_THERE:
            raise
        return False  # retention, or another gateway, was quicker
    return True
