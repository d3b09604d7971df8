"""Ack inbox: one subscription for the acks of any number of publishes in flight."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, Unpack, overload

from liftenvelope._checks import as_count, as_integer, as_seconds
from liftenvelope.correlation import Ended, PendingAcks, PendingStats, Stray
from liftenvelope.envelope import Ack, AckPolicy, new_message, unmarshal_ack
from liftenvelope.errors import (
    AckTimeoutError,
    EnvelopeError,
    EnvelopeTooLargeError,
    TransportError,
    UsageError,
)
from liftenvelope.nats._ack_future import AckFuture, EnvelopeOptions, Settled
from liftenvelope.nats._event_log import log
from liftenvelope.nats._feed import AckFeed
from liftenvelope.nats._in_flight import InFlight, in_flight, subject_sent
from liftenvelope.nats._outbox import EnvelopeOutbox
from liftenvelope.nats._outcomes import failure_of, outcome_of
from liftenvelope.nats.expiry import ExpiryTimer
from liftenvelope.nats.link import Link, last_error_of, max_payload_of
from liftenvelope.nats.receiving import DirectSubscription, deliver_directly, subscribe_direct
from liftenvelope.nats.refusals import RefusalWatch
from liftenvelope.nats.subjects import publish_subject
from liftenvelope.nats.subscribing import Subscribing, subscribing_on

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from typing_extensions import Buffer

__all__ = ["AckInbox"]


class AckInbox:
    """Publishes envelopes and correlates their acks, on an existing NATS connection.

    The connection stays the caller's: it is never closed, and its callbacks are not touched. One subscription
    exists from :meth:`start` to :meth:`close`; ``async with`` calls both. Pending publishes survive a
    reconnect until their deadlines. When the connection is closed or drained, all pending publishes fail at
    once. Use an inbox from the event loop's thread only.

    Args:
        nc: A connected nats-py client.
        subject: Subject that acks are sent to. Default: a unique inbox.
        timeout: Default time to wait for an ack, in seconds. Default 5.
        max_outstanding: Number of publishes that may be in flight without an ack; further ones are queued.
            Default 65,536.
        on_stray: Called with each ack that no publish waits for, and the reason: late, duplicate or unknown.
            An exception from ``on_stray`` goes to the event loop's exception handler.

    Raises:
        UsageError: ``max_outstanding`` or ``timeout`` is not positive, or ``subject`` is not a subject.

    Example::

        async with AckInbox(nc) as inbox:
            ack = await inbox.publish("sensors.temperature", b"21.5", key=b"sensor-1")
            print(ack.stream, ack.offset)
    """

    def __init__(
        self,
        nc: Client,
        *,
        subject: str | None = None,
        timeout: float = 5.0,
        max_outstanding: int = 65_536,
        on_stray: Callable[[Ack, Stray], None] | None = None,
    ) -> None:
        #: The caller's connection.
        self.nc = nc
        self._link = Link(nc)
        self.subject = self._link.new_inbox() if subject is None else publish_subject(subject)
        self.timeout = as_seconds("timeout", timeout)
        self.max_outstanding = as_count("max_outstanding", max_outstanding)
        #: Number of received messages that are not valid acks.
        self.malformed = 0
        self._on_stray = on_stray
        self._pending = PendingAcks(
            on_stray=None if on_stray is None else self._stray, remember=max(max_outstanding, 65_536)
        )
        self._outbox = EnvelopeOutbox(self._link, self.max_outstanding, self._refuse)
        self._feeds: list[weakref.ref[AckFeed]] = []
        self._timer = ExpiryTimer(nc, self._pending.next_expiry, self._expire)
        self._refusals = RefusalWatch(nc, partial(in_flight, self._pending), self._fail_refused)
        self._watcher: asyncio.Task[None] | None = None
        self._subscription: DirectSubscription | None = None
        self._ended: str | None = "the ack inbox has not been started: use async with"

    async def start(self) -> Self:
        """Subscribe. Called by ``async with``.

        Raises:
            TransportError: The connection is closed or draining, or is lost during the call.
            PermissionDeniedError: The user may not subscribe to the inbox, so no ack would ever arrive.
            UsageError: The inbox was started before.
        """
        async with subscribing_on(self.nc, self.subject) as subscribing:
            await self._start(subscribing)
        return self

    async def _start(self, subscribing: Subscribing) -> None:
        if self._subscription is not None:
            raise UsageError("the ack inbox was started before: make a new one")
        self._link.check_open()
        self._loop = asyncio.get_running_loop()
        self._subscription = await subscribe_direct(self.nc, self.subject, self._on_acks, payloads=True)
        deliver_directly(self._subscription.subscription, self._on_ack)  # acks need no order
        self._watcher = self._link.when_ended(self._subscription.subscription, self._on_ended)
        self._refusals.start()
        self._ended = None
        try:
            if self._link.is_connected:  # otherwise the reconnect makes the subscription
                await self._link.barrier(self.timeout)  # then acks of other connections' publishes arrive
                subscribing.check()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Unsubscribe and fail all pending publishes with a TransportError. Idempotent."""
        if self._subscription is None or self._ended is not None:
            self._stop_tasks()
            return
        self._end("the ack inbox was closed")
        await self._subscription.unsubscribe()

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until every publish has an ack, an error or a timeout.

        Raises:
            TimeoutError: Publishes are still pending after ``timeout`` seconds. None, the default, waits
                until the publishes' own timeouts.
        """
        if timeout is not None:
            as_seconds("timeout", timeout, zero=True)
        async with asyncio.timeout(timeout):
            while len(self._pending):
                await self._outbox.until_freed(self.max_outstanding)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    async def publish(  # type: ignore[overload-overlap]  # only expected=1 returns a single Ack
        self,
        subject: str,
        value: Buffer,
        *,
        expected: Literal[1] = 1,
        timeout: float | None = None,
        **options: Unpack[EnvelopeOptions],
    ) -> Ack: ...
    @overload
    async def publish(
        self,
        subject: str,
        value: Buffer,
        *,
        expected: int | None,
        timeout: float | None = None,
        **options: Unpack[EnvelopeOptions],
    ) -> tuple[Ack, ...]: ...
    async def publish(
        self,
        subject: str,
        value: Buffer,
        *,
        expected: int | None = 1,
        timeout: float | None = None,
        **options: Unpack[EnvelopeOptions],
    ) -> Ack | tuple[Ack, ...]:
        """Publish an envelope and wait for its ack.

        Args:
            subject: NATS subject that a stream records.
            value: Payload, any bytes-like object.
            expected: Number of acks to wait for: the number of streams that record the subject. None
                collects acks until the timeout. Default 1.
            timeout: Seconds to wait. Default: the timeout of the inbox.
            options: ``key``, ``headers``, ``correlation_id``, ``ack_policy``, ``expected_offset``, ``crc``:
                see :func:`liftenvelope.envelope.new_message`. The ack policy NONE is refused.

        Returns:
            The ack. If ``expected`` is not 1, a tuple of acks in order of arrival; the caller must check
            their errors.

        Raises:
            PublishError: The ack reports that the message was not stored.
            PermissionDeniedError: The user may not publish on the subject; nothing was stored.
            AckTimeoutError: No ack arrived. Unless ``sent`` is false, the outcome is unknown.
            TransportError: The connection is closed or draining, or ended while the ack was awaited.
            UsageError: An option is invalid; nothing was sent.
            EnvelopeTooLargeError: The message is larger than the server accepts; nothing was sent.
        """
        future = self.publish_nowait(subject, value, expected=expected, timeout=timeout, **options)
        result: Ack | tuple[Ack, ...] = await future
        return result

    def publish_nowait(
        self,
        subject: str,
        value: Buffer,
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        correlation_id: str | None = None,
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
        expected_offset: SupportsIndex = -1,
        crc: bool = False,
        expected: int | None = 1,
        timeout: float | None = None,
    ) -> AckFuture:
        """Publish an envelope without waiting, and return the future of its ack.

        If ``max_outstanding`` publishes are in flight or the connection's buffer is full, the envelope is
        queued and sent in order; nothing is dropped. Await :meth:`capacity` in a loop that publishes many
        messages, because the queue is unbounded.

        Args, errors: As for :meth:`publish`. The future raises the errors of the outcome.
        """
        head = self._outbox.head_of(subject)
        if ack_policy == AckPolicy.NONE:
            raise UsageError(
                "ack_policy must be LEADER or ALL, got NONE, which gets no ack: use an EnvelopePublisher"
            )
        future = self.expect(correlation_id, expected=expected, timeout=timeout)
        try:
            payload = new_message(
                value,
                key=key,
                headers=headers,
                ack_inbox=self.subject,
                correlation_id=future.correlation_id,
                ack_policy=ack_policy,
                expected_offset=expected_offset,
                crc=crc,
            )
            if len(payload) > (limit := max_payload_of(self.nc)):
                raise EnvelopeTooLargeError(f"the envelope must be at most {limit} bytes, got {len(payload)}")
            future.sent, future.subject = False, subject
            self._outbox.send(future, head, payload)
        except BaseException:
            self._pending.cancel(future.correlation_id)
            raise
        return future

    def expect(
        self, correlation_id: str | None = None, *, expected: int | None = 1, timeout: float | None = None
    ) -> AckFuture:
        """Return the future of the ack of an envelope that the caller builds and publishes.

        Call this before publishing the envelope, and give the envelope :attr:`subject` as ``ack_inbox`` and
        the future's ``correlation_id``. Such publishes do not count towards ``max_outstanding``.

        Args:
            correlation_id: Correlation id of the ack. Default: a new one.
            expected: As for :meth:`publish`.
            timeout: Seconds to wait. Default: the timeout of the inbox.

        Raises:
            UsageError: The id is already in flight, or an option is invalid.
            TransportError: The inbox or its connection has ended.
        """
        self._check_started()
        deadline = self._loop.time() + (self.timeout if timeout is None else as_seconds("timeout", timeout))
        future = AckFuture(loop=self._loop)
        future._inbox = self
        future.sent, future._counted, future.subject = True, False, None
        future._before = self.nc.last_error
        future.correlation_id = self._pending.register(
            correlation_id, deadline=deadline, expected=expected, context=future
        )
        if deadline < self._timer.at:
            self._timer.rearm()
        return future

    async def capacity(self, wanted: int = 1) -> int:
        """Wait until ``wanted`` more publishes can be sent without queueing.

        Returns:
            Number of publishes that can be sent now, at least ``wanted``.

        Raises:
            UsageError: ``wanted`` is more than ``max_outstanding``.
            TransportError: The inbox or its connection has ended.
        """
        if not 1 <= as_integer("wanted", wanted) <= self.max_outstanding:
            raise UsageError(
                f"wanted must be from 1 to max_outstanding, {self.max_outstanding}, got {wanted}"
            )
        while self._ended is None:
            if (free := self._outbox.free) >= wanted:
                return free
            await self._outbox.until_freed(self.max_outstanding - wanted)
        raise TransportError(self._ended)

    @property
    def outstanding(self) -> int:
        """Number of publishes sent and waiting for their acks."""
        return self._outbox.outstanding

    @property
    def stats(self) -> PendingStats:
        """Counts of registered, completed and expired publishes, and of late, duplicate and unknown acks."""
        return self._pending.stats

    def __aiter__(self) -> AckFeed:
        """Iterate over all acks from now on, matched or not, for callers that correlate acks themselves.

        The iteration ends when the inbox is closed, and raises TransportError when its connection ends.
        """
        feed = AckFeed(self._ended)
        self._feeds.append(weakref.ref(feed, self._feeds.remove))
        return feed

    def register_batch(
        self, batch: Settled, first: int, count: int, ids: list[str] | None, timeout: float
    ) -> list[str]:
        """Expect one ack for each of ``count`` messages of a batch, and return their correlation ids.

        :class:`EnvelopePublisher` sends the messages next. Their indexes start at ``first``. Each message is
        outstanding until ``batch.settle(index, ack or error)`` was called for it.
        """
        self._check_started()
        deadline = self._loop.time() + timeout
        contexts = list(zip(repeat(batch), range(first, first + count), strict=False))
        if ids is None:
            ids = self._pending.register_many(contexts, deadline=deadline)
        else:
            self._pending.register_ids(ids, contexts, deadline=deadline)
        self._outbox.outstanding += count
        if deadline < self._timer.at:
            self._timer.rearm()
        return ids

    def withdraw_batch(self, ids: list[str]) -> None:
        """Remove messages of :meth:`register_batch` that were never sent."""
        self._outbox.release(sum(map(self._pending.cancel, ids)))

    def _check_started(self) -> None:
        if self._ended is not None:
            raise TransportError(self._ended)

    # Acks

    def _on_ack(self, msg: Msg) -> None:
        """Take an ack that nats-py has parsed."""
        assert self._subscription is not None
        self._subscription.handler([msg.data])  # nobody's once the inbox is closed

    def _on_acks(self, payloads: list[bytes]) -> None:
        resolve, settled = self._pending.resolve, 0
        for payload in payloads:
            try:
                ack = unmarshal_ack(payload)
            except EnvelopeError:
                self.malformed += 1
                continue
            if (done := resolve(ack)) is not None:
                context, result = done
                if type(context) is tuple:
                    settled += 1
                    context[0].settle(context[1], result)
                else:
                    self._settle(context, outcome_of(result))
            if self._feeds:
                self._feed(ack)
        self._outbox.release(settled)

    def _feed(self, ack: Ack) -> None:
        for feed in [ref() for ref in self._feeds]:
            if feed is not None:
                feed.put(ack)

    def _settle(self, future: AckFuture, outcome: Any) -> None:
        """Complete a future whose entry just left the table: the future can't have been cancelled."""
        self._outbox.release(future._counted)
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _settle_row(self, row: tuple[Settled, int], error: Exception) -> None:
        """Record the error of a message of a batch, whose entry just left the table."""
        row[0].settle(row[1], error)
        self._outbox.release(1)

    def _refuse(self, future: AckFuture, error: TransportError) -> None:
        """Fail a publish that was queued and can't be sent."""
        if self._pending.cancel(future.correlation_id):
            self._settle(future, error)

    def _fail_refused(self, entry: InFlight, error: Exception) -> None:
        """Fail a message that the server does not let the user publish."""
        correlation_id, context = entry
        self._pending.cancel(correlation_id)
        if isinstance(context, tuple):
            self._settle_row(context, error)
        else:
            self._settle(context, error)

    def _give_up(self, future: AckFuture) -> None:
        if self._pending.cancel(future.correlation_id):
            self._outbox.release(future._counted)
            self._refusals.ended(subject_sent(future))

    def _stray(self, ack: Ack, kind: Stray) -> None:
        assert self._on_stray is not None
        try:
            self._on_stray(ack, kind)
        except Exception as exc:  # noqa: BLE001 - an error in the user's callback must not lose later acks
            self._loop.call_exception_handler({"message": "on_stray of an AckInbox failed", "exception": exc})

    # Timeouts and ends

    def _expire(self, now: float) -> None:
        for entry in self._pending.expire(now):
            if not entry.acks:
                self._refusals.ended(subject_sent(entry.context))
            self._finish(entry, None)

    def _finish(self, entry: Ended, reason: str | None) -> None:
        """Complete an entry that has left the table: at its deadline (``reason`` None) or early."""
        context = entry.context
        if type(context) is tuple:
            batch, index = context
            error = self._failure(entry, batch.subject(index), True, reason, batch.before)
            self._settle_row(context, error)
        elif entry.complete:
            self._settle(context, entry.acks)
        else:
            error = self._failure(entry, context.subject, context.sent, reason, context._before)
            self._settle(context, error)

    def _failure(
        self, entry: Ended, subject: str | None, sent: bool, reason: str | None, before: Exception | None
    ) -> AckTimeoutError | TransportError:
        refusal = self._link.refusal(subject or ">", self.subject, since=before)
        return failure_of(entry, subject, sent, reason, refusal)

    def _on_ended(self) -> None:
        """Handle a subscription that the connection has ended."""
        if self._ended is None:
            told = {"inbox": self.subject, "pending": len(self._pending)}
            level = logging.WARNING if self._pending else logging.INFO
            log.log(level, "%(inbox)s ended with its connection, %(pending)d without ack", told, extra=told)
            why = last_error_of(self.nc)
            self._end(f"the NATS connection was given up, closed or drained{why}", failed=True)

    def _end(self, reason: str, *, failed: bool = False) -> None:
        self._ended = reason
        self._stop_tasks()
        for entry in self._pending.fail_all(TransportError(reason)):
            self._finish(entry, reason)
        for ref in list(self._feeds):
            if (feed := ref()) is not None:
                feed.end(TransportError(reason) if failed else None)
        self._outbox.wake()

    def _stop_tasks(self) -> None:
        self._refusals.stop()
        self._outbox.close()
        if self._watcher is not None and self._watcher is not asyncio.current_task():
            self._watcher.cancel()
        self._timer.stop()
