"""Local copy of a bucket: reads all entries, then follows changes until the gateway stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from liftenvelope._logs.throttle import Throttle
from liftenvelope.consumers.tasks import background, cancel
from liftenvelope.errors import CallTimeoutError, InternalError, LiftEnvelopeError
from liftenvelope.jetstream import OrderedReset, PullEvent
from liftenvelope.jetstream.counting import is_stored
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from liftenvelope.jetstream.bucket import Bucket, BucketEntry
    from liftenvelope.jetstream.consuming import Messages
    from liftenvelope.jetstream.message import Message

__all__ = ["Mirror"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Seconds to wait for each of the values that a bucket holds at the start.
_LATEST: Final = 2.0
#: Times to wait that long for the next value.
_TRIES: Final = 5
#: Seconds to wait before a bucket is read again from the beginning.
_PAUSE: Final = 1.0


class Mirror:
    """Reads all entries of a bucket and follows its changes.

    If the changes stop coming, the mirror logs a warning and reads the bucket again from the beginning. It
    does not see the removal of a key whose marker has expired meanwhile: see ``on_gap``.

    Args:
        bucket: The bucket.
        on_entry: Called with each entry in the order of revisions, including entries that this process wrote.
            After an InternalError, the mirror logs a warning and skips the entry.
        on_gap: Called and awaited when removals may have been missed: the consumer was lost, for example with
            a connection that was down for long. It is called again after a LiftEnvelopeError. Default: none.
        heartbeat: Heartbeat interval of the consumer, in seconds. Default 2.

    Attributes:
        is_following: True while the copy is complete and changes come.
    """

    def __init__(
        self,
        bucket: Bucket,
        on_entry: Callable[[BucketEntry], None],
        *,
        on_gap: Callable[[], Awaitable[None]] | None = None,
        heartbeat: float = 2.0,
    ) -> None:
        self._bucket = bucket
        self._link = Link(bucket.js.api.nc)
        self._pulls = f"{bucket.js.api.prefix}.CONSUMER.MSG.NEXT.{bucket.stream}.>"
        self._on_entry = on_entry
        self._on_gap = on_gap
        self._gap = asyncio.Event()
        self._heartbeat = heartbeat
        # Admits each cause once a minute: a bucket that was deleted is missing until someone restores it.
        self._throttle = Throttle()
        self.is_following = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read all entries of the bucket, then follow its changes while the block runs."""
        messages = await self._open()
        self.is_following = True
        name = self._bucket.name
        tasks = [background(self._follow(messages), name=f"follow {name}", log=_log)]
        if self._on_gap is not None:
            tasks.append(background(self._compare(self._on_gap), name=f"compare {name}", log=_log))
        try:
            yield
        finally:
            self.is_following = False
            await cancel(tasks)
            messages.stop()  # a task that is cancelled before it runs does not stop them

    async def _open(self) -> Messages:
        """Read all entries; return the messages that report changes.

        Raises:
            CallTimeoutError: NATS refuses the requests for values, or JetStream does not deliver them in
                time. The copy is incomplete.
        """
        stream = await self._bucket.handle()
        first = (await stream.info()).state
        waiting = first.messages
        # The stream keeps only the last value of each key.
        messages = stream.ordered_consumer().messages(
            expires=10.0, idle_heartbeat=self._heartbeat, on_event=self._on_event
        )
        try:
            await messages.__aenter__()
            read, tries = 0, _TRIES
            while waiting:
                try:
                    message = await messages.next(timeout=_LATEST)
                except TimeoutError:
                    state = (await stream.info()).state
                    if not state.messages or state.last_seq <= read:
                        break  # the remaining values have expired in the meantime
                    tries -= 1
                    if not tries or self._is_refused():
                        raise self._undelivered() from None
                    continue
                self._take(message)
                read, waiting, tries = message.metadata.stream_sequence, message.metadata.num_pending, _TRIES
                # The consumer may be on a replica that lags, and have nothing to deliver yet.
                if not waiting and await is_stored(
                    self._bucket.js.api, stream.name, read + 1, first.last_seq
                ):
                    waiting = 1
        except BaseException:
            messages.stop()
            raise
        return messages

    def _is_refused(self) -> bool:
        """Return True if NATS has refused to publish the requests for values."""
        return f'publish to "{self._pulls[:-1]}'.lower() in self._link.refusal(self._pulls).lower()

    def _undelivered(self) -> CallTimeoutError:
        text = f"the bucket {self._bucket.name} holds values, but JetStream did not deliver them in time"
        return CallTimeoutError(f"{text}{self._link.refusal(self._pulls)}")

    async def _follow(self, messages: Messages) -> None:
        while True:
            try:
                async for message in messages:
                    self._take(message)
            except LiftEnvelopeError as exc:
                _log.warning("changes of the bucket %s don't come: %s", self._bucket.name, exc)
            finally:
                self.is_following = False
                messages.stop()
            messages = await self._open_again()
            self.is_following = True
            self._gap.set()

    async def _open_again(self) -> Messages:
        while True:
            await asyncio.sleep(_PAUSE)
            try:
                return await self._open()
            except LiftEnvelopeError as exc:
                if self._throttle.admits(str(exc), asyncio.get_running_loop().time()):
                    _log.warning("the bucket %s can't be read: %s", self._bucket.name, exc)

    def _on_event(self, event: PullEvent) -> None:
        if isinstance(event, OrderedReset):
            self._gap.set()

    async def _compare(self, on_gap: Callable[[], Awaitable[None]]) -> None:
        """Call a function after each gap, until it succeeds."""
        while True:
            await self._gap.wait()
            self._gap.clear()
            try:
                await on_gap()
            except LiftEnvelopeError as exc:
                _log.debug("removals in the bucket %s are not known yet: %s", self._bucket.name, exc)
                self._gap.set()
                await asyncio.sleep(_PAUSE)

    def _take(self, message: Message) -> None:
        try:
            self._on_entry(self._bucket.entry_of(message, message.metadata.stream_sequence))
        except InternalError as exc:
            # Not written by a gateway. The other entries are sound.
            _log.warning("in the bucket %s: %s", self._bucket.name, exc)
