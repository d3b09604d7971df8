"""Local copy of a bucket: reads all entries, then follows changes until the gateway stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import InternalError, LiftEnvelopeError

if TYPE_CHECKING:
    from liftenvelope.jetstream.bucket import Bucket, BucketEntry
    from liftenvelope.jetstream.consuming import Messages
    from liftenvelope.jetstream.message import Message

__all__ = ["Mirror"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Seconds to wait for each of the values that a bucket holds at the start.
_LATEST: Final = 2.0
#: Seconds to wait before a bucket is read again from the beginning.
_PAUSE: Final = 1.0


class Mirror:
    """Reads all entries of a bucket and follows its changes.

    If the changes stop coming, the mirror logs a warning and reads the bucket again from the beginning.

    Args:
        bucket: The bucket.
        on_entry: Called with each entry in the order of revisions, including entries that this process wrote.
            After an InternalError, the mirror logs a warning and skips the entry.
        heartbeat: Heartbeat interval of the consumer, in seconds. Default 2.
    """

    def __init__(
        self, bucket: Bucket, on_entry: Callable[[BucketEntry], None], *, heartbeat: float = 2.0
    ) -> None:
        self._bucket = bucket
        self._on_entry = on_entry
        self._heartbeat = heartbeat
        self._messages: Messages | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read all entries of the bucket, then follow its changes in the background."""
        await self._open()
        self._task = asyncio.create_task(self._follow(), name=f"follow {self._bucket.name}")

    async def close(self) -> None:
        """Stop following the bucket."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._messages is not None:
            self._messages.stop()

    async def _open(self) -> None:
        stream = await self._bucket.handle()
        waiting = (await stream.info()).state.messages
        # The stream keeps only the last value of each key.
        self._messages = stream.ordered_consumer().messages(expires=10.0, idle_heartbeat=self._heartbeat)
        await self._messages.__aenter__()
        while waiting:
            try:
                message = await self._messages.next(timeout=_LATEST)
            except TimeoutError:
                break  # the remaining values have expired in the meantime
            self._take(message)
            waiting = message.metadata.num_pending

    async def _follow(self) -> None:
        while True:
            try:
                assert self._messages is not None
                async for message in self._messages:
                    self._take(message)
            except LiftEnvelopeError as exc:
                _log.warning("changes of the bucket %s don't come: %s", self._bucket.name, exc)
            await asyncio.sleep(_PAUSE)
            try:
                await self._open()
            except LiftEnvelopeError as exc:
                _log.warning("the bucket %s can't be read: %s", self._bucket.name, exc)

    def _take(self, message: Message) -> None:
        try:
            self._on_entry(self._bucket.entry_of(message, message.metadata.stream_sequence))
        except InternalError as exc:
            # Not written by a gateway. The other entries are sound.
            _log.warning("in the bucket %s: %s", self._bucket.name, exc)
