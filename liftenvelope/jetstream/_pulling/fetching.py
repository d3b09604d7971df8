"""``fetch`` and ``next``: a single pull and its batch of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from liftenvelope.errors import (
    CallTimeoutError,
    ConnectionClosedError,
    ConsumerNotFoundError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    StreamNotFoundError,
    TransportError,
)
from liftenvelope.jetstream._pulling.options import PullPlan
from liftenvelope.jetstream._pulling.source import PullSource, error_of
from liftenvelope.jetstream.message import PIN_HEADER, Message, counted_size, give_back
from liftenvelope.jetstream.statuses import Status, StatusKind
from liftenvelope.jetstream.watch import reason_of, watch_of
from liftenvelope.nats.expiry import LATE
from liftenvelope.nats.link import Link
from liftenvelope.nats.pull_inbox import PullInbox

__all__ = ["Batch", "FetchInboxes"]

#: Seconds that a fetch waits, after its deadline and after each message, for the server to report the end of
#: the pull. A slow network may hold more messages.
_GRACE: Final = 5.0
#: Minimum time left to send another pull, in seconds.
_LEAST: Final = 0.005
#: Seconds after which an unused inbox is unsubscribed.
_IDLE: Final = 1.0
#: Seconds to wait before a pull is sent again: after a leader change or a shutdown, and while no server takes
#: it although the consumer is there.
_PAUSE: Final = 0.1
#: Seconds for which a consumer counts as present after a leader change, a reconnect, or a look-up.
_TRUSTED: Final = 2.0
#: Seconds to wait for the answer to a look-up of a consumer that was there.
_LOOK_UP: Final = 2.0
#: Seconds of silence after which a pull that does not wait may be stalled. Servers answer it at once.
_STALL: Final = 0.25
#: Status codes of an expired pull, and of one that no server takes.
_TIMEOUT: Final = 408
_NO_RESPONDERS: Final = 503
#: Statuses of a pull for which the consumer has, or may have, no leader.
_LEADERLESS: Final = frozenset({StatusKind.LEADERSHIP, StatusKind.SHUTDOWN, StatusKind.NO_RESPONDERS})
#: Statuses that end a pull without an error.
_QUIET: Final = frozenset({StatusKind.ENDED, StatusKind.TOO_LARGE})


class Batch(list[Message]):
    """List of the messages of one fetch.

    Attributes:
        error: Error that ended the fetch early, otherwise None. A fetch without messages raises the error
            instead.
    """

    error: LiftEnvelopeError | None = None


class _FetchInbox:
    """Subscription that serves one fetch at a time."""

    def __init__(self, source: PullSource) -> None:
        self.inbox = PullInbox(source.api.nc, Message, source.acks, self._take, self._take_status)
        self.watch = watch_of(source.api.nc)
        self.current: _Fetch | None = None
        self._number = 0

    def _take(self, messages: list[Message]) -> None:
        if self.current is not None:
            self.current.take(messages)
        else:
            give_back(messages)

    def _take_status(self, number: int, headers: Mapping[str, str]) -> None:
        if self.current is not None:
            self.current.take_status(number, headers)

    def send(self, subject: str, payload: bytes) -> int:
        """Publish a pull and return its number."""
        self._number += 1
        self.inbox.send(subject, self._number, payload)
        return self._number


class FetchInboxes:
    """Pool of a consumer's fetch inboxes.

    An idle inbox is kept for a second, so that the next fetch finds a subscription ready.

    Args:
        source: Consumer to pull from.

    Attributes:
        pins: Ids of the pins that fetches hold, by group.
    """

    def __init__(self, source: PullSource) -> None:
        self._source = source
        self._idle: list[_FetchInbox] = []
        self._timer: asyncio.TimerHandle | None = None
        self._used = 0.0
        self.pins: dict[str, str] = {}

    async def fetch(self, plan: PullPlan, wait: float) -> Batch:
        """Run one fetch.

        Args:
            plan: Checked options of the pull.
            wait: Seconds that the server may take.

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
                inbox.inbox.close()  # unsubscribing cancels a pull that is still open at the server
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
        """Unsubscribe the idle inboxes."""
        while self._idle:
            self._idle.pop().inbox.close()


class _Fetch:
    """State of one running fetch.

    A pull ends with a status or with its last message. Statuses of earlier pulls are ignored, because the
    newest pull replaces them. ``is_clean`` is set once the server has ended the pull. Only then may another
    fetch reuse the inbox, because no message of this fetch can arrive any more.
    """

    # Defaults are class attributes: most fetches never change them, and a fetch of one message must be cheap.
    _timer: asyncio.TimerHandle
    _number = 0
    _heard = 0.0
    #: When the last message came: unlike ``_heard``, not moved by heartbeats.
    _message_at = 0.0
    _deadline = 0.0
    #: Time until which 503 means that the consumer has no leader. 0 until a pull is lost or the consumer is
    #: looked up.
    _trusted_until = 0.0
    _again = False
    _sent_at = 0.0
    _retry: asyncio.TimerHandle | None = None
    _look_up: asyncio.Task[None] | None = None
    _pin_id: str | None = None
    #: True once the server has ended the pull: nothing more arrives at the inbox.
    is_clean = False

    def __init__(self, source: PullSource, plan: PullPlan, inbox: _FetchInbox, pins: dict[str, str]) -> None:
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
        """Send the pull and wait until the fetch ends."""
        self._before = self._nc.last_error
        self._heard = self._loop.time()
        self._deadline = self._heard + wait
        self._again = 0 < self._plan.limits.expires < wait
        self._inbox.current = self
        self._inbox.inbox.sized = self._plan.limits.in_bytes
        watch = self._inbox.watch
        try:
            self._send()
            watch.add(self)  # after sending: overlaps with the server's work
            await self._wait()
        except BaseException:
            self._inbox.inbox.close()  # first: the server would redeliver the messages to this pull
            give_back(self.batch)
            raise
        finally:
            watch.remove(self)
            if self._retry is not None:
                self._retry.cancel()
            if self._look_up is not None:
                self._look_up.cancel()
        if self.batch.error is not None and not self.batch:
            raise self.batch.error
        return self.batch

    async def _wait(self) -> None:
        if self._done.done():
            return
        watching = None
        if self._plan.limits.idle_heartbeat:
            self._listen_again()
        else:
            self._timer = self._loop.call_at(self._deadline, self._time_is_up)
            if not self._plan.limits.expires:
                watching = self._loop.create_task(self._watch_unacked())
        try:
            await self._done
        finally:
            self._timer.cancel()
            if watching is not None:
                watching.cancel()

    def _time_is_up(self) -> None:
        """Give the server a grace period to report the end of the pull; without a connection, fail now."""
        if self._nc.is_connected:
            self._timer = self._loop.call_later(_GRACE, self._give_up, self._loop.time() + _GRACE)
        else:
            self._finish(
                TransportError("the NATS connection is down: nothing can be pulled until it is back")
            )

    def _give_up(self, due: float) -> None:
        now = self._loop.time()
        if now - due > LATE:  # the loop was blocked: received data is not read yet
            self._timer = self._loop.call_at(now + LATE, self._give_up, now + LATE)
        elif not self._nc.is_connected:
            self._finish(TransportError("the NATS connection was lost before the server had ended the pull"))
        elif (due := self._message_at + _GRACE) > now:
            self._timer = self._loop.call_at(due, self._give_up, due)
        else:
            text = "the server has not answered the pull, or not to its end"
            self._finish(CallTimeoutError(text + self._refusal()))

    def _refusal(self) -> str:
        """Return the server's report that this connection may not pull, as the end of an error text."""
        return Link(self._nc).refusal(self._source.pull_subject, since=self._before)

    def _listen_again(self) -> None:
        """Set the timer for the next look at the heartbeats, or for the end of the time.

        One timer and no task: it costs little if the messages come at once, as they do for most fetches.
        """
        due = min(self._loop.time() + self._plan.limits.idle_heartbeat / 2, self._deadline)
        self._timer = self._loop.call_at(due, self._listen, due)

    def _listen(self, due: float) -> None:
        """End the fetch if two heartbeats are missed.

        Time in which this process stood still proves no silence: what has come since is not read yet, and the
        server may have stood still with it.
        """
        now, beat = self._loop.time(), self._plan.limits.idle_heartbeat
        self._heard = min(self._heard + now - due, now)
        silent = now - self._heard
        has_pull = self._look_up is None or self._look_up.done()
        if has_pull and self._nc.is_connected and silent >= 2 * beat:
            text = f"the server has been silent for {silent:.1f} s, or dropped the pull beyond max_waiting"
            self._finish(CallTimeoutError(text + self._refusal()))
        elif now >= self._deadline:
            self._time_is_up()
        else:
            self._listen_again()

    async def _watch_unacked(self) -> None:
        """End a pull that does not wait, if the consumer gives no message out before one has its ack.

        nats-server 2.15.1 answers such a pull neither with messages nor with a status, and keeps it.
        """
        while True:
            await asyncio.sleep(_STALL)
            heard = self._heard
            if not self._nc.is_connected or self._loop.time() - heard < _STALL:
                continue
            try:
                info = await self._source.info(timeout=_LOOK_UP)
            except (CallTimeoutError, TransportError):
                continue
            except LiftEnvelopeError:
                return  # the status of the pull, or its time, tells more
            if 0 < (info.config.max_ack_pending or 0) <= info.num_ack_pending and heard == self._heard:
                self._finish(None)

    def _send(self) -> None:
        """Publish the pull, or a pull for the remaining messages and time."""
        if self._retry is not None:
            self._retry.cancel()  # restored() may send the pull before it is due
            self._retry = None
        if self._done.done() or not self._nc.is_connected:
            return  # restored() sends the pull; nats-py would buffer this one and send it as well
        left = None
        if self._number or self._trusted_until:  # the first pull has the whole time
            left = max(self._deadline - self._loop.time(), _LEAST)
        self._pin_id = self._pins.get(self._group) if self._plan.limits.pinned else None
        payload = self._plan.payload(self._left, self._pin_id, left)
        self._sent_at = self._loop.time()
        try:
            self._number = self._inbox.send(self._source.pull_subject, payload)
        except TransportError as exc:
            self._finish(ConnectionClosedError(str(exc)))

    def _send_later(self) -> None:
        """Publish the pull after a pause, unless that is planned already."""
        if self._retry is None:
            self._retry = self._loop.call_later(_PAUSE, self._send)

    def take(self, messages: list[Message]) -> None:
        """Handle messages that arrived at the inbox."""
        self._heard = self._message_at = self._loop.time()
        limits = self._plan.limits
        for message in messages:
            if self._done.done():
                give_back([message])
                continue
            if limits.pinned and (pin_id := message.headers.get(PIN_HEADER)) is not None:
                self._pins[self._group] = pin_id
                message._size = counted_size(message)
            self.batch.append(message)
            self._left -= message._size if limits.in_bytes else 1
            if self._left <= 0:
                # The server sends no status for a filled pull. It may count fewer bytes than this side, for
                # example of headers that are not UTF-8, and then keeps the pull open.
                self.is_clean = not limits.in_bytes
                self._finish(None)

    def take_status(self, number: int, headers: Mapping[str, str]) -> None:
        """Handle a status that arrived for the pull with this number; ignore one of an earlier pull."""
        self._heard = self._loop.time()
        if number == self._number:
            self._take_status(Status.from_headers(headers))

    def _take_status(self, status: Status) -> None:
        kind = status.kind
        if kind is StatusKind.HEARTBEAT:
            return
        if kind is StatusKind.WRONG_PIN:
            if self._pins.get(self._group) == self._pin_id:
                self._pins.pop(self._group, None)
            if self._pin_id is None:  # a sound server refuses no pull for a pin that it has not
                self._send_later()
            else:
                self._send()
            return
        now = self._loop.time()
        if kind in (StatusKind.LEADERSHIP, StatusKind.SHUTDOWN):
            self._trust()
        if kind in _LEADERLESS and now < self._deadline:
            if now >= self._trusted_until:
                self._look_up = self._loop.create_task(self._check_consumer(self._number))
            else:
                self._send_later()
            return
        if self._again and status.code == _TIMEOUT and self._deadline - now > _LEAST:
            # A pull may expire before the fetch does: max_expires, or the time that keeps a pin.
            if now - self._sent_at < self._plan.limits.expires / 2:
                self._send_later()  # avoids a busy loop with a server that ends every pull at once
            else:
                self._send()
            return
        self.is_clean = True
        self._finish(None if kind in _QUIET else error_of(status))

    def _trust(self) -> None:
        """Expect that no server takes pulls for a while, although the consumer exists."""
        self._trusted_until = self._loop.time() + _TRUSTED

    async def _check_consumer(self, number: int) -> None:
        """Pull again if the consumer exists; end the fetch otherwise.

        In a cluster, a server may answer 503 to pulls for a moment after another one has created the consumer
        and reported it, until it learns that the consumer's leader takes pulls.

        Args:
            number: Number of the pull that no server took.
        """
        is_there, cause = True, ""
        try:
            await self._source.info(timeout=_LOOK_UP if self._trusted_until else None)
        except (ConsumerNotFoundError, StreamNotFoundError) as exc:
            is_there, cause = False, exc.description
        except (JetStreamError, CallTimeoutError, TransportError) as exc:
            cause = f"the consumer could not be looked up ({exc})"
            is_there = self._trusted_until > 0  # between two leaders, no server knows the consumer's state
        if number != self._number or not self._nc.is_connected:
            return  # another pull was sent after a reconnect, or will be
        if not is_there:
            self.is_clean = True
            self._finish(NoJetStreamError(_NO_RESPONDERS, f"nothing answers pulls: {cause}"))
        elif self._retry is None:
            self._trust()
            self._heard = self._loop.time()
            self._retry = self._loop.call_later(_PAUSE, self._send)

    def _finish(self, error: LiftEnvelopeError | None) -> None:
        if not self._done.done():
            self.batch.error = error
            self._done.set_result(None)

    # Connection events

    def lost(self) -> None:
        """Handle a lost connection: the pull is lost with it, and ``restored`` sends another."""

    def restored(self) -> None:
        """Handle a restored connection: pull the remaining messages."""
        self._trust()
        self._heard = self._loop.time()
        self._send()

    def gone(self, reason: str) -> None:
        """Handle a connection that was closed or is draining: end the fetch with an error."""
        self._finish(ConnectionClosedError(reason))


def first_of(batch: Batch, wait: float) -> Message:
    """Return the message of a fetch that asked for one.

    Raises:
        CallTimeoutError: The batch is empty.
    """
    if batch:
        return batch[0]
    raise CallTimeoutError(f"no message came within {wait} s")
