"""``fetch`` and ``next``: one pull, answered by what there is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from liftenvelope.errors import (
    CallTimeoutError,
    ConnectionClosedError,
    LiftEnvelopeError,
    TransportError,
)
from liftenvelope.jetstream._feed import LATE, TURNS, Source, error_of
from liftenvelope.jetstream._statuses import Kind, Status
from liftenvelope.jetstream._watch import reason_of, watch_of
from liftenvelope.jetstream.message import PIN_HEADER, Message, counted_size
from liftenvelope.jetstream.pull_options import PullPlan
from liftenvelope.nats._link import Link
from liftenvelope.nats._pull_inbox import PullInbox

__all__ = ["Batch", "FetchInboxes"]

#: How much longer than the server a fetch waits, in seconds.
_GRACE: Final = 5.0
#: With less time left than this no other pull is sent, in seconds.
_LEAST: Final = 0.005
#: After how many seconds an inbox that no fetch uses is unsubscribed.
_IDLE: Final = 1.0
#: How long to wait before a pull is sent again that nobody took after a reconnect, in seconds.
_PAUSE: Final = 0.1
#: What a server says to a pull whose time is up.
_TIMEOUT: Final = 408
#: Ends of a pull that are no errors.
_QUIET: Final = frozenset({Kind.ENDED, Kind.TOO_LARGE})


class Batch(list[Message]):
    """The messages of one fetch.

    Attributes:
        error: What ended it early, None if nothing did. A fetch that has got nothing raises it instead.
    """

    error: LiftEnvelopeError | None = None


class _FetchInbox:
    """A subscription that one fetch at a time uses."""

    def __init__(self, source: Source) -> None:
        self.inbox = PullInbox(source.api.nc, Message, source.acks, self._take, self._take_status)
        self.watch = watch_of(source.api.nc)
        self.current: _Fetch | None = None
        self._number = 0

    def _take(self, messages: list[Message]) -> None:
        if self.current is not None:
            self.current.take(messages)
        else:
            _give_back(messages)

    def _take_status(self, number: int, headers: Mapping[str, str]) -> None:
        if self.current is not None:
            self.current.take_status(number, headers)

    def send(self, subject: str, payload: bytes) -> int:
        """Publish a pull; returns its number."""
        self._number += 1
        self.inbox.send(subject, self._number, payload)
        return self._number


class FetchInboxes:
    """The inboxes of a consumer's fetches, kept for a moment so that the next one finds its own ready.

    Args:
        source: Where to pull from.

    Attributes:
        pins: The ids of the pins that fetches hold, by group.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._idle: list[_FetchInbox] = []
        self._timer: asyncio.TimerHandle | None = None
        self._used = 0.0
        self.pins: dict[str, str] = {}

    async def fetch(self, plan: PullPlan, wait: float) -> Batch:
        """Pull once.

        Args:
            plan: What to ask for.
            wait: How long the server may take, in seconds.

        Raises:
            ConnectionClosedError: The connection is closed or draining.
        """
        if reason := reason_of(self._source.api.nc):
            raise ConnectionClosedError(reason)
        inbox = self._idle.pop() if self._idle else _FetchInbox(self._source)
        done = False
        fetch = _Fetch(self._source, plan, inbox, self.pins)
        try:
            if not inbox.inbox.is_open:
                await inbox.inbox.open()
            batch = await fetch.run(wait)
            done = fetch.is_clean
        finally:
            inbox.current = None
            if done:
                self._keep(inbox)
            else:
                inbox.inbox.close()  # which has the server forget a pull that still waits
        return batch

    def _keep(self, inbox: _FetchInbox) -> None:
        self._idle.append(inbox)
        loop = asyncio.get_running_loop()
        self._used = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(_IDLE, self._tidy, loop)

    def _tidy(self, loop: asyncio.AbstractEventLoop) -> None:
        left = self._used + _IDLE - loop.time()
        if left > 0 and self._idle:
            self._timer = loop.call_later(left, self._tidy, loop)
            return
        self._timer = None
        self.close()

    def close(self) -> None:
        """Unsubscribe the inboxes that no fetch uses."""
        while self._idle:
            self._idle.pop().inbox.close()


class _Fetch:
    """One fetch under way."""

    # What most fetches leave as it is stands here, and not in each: a fetch of one message is short.
    _timer: asyncio.TimerHandle
    _number = 0
    _heard = 0.0
    _deadline = 0.0
    _restored = False
    _again = False
    _retry: asyncio.TimerHandle | None = None
    _pin_id: str | None = None
    #: Whether the server has ended the pull, so that nothing comes to the inbox any more.
    is_clean = False

    def __init__(self, source: Source, plan: PullPlan, inbox: _FetchInbox, pins: dict[str, str]) -> None:
        self._source = source
        self._plan = plan
        self._inbox = inbox
        self._pins = pins
        self._group = str(plan.fields.get("group", ""))
        self._nc: Any = source.api.nc
        self._loop = asyncio.get_running_loop()
        self._left = plan.limits.limit
        self._done: asyncio.Future[None] = self._loop.create_future()
        self.batch = Batch()

    async def run(self, wait: float) -> Batch:
        """Pull, and wait for the end."""
        self._heard = self._loop.time()
        self._deadline = self._heard + wait
        self._again = 0 < self._plan.limits.expires < wait
        self._inbox.current = self
        self._inbox.inbox.sized = self._plan.limits.in_bytes
        watch = self._inbox.watch
        try:
            self._send()
            watch.add(self)  # and all else that can be done while the server is at work
            await self._wait()
        except BaseException:
            self._inbox.inbox.close()  # first: they would be delivered again to this very pull
            _give_back(self.batch)
            raise
        finally:
            watch.remove(self)
            if self._retry is not None:
                self._retry.cancel()
        if self.batch.error is not None and not self.batch:
            raise self.batch.error
        return self.batch

    async def _wait(self) -> None:
        if self._done.done():
            return
        self._timer = self._loop.call_at(self._deadline, self._time_is_up)
        beats = self._plan.limits.idle_heartbeat and self._loop.create_task(self._watch_heartbeats())
        try:
            await self._done
        finally:
            self._timer.cancel()
            if beats:
                beats.cancel()

    def _time_is_up(self) -> None:
        """Leave the server a moment to say that it has ended the pull; without a connection it can't."""
        if self._nc.is_connected:
            self._timer = self._loop.call_later(_GRACE, self._give_up, self._loop.time() + _GRACE)
        else:
            self._finish(
                TransportError("the NATS connection is down: nothing can be pulled until it is back")
            )

    def _give_up(self, due: float) -> None:
        if self._loop.time() - due > LATE:  # what has come meanwhile is not read yet
            self._timer = self._loop.call_later(LATE, self._give_up, self._loop.time() + LATE)
        elif self._nc.is_connected:
            text = "the server has not answered the pull, or not to its end"
            self._finish(CallTimeoutError(text + Link(self._nc).refusal))
        else:
            self._finish(TransportError("the NATS connection was lost before the server had ended the pull"))

    async def _watch_heartbeats(self) -> None:
        beat = self._plan.limits.idle_heartbeat
        while True:
            due = self._loop.time() + beat / 2
            await asyncio.sleep(beat / 2)
            for _ in range(TURNS if self._loop.time() - due > LATE else 0):
                await asyncio.sleep(0)  # what has come while the loop was blocked is not read yet
            silent = self._loop.time() - self._heard
            if self._nc.is_connected and silent >= 2 * beat:
                self._finish(CallTimeoutError(f"the server has been silent for {silent:.1f} s"))
                return

    def _send(self) -> None:
        """Publish the pull, or what is left of it."""
        self._retry = None
        if self._done.done() or not self._nc.is_connected:
            return  # sent when the connection is back: nats-py would send it then, too, beside the new one
        left = None
        if self._number or self._restored:  # else it is the first one, with all the time that there is
            left = max(self._deadline - self._loop.time(), _LEAST)
        self._pin_id = self._pins.get(self._group) if self._plan.limits.pinned else None
        payload = self._plan.payload(self._left, self._pin_id, left)
        try:
            self._number = self._inbox.send(self._source.pull_subject, payload)
        except TransportError as exc:
            self._finish(ConnectionClosedError(str(exc)))

    def take(self, messages: list[Message]) -> None:
        """Messages have come to the inbox."""
        self._heard = self._loop.time()
        limits = self._plan.limits
        for message in messages:
            if self._done.done():
                _give_back([message])
                continue
            if limits.pinned and (pin_id := message.headers.get(PIN_HEADER)) is not None:
                self._pins[self._group] = pin_id
                message._size = counted_size(message)
            self.batch.append(message)
            self._left -= message._size if limits.in_bytes else 1
            if self._left <= 0:
                self.is_clean = True  # of a pull that is filled the server says nothing
                self._finish(None)

    def take_status(self, number: int, headers: Mapping[str, str]) -> None:
        """A status has come to the inbox, to the pull of that number."""
        self._heard = self._loop.time()
        if number == self._number:
            self._take_status(Status.from_headers(headers))

    def _take_status(self, status: Status) -> None:
        kind = status.kind
        if kind is Kind.HEARTBEAT:
            return
        if kind is Kind.WRONG_PIN:
            if self._pins.get(self._group) == self._pin_id:
                self._pins.pop(self._group, None)
            self._send()
            return
        again = kind in (Kind.LEADERSHIP, Kind.SHUTDOWN) or (kind is Kind.NO_RESPONDERS and self._restored)
        if again and self._loop.time() < self._deadline:
            if self._retry is None:
                self._retry = self._loop.call_later(_PAUSE, self._send)
            return
        if self._again and status.code == _TIMEOUT and self._deadline - self._loop.time() > _LEAST:
            self._send()  # it had to end sooner than the fetch
            return
        self.is_clean = True
        self._finish(None if kind in _QUIET else error_of(status))

    def _finish(self, error: LiftEnvelopeError | None) -> None:
        if not self._done.done():
            self.batch.error = error
            self._done.set_result(None)

    # -- the connection

    def lost(self) -> None:
        """The connection is down: the pull is gone."""

    def restored(self) -> None:
        """The connection is back: pull what is left."""
        self._restored = True
        self._heard = self._loop.time()
        self._send()

    def gone(self, reason: str) -> None:
        """The connection is closed or draining."""
        self._finish(ConnectionClosedError(reason))


def _give_back(messages: list[Message]) -> None:
    """Have messages that nobody gets any more delivered again at once, not after ``ack_wait``."""
    for message in messages:
        try:
            message.nak()
        except TransportError:
            return  # the connection is gone, and they come again when they are due


def first_of(batch: Batch, wait: float) -> Message:
    """The message of a fetch of one.

    Raises:
        CallTimeoutError: There is none.
    """
    if batch:
        return batch[0]
    raise CallTimeoutError(f"no message came within {wait} s")
