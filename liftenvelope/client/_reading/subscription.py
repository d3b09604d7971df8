"""Subscription: a read of one partition that survives lost connections.

:class:`~liftenvelope.client.partition_read.PartitionRead` holds the state of the read; this module makes its
calls. At most one call is open. When it ends, a task makes the next call or fails:

- ``FINISHED``: the read is over.
- ``GO_ON``: make another call at once, but only once without a message in between; then as ``LOST``.
- ``LOST``, ``CLOSED``: try again with growing pauses for ``resubscribe_wait`` seconds. Before messages are
  handed on again, the partition is checked for lost messages.
- an error: raise it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from liftenvelope._deadlines import Deadline
from liftenvelope.client._events import SubscriptionLost, SubscriptionResumed
from liftenvelope.client._reading.async_start_lookup import AsyncStartLookup
from liftenvelope.client._reading.message_reader import MessageReader
from liftenvelope.client._reading.read_start import ReadStart
from liftenvelope.client._reading.subscribe_call import HANDSHAKE_TIMEOUT, open_call
from liftenvelope.client.failures import call_error, partition_paused
from liftenvelope.client.partition_read import PartitionRead, Verdict
from liftenvelope.client.positions import At, StartAt
from liftenvelope.client.retries import Fate, fate_of
from liftenvelope.errors import (
    CallTimeoutError,
    LiftEnvelopeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PartitionPausedError,
    StreamDeletedError,
    SubscriptionLostError,
    TransportError,
    UsageError,
)
from liftenvelope.rpc.status import RpcError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from liftenvelope.client._cursors import Cursors
    from liftenvelope.client._reading.ahead import SecondLook
    from liftenvelope.client._streams import Streams
    from liftenvelope.client.core import ClientContext
    from liftenvelope.rpc.aio import Call

__all__ = ["Subscription"]

# Seconds to check the partition for lost messages after a resubscription; less if the partition was closed.
_CHECK_TIMEOUT: Final = 3.0
_CLOSED_CHECK_TIMEOUT: Final = 0.5
# Seconds that a read with an end waits for the first message of a call before it checks if any is left.
_SILENCE: Final = 0.5
#: Seconds after which a resubscription counts as a success even without a message.
_STOOD: Final = 5.0
# Attempts at a refusal that may pass: a new leader may not know its partition yet.
_LATE_ATTEMPTS: Final = 10


class Subscription(MessageReader):
    """Messages of one partition. Made by :meth:`Client.subscribe`; open it with ``async with``.

    Iterate over single messages, or take lists with :meth:`batches`, or Arrow with :meth:`arrow_batches`.
    Each continues where the others stopped. Messages come in the order of their offsets, each once. If the
    connection is lost, the subscription tries to regain it for up to ``resubscribe_wait`` seconds. For one
    task at a time.

    Iteration ends when the stop is reached, or after :meth:`close`. Iteration raises the errors below.

    Raises:
        StreamDeletedError: The stream was deleted.
        PartitionPausedError: The partition was paused.
        ReadonlyPartitionError: The partition is read-only, and all its messages were read before the stop was
            reached.
        SubscriptionLostError: The connection was lost and not regained in time.
        OffsetOutOfRangeError: The partition has lost messages that were read already.
        UnsupportedByServerError: The server can't read backwards.
    """

    def __init__(
        self,
        context: ClientContext,
        streams: Streams,
        cursors: Cursors,
        read: PartitionRead,
        second_look: SecondLook,
        *,
        resume: bool,
    ) -> None:
        super().__init__()
        self._context = context
        self._cluster = context.cluster
        self._options = context.options
        self._streams = streams
        self._read = read
        self._start = partial(ReadStart, context, streams, cursors, second_look=second_look)
        self._resume = resume
        self._call: Call | None = None
        self._came: list[bytes] = []
        self._lost: RpcError | TransportError = TransportError("the subscription has no call")
        # Makes the next call after one has ended, or waits for the first messages of a call. A separate task,
        # because a read that times out must not cancel this work, and the next read continues to wait for it.
        self._work: asyncio.Task[None] | None = None
        # Losses without a message in between: their common deadline, attempts, time of the last success.
        self._regaining: Deadline | None = None
        self._attempts = 0
        self._stands_since = 0.0
        # Set if a GO_ON verdict came since the last message.
        self._went_on = False
        self._opened = False
        # Set once open() has made the first call.
        self._begun = False
        # Set until the first messages of a call with an end: if none are left, the server is silent.
        self._may_be_empty = False
        # Offset of the first message that close() dropped.
        self._dropped: int | None = None

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._read.stream

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self._read.partition

    @property
    def position(self) -> int | None:
        """Offset of the next message, or a later one; None while it is unknown.

        With ``reverse``: of the next message, or an earlier one; None also once no message is left.
        A subscription that starts at this offset continues where this one is, also after the end of the
        ``with`` block.
        """
        for message in self._kept():
            return message.offset
        return self._read.position if self._dropped is None else self._dropped

    @property
    def positions(self) -> dict[tuple[str, int], int | None]:
        """:attr:`position` by stream and partition."""
        return {(self.stream, self.partition): self.position}

    async def open(self) -> Self:
        """Subscribe; ``async with`` does it.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            PartitionPausedError: The partition is paused, and ``resume`` is false.
            ReadonlyPartitionError: The partition is read-only, and no message is left to read.
            FencedError: Another member of the consumer group has the partition.
            NotLeaderError: The partition had no leader in all that time.
            CallTimeoutError: The server did not answer in time.
            TransportError: No broker could be reached.
        """
        if self._opened:
            raise UsageError(f"{self._read.name}: the subscription was opened before, make a new one")
        self._opened = True
        self._context.open_resources.add(self)
        try:
            deadline = self._context.deadline(None)
            await self._begin(deadline)
            self._begun = True
            if self.closed:
                raise TransportError(f"{self._read.name}: the subscription was closed while it was opened")
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """End the subscription and drop messages that were not handed out. Closing twice is fine."""
        self._context.open_resources.discard(self)
        self._drop_call()
        self._dropped = next((message.offset for message in self._kept()), self._dropped)
        await super().close()
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            try:
                await asyncio.wait([work])
                if not work.cancelled():
                    work.exception()  # retrieved, because no reader is left to raise it to
            finally:
                self._drop_call()

    async def _begin(self, deadline: Deadline) -> None:
        """Begin the read and make its first call.

        The first metadata may come from a broker that is behind and still knows an earlier stream of the
        name. The read then begins again. A group member's does not: its start belongs to the earlier stream.
        """
        fresh, attempt = copy(self._read), 0
        while True:
            try:
                await self._start(read=self._read).begin(deadline, self._probe)
                if not self._read.finished:
                    await self._subscribe(deadline)
            except StreamDeletedError:
                if deadline.is_over or self.closed or fresh.group is not None or not self._read.is_replaced:
                    raise
            else:
                return
            self._read, attempt = copy(fresh), attempt + 1
            await asyncio.sleep(deadline.pause_before(attempt))

    async def _probe(self, deadline: Deadline) -> None:
        """Make a call, which wakes the partition or shows that it is paused."""
        await self._subscribe(deadline, PartitionRead(self.stream, self.partition, StartAt(At.NEW), None))
        self._drop_call()

    # Calls

    async def _subscribe(self, deadline: Deadline, read: PartitionRead | None = None) -> None:
        """Make a call and wait for its handshake.

        If the broker is lost after the read has begun, the read continues as after any loss.
        """
        try:
            await self._make_call(deadline, read or self._read)
        except (CallTimeoutError, NotLeaderError, TransportError, RpcError) as exc:
            is_refusal = isinstance(exc, RpcError) and fate_of(exc) is Fate.REFUSED
            if not self._begun or is_refusal:
                raise
            await self._resubscribe(exc, closed=False)

    async def _make_call(self, deadline: Deadline, read: PartitionRead) -> None:
        """Make a call and wait for its handshake; retry it where another broker or a pause may help.

        Once the read has begun, a lost broker is not waited for here.

        Raises:
            CallTimeoutError, NotLeaderError, TransportError, RpcError: The broker is lost.
            LiftEnvelopeError: The server refused the call.
        """
        attempt, before = 0, None
        while True:
            had_time = deadline.left >= HANDSHAKE_TIMEOUT
            try:
                await self._attempt(read, deadline, resume=self._resume, refresh=attempt > 0)
            except (RpcError, TransportError) as exc:
                verdict, fate = read.ended(exc), fate_of(exc)
                if verdict is Verdict.FINISHED:
                    self._read.finished = read is self._read
                    return
                if verdict is Verdict.LOST:
                    again = not self._begun and fate is not Fate.REFUSED
                else:
                    again = attempt < _LATE_ATTEMPTS and await self._may_pass(verdict, deadline)
                failure = call_error("Subscribe", exc, read.name) if isinstance(verdict, Verdict) else verdict
                last = (failure, exc)
                if fate is not Fate.TIMED_OUT or had_time:
                    before = last
                else:
                    last = before or last  # says more
                if again := again and not (self.closed or deadline.is_over):
                    attempt += 1
                    await asyncio.sleep(deadline.pause_before(attempt))
                if not again or deadline.is_over:
                    raise last[0] from last[1]
            else:
                return

    async def _may_pass(self, verdict: Verdict | LiftEnvelopeError, deadline: Deadline) -> bool:
        """Return True if another call may succeed: the leader is new, or has removed messages."""
        if verdict is Verdict.GO_ON:
            return True
        if isinstance(verdict, PartitionPausedError):
            # Not only a pause closes segments: retention does, some time before it unlists them.
            stream = await self._cluster.stream(self.stream, deadline, refresh=True)
            known = stream.partitions.get(self.partition)
            return known is not None and not known.paused
        return isinstance(verdict, NoSuchPartitionError | NoSuchStreamError)

    async def _attempt(self, read: PartitionRead, deadline: Deadline, *, resume: bool, refresh: bool) -> str:
        """Make one call and wait for its handshake; return the address of the broker."""
        call, came, address = await open_call(self._cluster, read, deadline, resume=resume, refresh=refresh)
        self._call, self._came = call, came
        self._may_be_empty = read.highest_offset is not None and not came
        return address

    def _drop_call(self) -> None:
        call, self._call, self._came = self._call, None, []
        if call is not None:
            call.cancel()

    # Messages

    async def _next_payloads(self) -> list[bytes] | None:
        """Wait for one or more messages and return them encoded; None when the read is over."""
        if not self._opened:
            raise UsageError(f"{self._read.name}: open the subscription first, in a 'with' block")
        self._cluster.check_loop()
        while self._goes_on():
            came = await self._receive()
            wanted = self._read.accept(came) if came else []
            if wanted:
                # Dropped messages are no progress: a server may send the same ones over and over.
                self._regaining, self._went_on = None, False
                if self._read.finished:
                    self._drop_call()
                return wanted
            if self._read.needs_call:
                self._drop_call()
                await self._do(self._subscribe(self._context.deadline(None)))
            elif came:
                self._may_be_empty = self._read.highest_offset is not None
        self._drop_call()
        return None

    def _goes_on(self) -> bool:
        return not self._read.finished and not self.closed

    async def _receive(self) -> list[bytes]:
        """Wait for received messages; an empty list if the call ended, or another one was made."""
        if self._work is not None:
            await self._done(self._work)
            return []
        if self._came:
            came, self._came = self._came, []
            return came
        error: RpcError | TransportError | None = None
        try:
            if self._call is None:
                raise self._lost
            if self._may_be_empty:
                await self._do(self._receive_first(self._call))
                return []
            self._call.pause = self._pause
            if (received := await self._call.receive()) is not None:
                return received
        except (RpcError, TransportError) as exc:
            error = exc
        if self._goes_on():
            await self._do(self._after_end(error))
        return []

    async def _receive_first(self, call: Call) -> None:
        """Wait for the first messages of a call with an end. After each silence, check if any are left."""
        try:
            while self._may_be_empty and not self._read.finished:
                try:
                    async with asyncio.timeout(_SILENCE):
                        self._came = await call.receive() or []
                    self._may_be_empty = False
                except TimeoutError:
                    # A busy server that does not answer may still send messages, so the next silence asks
                    # again. If the server stands still, the pings of the connection end the call.
                    with suppress(CallTimeoutError, TransportError):
                        self._read.fell_silent(is_empty=await self._is_empty())
                        self._may_be_empty = False
        except (RpcError, TransportError) as exc:
            await self._after_end(exc)

    async def _is_empty(self) -> bool:
        deadline, last = self._context.deadline(None), self._read.highest_offset
        info = await self._streams.fetch_partition_metadata(self.stream, self.partition)
        if last is None or info.newest_offset < last:
            return False  # the message at the stop is not published yet
        lookup = AsyncStartLookup(self._cluster, self.stream, self.partition, deadline)
        return await lookup.is_empty(last, info.newest_offset)

    async def _do(self, work: Coroutine[None, None, None]) -> None:
        self._work = asyncio.create_task(work)
        await self._done(self._work)

    async def _done(self, work: asyncio.Task[None]) -> None:
        """Wait for the end of a work, and raise its error if it has failed."""
        if not work.done():  # asyncio.wait() always waits, which a read without a wait would never get past
            await asyncio.wait([work])
        if self._work is work:  # false if the subscription was closed meanwhile
            self._work = None
            work.result()

    async def _after_end(self, error: RpcError | TransportError | None) -> None:
        self._drop_call()
        self._lost = error or TransportError("the server ended the subscription and gave no reason")
        verdict = self._read.ended(error)
        if verdict is Verdict.FINISHED:
            self._read.finished = True
        elif verdict is Verdict.GO_ON and not self._went_on:
            self._went_on = True
            await self._subscribe(self._context.deadline(None))
        elif isinstance(verdict, LiftEnvelopeError):
            raise verdict from error
        else:
            await self._resubscribe(self._lost, closed=verdict is Verdict.CLOSED)

    async def _resubscribe(self, error: LiftEnvelopeError, *, closed: bool) -> None:
        """Continue the read as soon as a broker serves it, for up to ``resubscribe_wait`` seconds."""
        read, wait = self._read, self._options.resubscribe_wait
        self._options.notify(SubscriptionLost(self.stream, self.partition, read.next_offset, error))
        deadline = self._regaining_until(wait)
        # A closed partition is tried again, without waking it, to find out why it was closed. Twice, because
        # Liftbridge may say for ever that a partition is paused.
        while (closed and self._attempts < 2) or (wait and not deadline.is_over):
            self._attempts += 1
            # Also the first time: many clients may lose one broker.
            await asyncio.sleep(deadline.pause_before(self._attempts))
            try:
                await self._regain(deadline, closed=closed)
            except (TransportError, RpcError, CallTimeoutError, NotLeaderError) as exc:
                self._drop_call()
                if not self._goes_on_after(exc):
                    return
                error, closed = exc, False
            else:
                self._stands_since = asyncio.get_running_loop().time()
                return
        text = f"{read.name}: the subscription was lost and not regained in {wait:g} s: {error}"
        raise SubscriptionLostError(text) from error

    def _regaining_until(self, wait: float) -> Deadline:
        """Return the deadline for attempts to resubscribe.

        A loss shares the deadline of the loss before it, unless a message or ``_STOOD`` seconds of standing
        came in between. A server that accepts each subscription and ends it at once is therefore asked more
        and more slowly, and for ``resubscribe_wait`` seconds at most.
        """
        stood = asyncio.get_running_loop().time() - self._stands_since
        if self._regaining is None or stood >= _STOOD:
            self._regaining, self._attempts = Deadline(max(wait, 0.001)), 0
        return self._regaining

    async def _regain(self, deadline: Deadline, *, closed: bool) -> None:
        read = self._read
        try:
            address = await self._attempt(read, deadline, resume=False, refresh=True)
            newest = await self._check_state(closed=closed)
            if newest is not None and read.shortened(newest):
                self._drop_call()
                address = await self._attempt(read, deadline, resume=False, refresh=False)
        except NotLeaderError as exc:
            if not closed:
                raise
            # A server accepts a subscription at the end of a paused partition, which has no leader.
            raise partition_paused(exc, read.name) from exc
        except (NoSuchStreamError, NoSuchPartitionError) as exc:
            raise StreamDeletedError(exc.code, f"{read.name}: the stream was deleted") from exc
        self._options.notify(SubscriptionResumed(self.stream, self.partition, read.next_offset, address))

    def _goes_on_after(self, error: LiftEnvelopeError) -> bool:
        """Return True to try again after a failed attempt, False if the read is over; raise a final error."""
        if not isinstance(error, RpcError):
            return True
        verdict = self._read.ended(error)
        if isinstance(verdict, NoSuchStreamError | NoSuchPartitionError):
            return True  # a starting broker may not know its streams: the next attempt fetches metadata
        if isinstance(verdict, LiftEnvelopeError):
            raise verdict from error
        if verdict is Verdict.CLOSED:
            raise partition_paused(error, self._read.name) from error
        self._read.finished = verdict is Verdict.FINISHED
        return not self._read.finished

    async def _check_state(self, *, closed: bool) -> int | None:
        """Check that the partition still has the messages that were read and, if closed, is not paused.

        Offsets of messages that were read must not be used again.

        Args:
            closed: Whether the server closed the subscription, as it does when it pauses the partition.

        Returns:
            Newest offset of the partition; None if no message is known that it must have.

        Raises:
            OffsetOutOfRangeError: The partition ends before the last known message.
            PartitionPausedError: The subscription was closed twice, and the metadata tell of a pause.
        """
        read = self._read
        if read.reached is None and not closed:
            return None
        timeout = _CLOSED_CHECK_TIMEOUT if closed else _CHECK_TIMEOUT
        info = await self._streams.fetch_partition_metadata(self.stream, self.partition, timeout=timeout)
        # Liftbridge says so for ever after the first pause, so one loss does not show it.
        if closed and info.paused and self._attempts > 1 and isinstance(self._lost, RpcError):
            raise partition_paused(self._lost, read.name)
        if read.reached is None:
            return None
        if info.newest_offset < read.reached:
            text = (
                f"{read.name}: message {read.reached} was there, and the partition now ends at "
                f"{info.newest_offset}: it lost messages, or the stream was made anew"
            )
            raise OffsetOutOfRangeError(
                text, self.stream, self.partition, read.reached + 1, info.newest_offset
            )
        return info.newest_offset
