"""Feed of ``messages`` and ``consume``: one subscription, pull after pull, and a buffer between."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

from liftenvelope._native import frames
from liftenvelope.errors import (
    BadRequestError,
    CallTimeoutError,
    ConnectionClosedError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    PushConsumerError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.jetstream._endings import DRAIN, holds_pin, until_nothing_is_owed
from liftenvelope.jetstream._pull import End, PullCore, PullNow, Tell
from liftenvelope.jetstream._statuses import Kind, Status
from liftenvelope.jetstream._watch import watch_of
from liftenvelope.jetstream.events import Pinned, PinNotReleased, PullEvent, Unpinned
from liftenvelope.jetstream.message import PIN_HEADER, Acks, Message, counted_size
from liftenvelope.jetstream.pull_options import PullPlan
from liftenvelope.nats._pull_inbox import PullInbox

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api
    from liftenvelope.jetstream.infos import ConsumerInfo

__all__ = ["Hooks", "PullFeed", "Source", "error_of"]

#: How often a consumer is looked up before it is given the benefit of the doubt, and the pauses between.
_LOOK_UPS: Final = 5
_LOOK_UP_PAUSE: Final = 0.25
#: Seconds for the server to answer an unsubscription, at the least.
_UNSUBSCRIBE: Final = 1.0
#: Seconds for the server to take a pin back.
_RELEASE: Final = 2.0
#: How late the loop may be before it is taken for one that something has blocked, in seconds; and how many
#: turns it is given then to read what has come meanwhile.
LATE: Final = 0.1
TURNS: Final = 10


class Source(Protocol):
    """Where messages are pulled from."""

    @property
    def api(self) -> Api:
        """The way to the server."""

    @property
    def pull_subject(self) -> str:
        """The subject that pulls are published to."""

    @property
    def acks(self) -> Acks:
        """What sends the acks."""

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Ask for the consumer; raises ConsumerNotFoundError or StreamNotFoundError if it is gone."""

    async def unpin(self, group: str, *, timeout: float | None = None) -> None:
        """Take the pin of a group from whoever holds it."""


class Hooks:
    """Whom to tell what happens, each optional.

    Args:
        on_event: Told every event.
        on_pinned: Told the id when this consumption is pinned.
        on_unpinned: Told the id when it no longer is.
    """

    def __init__(
        self,
        on_event: Callable[[PullEvent], None] | None = None,
        on_pinned: Callable[[str], None] | None = None,
        on_unpinned: Callable[[str], None] | None = None,
    ) -> None:
        for name, hook in (("on_event", on_event), ("on_pinned", on_pinned), ("on_unpinned", on_unpinned)):
            if hook is not None and (inspect.iscoroutinefunction(hook) or not callable(hook)):
                raise UsageError(f"{name} must be a plain function, not {hook!r}: nothing awaits it")
        self._on_event, self._on_pinned, self._on_unpinned = on_event, on_pinned, on_unpinned

    def tell(self, event: PullEvent) -> None:
        """Call the hooks soon; what they raise goes to the event loop's exception handler."""
        loop = asyncio.get_running_loop()
        if self._on_event is not None:
            loop.call_soon(self._on_event, event)
        if isinstance(event, Pinned) and self._on_pinned is not None:
            loop.call_soon(self._on_pinned, event.pin_id)
        if isinstance(event, Unpinned) and self._on_unpinned is not None:
            loop.call_soon(self._on_unpinned, event.pin_id)


def error_of(status: Status) -> JetStreamError:
    """The error that a status is."""
    kinds: dict[Kind, type[JetStreamError]] = {
        Kind.DELETED: ConsumerDeletedError,
        Kind.PUSH: PushConsumerError,
        Kind.BAD_REQUEST: BadRequestError,
        Kind.NO_RESPONDERS: NoJetStreamError,
    }
    text = status.description or "nothing answers pulls: JetStream or the consumer is not there"
    return kinds.get(status.kind, JetStreamError)(status.code, text)


class PullFeed:
    """The messages of one consumption, in a buffer that is refilled. Used by what is public here.

    Args:
        source: Where to pull from.
        plan: How much, and how.
        hooks: Whom to tell what happens.
    """

    def __init__(self, source: Source, plan: PullPlan, hooks: Hooks) -> None:
        self._source = source
        self._plan = plan
        self._hooks = hooks
        self._nc: Any = source.api.nc
        self._subject = source.pull_subject
        limits = plan.limits
        self._machine = PullCore(limits)
        self.buffer = frames.MessageQueue(limits.threshold, limits.in_bytes, self._refill, self.next)
        take = self._take_pinned if limits.pinned else self._take
        self._inbox = PullInbox(
            source.api.nc, Message, source.acks, take, self._take_status, sized=limits.in_bytes
        )
        self._watch = watch_of(source.api.nc)
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None
        #: Whether to give the pin back at the end.
        self.unpin = True
        #: When a message came last, or the consumption began.
        self.last_activity = 0.0
        self._ending = False
        self._error: LiftEnvelopeError | None = None
        self._started = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Subscribe and pull.

        Raises:
            TransportError: The connection is closed or draining.
            UsageError: It was started before.
        """
        if self._started or self._ending:
            raise UsageError("this was started, or stopped, before: make a new one")
        self._started = True
        self._loop = asyncio.get_running_loop()
        await self._inbox.open()
        if self.is_ending:  # stopped meanwhile
            self._inbox.close()
            return
        self._watch.add(self)
        self.last_activity = self._loop.time()
        self._core.start(self._loop.time(), online=bool(self._nc.is_connected))
        self._act()
        self._tick()

    @property
    def is_ending(self) -> bool:
        """Whether nothing is pulled any more."""
        return self._ending

    # -- messages in

    @property
    def _core(self) -> PullCore:
        """The state machine, which has been told what came and was taken since it was looked at last.

        The buffer keeps count of that, since it happens with every message; all else is for the machine.
        """
        core, buffer = self._machine, self.buffer
        if core.asked != buffer.owed:
            core.arrived(core.asked - buffer.owed)
        core.taken(core.buffered - buffer.buffered)
        return core

    def _take(self, messages: list[Any]) -> None:
        self.buffer.extend(messages)
        self.last_activity = self._loop.time()
        if self._waiter is not None:
            self._wake()

    def _take_pinned(self, messages: list[Any]) -> None:
        """The same where messages may tell of a pin."""
        for message in messages:
            if (pin_id := message.headers.get(PIN_HEADER)) is not None:
                message._size = counted_size(message)
                self._core.pinned(pin_id)
        self._act()
        self._take(messages)

    def _take_status(self, number: int, headers: Mapping[str, str]) -> None:
        self._core.status(number, Status.from_headers(headers), self._loop.time())
        self._act()
        self._arm()  # for a pause after a refusal

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- messages out

    async def next(self) -> Message:
        """The next message.

        Raises:
            StopAsyncIteration: It was stopped, or drained and nothing is left.
            LiftEnvelopeError: It has ended by an error, and nothing is left.
        """
        while not self.buffer:
            if self._ending:
                self._finish()
                if self._error is not None:
                    raise self._error
                self.release()  # the caller is done with the last message
                raise StopAsyncIteration
            if self._waiter is not None:
                raise UsageError("another task waits for the next message: one may at a time")
            self._waiter = waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                if self._waiter is waiter:
                    self._waiter = None
        return self.pop()

    def pop(self) -> Message:
        """Take the next message out of a buffer that has one."""
        return self.buffer.pop()

    def _refill(self) -> None:
        """The buffer has fallen below its threshold."""
        if not self._ending:
            self._core.refill(self._loop.time())
            self._act()

    # -- what the core wants

    def _act(self) -> None:
        """Do what the core wants, after everything that it was told."""
        self.buffer.owed = self._machine.asked
        actions = self._machine.actions
        while actions:
            action = actions.pop(0)
            if isinstance(action, PullNow):
                self._pull(action)
            elif isinstance(action, Tell):
                self._hooks.tell(action.event)
            elif isinstance(action, End):
                self._end(error_of(action.status))
            else:
                if self._checking is not None:
                    self._checking.cancel()
                self._checking = self._loop.create_task(self._check(action.number))

    def _pull(self, pull: PullNow) -> None:
        if not self._nc.is_connected:
            # nats-py would keep it and send it later, beside the one that is sent then.
            self._core.disconnected()
            return
        try:
            self._inbox.send(self._subject, pull.number, self._plan.payload(pull.amount, pull.pin_id))
        except TransportError as exc:
            self._end(ConnectionClosedError(str(exc)))

    def _tick(self, due: float = inf, turns: int = 0) -> None:
        """Tell the core the time; when the loop was kept from reading until now, what has come first."""
        now = self._loop.time()
        if now - due > LATE and turns < TURNS:
            self._timer = self._loop.call_at(now, self._tick, due, turns + 1)
            return
        self._timer = None
        self._core.tick(now)
        self._act()
        self._arm()

    def _arm(self) -> None:
        """Have the core told of the time when it next matters."""
        due = self._core.next_tick(self._loop.time())
        if self._ending or (self._timer is not None and self._timer.when() <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tick, due)

    async def _check(self, number: int) -> None:
        """Look the consumer up. Whoever can't be asked has not said that it is gone."""
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
        """The connection is down."""
        self._core.disconnected()
        self._act()

    def restored(self) -> None:
        """The connection is back, or another one is there already."""
        self._core.reconnected(self._loop.time())
        self._act()

    def gone(self, reason: str) -> None:
        """The connection is closed or draining."""
        self._end(ConnectionClosedError(reason))

    # -- the end

    def _end(self, error: LiftEnvelopeError | None) -> None:
        """Pull nothing more; what is buffered is still delivered, and then the error is raised."""
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
        if not self.buffer:
            self._finish()
        self._wake()

    def _finish(self) -> None:
        """Settle what :meth:`wait_ended` waits for."""
        if not self.ended.done():
            self.ended.set_result(None)

    def stop(self) -> None:
        """End now; what is buffered is dropped, and comes again after ``ack_wait``."""
        self.buffer.clear()
        self._end(None)
        self._finish()
        self._wake()

    async def drain(self, timeout: float = DRAIN) -> None:
        """Pull nothing more, take what the server still sends, and end when it is delivered.

        Args:
            timeout: Seconds to wait for the server. Default 5.
        """
        self._core.stop()
        try:
            if not self._ending and self._started:
                deadline = self._loop.time() + timeout
                await until_nothing_is_owed(self, self._source, deadline)
                await self._inbox.drain(max(deadline - self._loop.time(), _UNSUBSCRIBE))
        finally:  # also of a drain that is cancelled: nothing is pulled any more, so that nothing comes
            self._end(None)

    @property
    def can_receive(self) -> bool:
        """Whether a pull may still be served."""
        return not self._ending and bool(self._nc.is_connected)

    @property
    def owed(self) -> int:
        """Messages or bytes that the server may still send."""
        return self._core.asked

    def release(self) -> None:
        """Give the pin back if this consumption holds it, so that a standby need not wait for a time-out."""
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
        """Wait until the pin is given back, if it is to be."""
        if self._releasing is not None:
            await asyncio.wait({self._releasing})

    async def wait_ended(self) -> None:
        """Wait until it has ended and all is delivered.

        Raises:
            LiftEnvelopeError: What it was ended by.
        """
        # A future of one's own: whoever is cancelled here does not cancel it for others.
        await asyncio.shield(self.ended)
        if self._error is not None:
            raise self._error

    @property
    def buffered(self) -> int:
        """How many messages wait to be taken."""
        return len(self.buffer)
