"""Message feed of ``messages`` and ``consume``: one subscription, successive pulls and a buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final, TypeAlias

from liftenvelope._native import frames
from liftenvelope.errors import (
    CallTimeoutError,
    ConnectionClosedError,
    ConsumerNotFoundError,
    JetStreamError,
    LiftEnvelopeError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.jetstream._events import MissedHeartbeats, PinNotReleased, PullEvent, Unpinned
from liftenvelope.jetstream._pulling.blocks import BlockQueue
from liftenvelope.jetstream._pulling.endings import DRAIN, holds_pin, until_nothing_is_owed
from liftenvelope.jetstream._pulling.hooks import Hooks
from liftenvelope.jetstream._pulling.options import PullPlan
from liftenvelope.jetstream._pulling.pull import End, PullCore, PullNow, Tell
from liftenvelope.jetstream._pulling.source import PullSource, error_of
from liftenvelope.jetstream.message import PIN_HEADER, Block, Message, counted_size, give_back
from liftenvelope.jetstream.statuses import Status
from liftenvelope.jetstream.watch import watch_of
from liftenvelope.nats.expiry import LATE, TURNS
from liftenvelope.nats.link import Link
from liftenvelope.nats.pull_inbox import PullInbox

__all__ = ["PullFeed"]

_Take: TypeAlias = Callable[[list[Any]], None]
#: Failed lookups after which a consumer counts as present, and seconds between two lookups.
_LOOK_UPS: Final = 5
_LOOK_UP_PAUSE: Final = 0.25
#: Minimum seconds to wait for the server to confirm an unsubscription.
_UNSUBSCRIBE: Final = 1.0
#: Timeout in seconds of each request that releases a pin.
_RELEASE: Final = 2.0


class PullFeed:
    """Message buffer of one consumption, refilled by pulls; used by ``Messages`` and ``Consumption``.

    :class:`PullCore` decides when to pull. This class does the I/O: it passes messages, statuses, connection
    changes and the time to the core, and then executes the core's actions.

    Args:
        source: Consumer to pull from.
        plan: Limits and options of the pulls.
        hooks: Callbacks for events.
        pins: Ids of the pins that fetches of the consumer hold, by group. The feed takes over that of its
            group. Default: none.
        in_blocks: Buffer the messages in ``blocks``, where the caller takes them, and not in ``buffer``. The
            unit of the limits is messages, and the messages have no pins. Default false.
    """

    def __init__(
        self,
        source: PullSource,
        plan: PullPlan,
        hooks: Hooks,
        pins: dict[str, str] | None = None,
        *,
        in_blocks: bool = False,
    ) -> None:
        self._source = source
        self._plan = plan
        self._hooks = hooks
        self._pins = {} if pins is None else pins
        self._nc: Any = source.api.nc
        self._subject = source.pull_subject
        #: Last error of the connection before the last pull: an older refusal says nothing about that one.
        self._before: Exception | None = self._nc.last_error
        limits = plan.limits
        self._machine = PullCore(limits)
        self.buffer = frames.MessageQueue(limits.threshold, limits.in_bytes, self._refill, self.next)
        self.blocks = BlockQueue(limits.threshold, self._refill)
        #: The one of the two that gets the messages.
        self._queue = self.blocks if in_blocks else self.buffer
        take = self._take_sized if limits.max_bytes else self._take
        if limits.pinned:
            take = partial(self._take_pinned, take)
        if limits.stop_after:
            take = partial(self._take_to_the_last, take)
        #: With ``stop_after``: messages still to come.
        self._left = limits.stop_after
        #: With ``max_bytes`` besides messages: bytes that have arrived when the open pull is full.
        self._full_at = 0
        sized = limits.in_bytes or limits.max_bytes > 0
        self._inbox = PullInbox(
            source.api.nc,
            Message,
            source.acks,
            take,
            self._take_status,
            sized=sized,
            on_block=self._take_block if in_blocks else None,
        )
        self._watch = watch_of(source.api.nc)
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Time of the timer. uvloop's handle of a timer that is due at once does not tell its time.
        self._timer_at = inf
        self._checking: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None
        #: True to release the pin at the end.
        self.unpin = True
        #: Event loop time of the last message, or of the start if none has arrived.
        self.last_activity = 0.0
        self._ending = False
        self._error: LiftEnvelopeError | None = None
        #: The caller ended the feed, and iterating ends whether or not the feed had failed by then.
        self._stopped = False
        self._started = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Subscribe and send the first pull.

        Raises:
            TransportError: The connection is closed or draining.
            UsageError: The feed was started or stopped before.
        """
        if self._started or self._ending:
            raise UsageError(
                "the feed was started, or stopped, before: call messages() or consume() for a new one"
            )
        self._started = True
        self._loop = asyncio.get_running_loop()
        await self._inbox.open()
        if self.is_ending:  # stopped while the subscription was opened
            self._inbox.close()
            return
        self._watch.add(self)
        self.last_activity = self._loop.time()
        if self._machine.limits.pinned and (pin_id := self._pins.pop(self._plan.fields["group"], None)):
            self._machine.pinned(pin_id)  # perhaps lost meanwhile: then the server refuses the first pull
        self._core.start(self._loop.time(), online=bool(self._nc.is_connected))
        self._act()
        self._tick()

    @property
    def is_ending(self) -> bool:
        """Return true once the feed sends no more pulls."""
        return self._ending

    # -- messages in

    @property
    def _core(self) -> PullCore:
        """State machine, brought up to date with the messages that arrived and were taken.

        The buffer keeps these counts, because they change with every message. This property transfers them
        to the machine before any other use of it.
        """
        core, buffer = self._machine, self._queue
        if core.asked != buffer.owed:
            core.arrived(core.asked - buffer.owed)
        core.taken(core.buffered - buffer.buffered)
        if core.limits.max_bytes:
            core.held_bytes = buffer.size
        return core

    def _take(self, messages: list[Any]) -> None:
        self._queue.extend(messages)
        self.last_activity = self._loop.time()
        if self._waiter is not None:
            self._wake()

    def _take_block(self, block: Block) -> None:
        self.blocks.add(block)
        self.last_activity = self._loop.time()
        self._wake()
        self._check_full()

    def _take_pinned(self, take: _Take, messages: list[Any]) -> None:
        """Buffer messages whose headers may carry a pin id."""
        for message in messages:
            if (pin_id := message.headers.get(PIN_HEADER)) is not None:
                message._size = counted_size(message)
                self._core.pinned(pin_id)
        self._act()
        take(messages)

    def _take_to_the_last(self, take: _Take, messages: list[Any]) -> None:
        """Buffer messages up to the last one that is wanted, and end with it.

        More may come: those of a pull that counted as lost.
        """
        wanted, extra = messages[: self._left], messages[self._left :]
        self._left -= len(wanted)
        take(wanted)
        if not self._left:
            self._end(None)
        give_back(extra)

    def _take_sized(self, messages: list[Any]) -> None:
        """Buffer messages of a pull that is limited in messages and in bytes."""
        self._take(messages)
        self._check_full()

    def _check_full(self) -> None:
        if self._machine.limits.max_bytes and self._queue.arrived >= self._full_at:
            self._core.filled()
            self._act()

    def _take_status(self, number: int, headers: Mapping[str, str]) -> None:
        self._core.status(number, Status.from_headers(headers), self._loop.time())
        self._act()
        self._arm()  # a refusal may have set a pause

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- messages out

    async def next(self) -> Message:
        """Return the next message; wait if the buffer is empty.

        Raises:
            StopAsyncIteration: The feed was stopped; or the buffer is empty after a drain, or after
                ``stop_after`` messages.
            LiftEnvelopeError: An error ended the feed and the buffer is empty.
            UsageError: The feed was not started, or another task already waits for the next message.
        """
        await self.ready()
        return self.pop()

    async def ready(self) -> None:
        """Wait until a message is buffered.

        Raises: As for :meth:`next`.
        """
        while not self._queue:
            if self._ending:
                self._finish()
                if self._error is not None and not self._stopped:
                    raise self._error
                self.release()  # the caller has finished the last message
                raise StopAsyncIteration
            if not self._started:
                raise UsageError("the iteration has not been started: use async with")
            if self._waiter is not None:
                raise UsageError("another task waits for the next message: read in one task at a time")
            self._waiter = waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                if self._waiter is waiter:
                    self._waiter = None

    def pop(self) -> Message:
        """Remove and return the next message; the buffer must not be empty."""
        return self.buffer.pop()

    def unacked(self) -> list[Message]:
        """Return the buffered messages that the server would redeliver."""
        return list(self.buffer)

    def _refill(self) -> None:
        """Pull more messages; called when the buffer falls below its threshold."""
        if self._machine.limits.max_bytes and self._queue.owed > 0:
            return  # one pull is open, as it is after most messages of a slow stream
        if not self._ending:
            self._core.refill(self._loop.time())
            self._act()

    def resize(self, limit: int) -> None:
        """Request and buffer up to this many messages, or bytes, from the next pull on."""
        self._machine.limits = replace(self._machine.limits, limit=limit)

    def limit_bytes(self, max_bytes: int) -> None:
        """Request and buffer up to this many bytes from the next pull on, if there was a limit before."""
        self._machine.limits = replace(self._machine.limits, max_bytes=max_bytes)

    # -- actions of the core

    def _act(self) -> None:
        """Execute the pending actions of the core; called after each event passed to the core."""
        self._queue.owed = self._machine.asked
        actions = self._machine.actions
        while actions:
            action = actions.pop(0)
            if isinstance(action, PullNow):
                self._pull(action)
            elif isinstance(action, Tell):
                self._tell(action.event)
            elif isinstance(action, End):
                self._end(error_of(action.status))
            else:
                if self._checking is not None:
                    self._checking.cancel()
                self._checking = self._loop.create_task(self._check(action.number))

    def _tell(self, event: PullEvent) -> None:
        if isinstance(event, MissedHeartbeats):
            refusal = Link(self._nc).refusal(self._subject, since=self._before)
            event = replace(event, refusal=refusal)
        self._hooks.tell(event)

    def _pull(self, pull: PullNow) -> None:
        if not self._nc.is_connected:
            # nats-py would queue this pull and send it after the reconnect, in addition to the new pull.
            self._core.disconnected()
            return
        try:
            self._before = self._nc.last_error
            self._full_at = self._queue.arrived + pull.max_bytes
            payload = self._plan.payload(pull.amount, pull.pin_id, max_bytes=pull.max_bytes)
            self._inbox.send(self._subject, pull.number, payload)
        except TransportError as exc:
            self._end(ConnectionClosedError(str(exc)))

    def _tick(self, due: float = inf, turns: int = 0) -> None:
        """Pass the time to the core.

        If the loop was blocked, first grant it up to :data:`TURNS` turns to read pending data. Otherwise
        pulls whose messages arrived during the block would count as expired.
        """
        now = self._loop.time()
        if now - due > LATE and turns < TURNS:
            self._timer, self._timer_at = self._loop.call_at(now, self._tick, due, turns + 1), now
            return
        self._timer, self._timer_at = None, inf
        self._core.tick(now, max(now - due, 0.0))
        self._act()
        self._arm()

    def _arm(self) -> None:
        """Set the timer for the core's next tick."""
        due = self._core.next_tick(self._loop.time())
        if self._ending or self._timer_at <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(due, self._tick, due), due

    async def _check(self, number: int) -> None:
        """Look the consumer up and report the result to the core.

        Only a definite "not found" answer counts as gone. A failed request is repeated. If all requests fail,
        the consumer counts as present.
        """
        found = True
        for _ in range(_LOOK_UPS):
            try:
                await self._source.info()
                break
            except (ConsumerNotFoundError, StreamNotFoundError):
                found = False
                break
            except (JetStreamError, CallTimeoutError, TransportError):
                await asyncio.sleep(_LOOK_UP_PAUSE)
        self._checking = None
        self._core.checked(number, found, self._loop.time())
        self._act()

    # -- the connection

    def lost(self) -> None:
        """Handle a lost connection."""
        self._core.disconnected()
        self._act()

    def restored(self) -> None:
        """Handle a restored or replaced connection."""
        self._core.reconnected(self._loop.time())
        self._act()

    def gone(self, reason: str) -> None:
        """End the feed: the connection is closed or draining."""
        self._end(ConnectionClosedError(reason))

    # -- the end

    def _end(self, error: LiftEnvelopeError | None) -> None:
        """Stop pulling; buffered messages are still delivered, and then the error is raised."""
        if self._ending:
            return
        self._ending, self._error = True, error
        self._core.stop()
        self._watch.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._checking is not None and self._checking is not asyncio.current_task():
            self._checking.cancel()
        self._inbox.close()
        if not self._queue:
            self._finish()
        self._wake()

    def _finish(self) -> None:
        """Resolve the future that :meth:`wait_ended` waits for."""
        if not self.ended.done():
            self.ended.set_result(None)

    def stop(self) -> None:
        """End now; buffered messages are dropped and redelivered after ``ack_wait``."""
        self._queue.clear()
        self._stopped = True
        self._end(None)
        self._finish()
        self._wake()

    async def drain(self, timeout: float = DRAIN) -> None:
        """Stop pulling, receive the messages still on their way, and end once they are delivered.

        Args:
            timeout: Seconds to wait for the server. Default 5.
        """
        self._core.stop()
        try:
            if not self._ending and self._started:
                deadline = self._loop.time() + timeout
                await until_nothing_is_owed(self, self._source, deadline)
                await self._inbox.drain(max(deadline - self._loop.time(), _UNSUBSCRIBE))
        finally:  # also after a cancelled drain: the core is stopped, so no more messages arrive
            self._end(None)

    @property
    def can_receive(self) -> bool:
        """Return true while the server can still answer a pull."""
        return not self._ending and bool(self._nc.is_connected)

    @property
    def owed(self) -> int:
        """Messages or bytes the server may still send."""
        return self._core.asked

    def release(self) -> None:
        """Release the pin if this consumption holds it, so that a standby need not wait for the timeout."""
        pin_id = self._machine.pin_id
        if self.unpin and pin_id is not None and self._releasing is None and self._nc.is_connected:
            self._releasing = self._loop.create_task(self._release(self._plan.fields["group"], pin_id))

    async def _release(self, group: str, pin_id: str) -> None:
        try:
            if holds_pin(await self._source.info(timeout=_RELEASE), group, pin_id):
                await self._source.unpin(group, timeout=_RELEASE)
            self._hooks.tell(Unpinned(pin_id))
        except (JetStreamError, CallTimeoutError, TransportError) as exc:
            self._hooks.tell(PinNotReleased(pin_id, exc))

    async def released(self) -> None:
        """Wait until a release of the pin, if one is under way, has finished."""
        if self._releasing is not None:
            await asyncio.wait({self._releasing})

    async def wait_ended(self) -> None:
        """Wait until the feed has ended and all messages are delivered.

        Raises:
            LiftEnvelopeError: The error that ended the feed.
        """
        # Shielded: cancelling one waiter must not cancel the shared future for the others.
        await asyncio.shield(self.ended)
        if self._error is not None:
            raise self._error

    @property
    def buffered(self) -> int:
        """Number of buffered messages."""
        return len(self._queue)
