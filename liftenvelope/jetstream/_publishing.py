"""Publish to JetStream. One inbox receives the acks of all messages in flight."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

import nats.errors

from liftenvelope._checks import as_bytes, as_count, as_seconds
from liftenvelope._deadlines import MAY_BE_STORED, ack_timeout
from liftenvelope._native import jet
from liftenvelope.errors import JetStreamError, NoJetStreamError, TransportError, UsageError
from liftenvelope.jetstream.api import ENABLE_JETSTREAM, Api
from liftenvelope.jetstream.publish_frames import (
    HeaderFields,
    PubAck,
    PublishOptions,
    header_block,
    header_pairs,
    option_headers,
    read_ack,
    status_error,
)
from liftenvelope.nats.expiry import ExpiryTimer
from liftenvelope.nats.headers import check_takes_headers
from liftenvelope.nats.link import Link, last_error_of, max_payload_of
from liftenvelope.nats.receiving import DirectSubscription, deliver_directly, read_directly
from liftenvelope.nats.refusals import RefusalWatch
from liftenvelope.nats.subjects import CommandHeads

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from typing_extensions import Buffer

__all__ = ["PublishFuture", "Publishing"]

_UNKNOWN: Final = f"{MAY_BE_STORED} unless it has a message_id"
#: Possible causes of a missing ack. A subject without a stream is not one: the server reports that at once.
_CAUSES: Final = (
    "the stream has no leader or its leader is slow or unreachable; "
    "the stream has no_ack=True; a subscriber, but no stream, takes the subject"
)

#: Most bytes of a command besides its start, headers and payload: token, two sizes, blanks and line ends.
_FRAMING: Final = 64

#: Kept for retries of a message that no server took (status 503): deadline, start of the command, headers,
#: payload, retries left, seconds before each. An exact tuple, because a named one costs 0.2 us per publish.
_Kept = tuple[float, bytes, bytes, bytes, int, float]


class PublishFuture(asyncio.Future[PubAck]):
    """Future of the ack of one message.

    Attributes:
        subject: Subject of the message.
    """

    __slots__ = ("before", "kept", "subject")

    subject: str
    before: Exception | None  # last error of the connection before the publish
    kept: _Kept | None  # None if the message is not sent again

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the future, and forget the payload that was kept for retries."""
        self.kept = None
        return super().cancel(msg)


class _Lines:
    """Headers in the form that nats-py reads: only ``items()``, in which a name may occur several times."""

    def __init__(self, block: bytes) -> None:
        self._lines = block.decode().split("\r\n")[1:-2]

    def items(self) -> list[list[str]]:
        """Return pairs of name and value."""
        return [line.split(": ", 1) for line in self._lines]


class Publishing:
    """Publishing half of :class:`~liftenvelope.jetstream.JetStream`.

    Every message has a token, and its reply subject is ``<inbox>.<token>``. ``_table`` holds the future of
    each message in flight by token, until an ack, the deadline or the end of the subscription settles it.
    ``_retries`` holds the messages that wait for a retry. Both count against ``max_outstanding``.

    Invariant: messages are sent in the order of the calls. A message that finds no room waits in ``_line``,
    and only the first in line looks for room. While the line is not empty (``_in_line``), no message takes
    the quick path, which would overtake it.

    Args:
        api: JetStream API on the user's connection.
        timeout: Default time to wait for an ack, in seconds.
        max_outstanding: Maximum number of messages without an ack.
    """

    def __init__(self, api: Api, *, timeout: float, max_outstanding: int) -> None:
        max_outstanding = as_count("max_outstanding", max_outstanding)
        self.api = api
        self._nc = api.nc
        self._link = Link(api.nc)
        self._ack_timeout = as_seconds("timeout", timeout)
        self.max_outstanding = max_outstanding
        self._inbox = self._link.new_inbox() + "."
        self._heads = CommandHeads(self._inbox)
        self._table = jet.PublishTable(self._inbox, jet.AckReader(PubAck, read_ack), self._refused)
        #: The quick path; None before the first publish, after the end, and if the link does not allow it.
        self._quick: jet.QuickSender | None = None
        self._subscription: DirectSubscription | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timer = ExpiryTimer(api.nc, self._table.next_expiry, self._expire)
        self._refusals = RefusalWatch(api.nc, self._in_flight, self._refuse)
        self._waiting = False
        #: Futures of the messages that wait for a retry, by the task that retries.
        self._retries: dict[asyncio.Task[None], PublishFuture] = {}
        self._freed = asyncio.Event()
        self._line = asyncio.Lock()  # wakes its waiters in the order in which they came
        self._in_line = 0
        #: Time when the line last moved: the first in line got a place, or room in the buffer.
        self._moved = -math.inf
        self._ended: str | None = None

    async def publish(
        self,
        subject: str,
        payload: Buffer = b"",
        *,
        headers: HeaderFields | None = None,
        timeout: float | None = None,
        retry_attempts: int = 2,
        retry_wait: float = 0.25,
        **options: Unpack[PublishOptions],
    ) -> PubAck:
        """Publish a message and wait until it is stored.

        Args:
            subject: Subject that a stream records.
            payload: Any bytes-like object. Default: empty.
            headers: Mapping from each name to a value, or to a list of values for a repeated name.
            timeout: Seconds to wait for the ack, including retries. Default: the timeout of the context.
            retry_attempts: Number of retries if no server takes the message (status 503), for example during
                a leader election. In that case nothing was stored. A message whose ack is missing is never
                published again. Default 2; 0 disables retries.
            retry_wait: Seconds before each retry. Default 0.25.
            options: ``message_id``, ``expected_stream``, ``expected_last_sequence``,
                ``expected_last_subject_sequence``, ``expected_last_subject_filter``,
                ``expected_last_message_id``, ``ttl``: see :class:`PublishOptions`.

        Raises:
            WrongLastSequenceError, WrongLastMessageIdError, WrongStreamError: An expectation failed; nothing
                was stored.
            JetStreamError: The server refused for another reason; nothing was stored.
            NoJetStreamError: No stream records the subject, or JetStream is not enabled; nothing was stored.
            PermissionDeniedError: The user may not publish on the subject; nothing was stored.
            AckTimeoutError: No ack arrived. Unless ``sent`` is false, the message may be stored.
            TransportError: The connection is closed, or was closed before the ack arrived; ``sent`` is true
                in the latter case.
            UsageError: An argument is invalid; nothing was sent.
            UnsupportedByServerError: The message has headers, and the server takes none; nothing was sent.

        Example::

            ack = await js.publish("orders.new", b"...", message_id="order-17")
            print(ack.stream, ack.sequence)
        """
        future = await self.publish_async(
            subject,
            payload,
            headers=headers,
            timeout=timeout,
            retry_attempts=retry_attempts,
            retry_wait=retry_wait,
            **options,
        )
        try:
            return await future
        except NoJetStreamError as exc:
            if exc.code != 503 or exc.err_code:
                raise
            text = f"no stream records the subject {subject!r}, or its leader is being elected"
            if not await self.api.is_enabled():
                text = f"JetStream is not enabled, so nothing stores {subject!r}: {ENABLE_JETSTREAM}"
            raise NoJetStreamError(503, text) from exc

    async def publish_async(
        self,
        subject: str,
        payload: Buffer = b"",
        *,
        headers: HeaderFields | None = None,
        timeout: float | None = None,
        retry_attempts: int = 2,
        retry_wait: float = 0.25,
        **options: Unpack[PublishOptions],
    ) -> PublishFuture:
        """Publish a message without waiting for the ack, and return the future of the ack.

        The call waits only while ``max_outstanding`` messages are without an ack, or while the connection's
        buffer is full. The timeouts of the messages in flight bound the first wait. ``timeout`` bounds the
        second, and then the wait for the ack. Messages are sent in the order of the calls: a call also waits
        for those before it, which may have longer timeouts. A retried message follows the messages
        that were sent meanwhile, so set ``retry_attempts=0`` if the order matters. The event loop reports a
        failed future that no task awaits. Cancelling a future does not recall its message.

        Args, errors: As for :meth:`publish`. The future raises the errors that occur after sending.

        Example::

            futures = [await js.publish_async("orders.new", order) for order in orders]
            acks = await asyncio.gather(*futures)
        """
        body = payload if type(payload) is bytes else as_bytes("payload", payload)
        block = b""
        if headers or options:
            check_takes_headers(self._nc)
            block = header_block(header_pairs(headers or {}, option_headers(options)))
        seconds = self._ack_timeout if timeout is None else as_seconds("timeout", timeout)
        if retry_attempts != 2 or retry_wait != 0.25:
            _check_retries(retry_attempts, retry_wait)
        if self._quick is not None and not self._in_line:
            future = self._quick.send(subject, body, block, seconds, retry_attempts, retry_wait)
            if future is not None:
                return cast(PublishFuture, future)
        return await self._send(subject, body, block, seconds, retry_attempts, retry_wait)

    async def _send(
        self, subject: str, body: bytes, block: bytes, seconds: float, attempts: int, wait: float
    ) -> PublishFuture:
        """Check a message, wait for room and send it: the full path, for what the quick one does not take."""
        size = len(block) + len(body)
        if size > (limit := max_payload_of(self._nc)):
            raise UsageError(f"the message must be at most {limit} bytes, the server's limit, got {size}")
        head = self._heads.of(subject)
        called = asyncio.get_running_loop().time()
        self._in_line += 1
        try:
            async with self._line:
                if self._subscription is None or self._ended is not None:
                    await self._start()
                await self._room(len(head) + size + _FRAMING, called, seconds)
        finally:
            self._in_line -= 1
        # No await from here to the write: the next in line must find this message in the table.
        future = PublishFuture(loop=self._loop)
        future.subject, future.before = subject, self._nc.last_error
        deadline = self._loop.time() + seconds  # the wait for room does not count
        future.kept = (deadline, head, block, body, attempts, wait) if attempts else None
        await self._write(future, deadline, head, block, body)
        return future

    def _withdraw(self, token: str) -> None:
        """Remove a message that was not sent."""
        if self._table.withdraw(token) and self._waiting:
            self._wake()

    async def _write(
        self, future: PublishFuture, deadline: float, head: bytes, block: bytes, body: bytes
    ) -> None:
        """Enter a message in the table of pending acks, and send it."""
        frame = self._table.enter(future, deadline, head, block, body)
        token = self._table.token
        if deadline < self._timer.at:
            self._timer.rearm()
        try:
            if self._link.direct:
                self._link.write(frame, 1, len(block) + len(body))
            else:
                await self._publish_slowly(future.subject, token, body, block)
        except BaseException:
            self._withdraw(token)
            raise

    async def publish_async_complete(self, timeout: float | None = None) -> None:
        """Wait until every message has an ack, an error or a timeout.

        Args:
            timeout: Seconds to wait. None, the default, waits until the messages' own timeouts.

        Raises:
            TimeoutError: Messages are still pending after ``timeout`` seconds.
        """
        async with asyncio.timeout(timeout):
            while self._table or self._retries:
                await self._until_freed()

    @property
    def publish_async_pending(self) -> int:
        """Number of messages without an ack."""
        return len(self._table) + len(self._retries)

    # Sending

    async def _start(self) -> None:
        """Subscribe to the acks. Called by the first publish, which is the first in line."""
        self._check_open()
        self._link.check_open()
        self._loop = asyncio.get_running_loop()
        # No barrier needed: the server reads the subscription before the messages that follow it.
        subscription = await self._link.subscribe(self._inbox + "*", self._on_message)
        try:
            self._check_open()
        except TransportError:  # closed meanwhile
            await self._link.unsubscribe(subscription)
            raise
        deliver_directly(subscription, self._on_ack)
        self._subscription = read_directly(self._nc, subscription, self._on_acks)
        self._refusals.start()
        self._watcher = self._link.when_ended(subscription, self._on_ended)
        if self._link.buffers_directly:
            self._quick = self._quick_sender()

    def _quick_sender(self) -> jet.QuickSender:
        # asyncio's own loops return this clock, and compiled code calls it in half the time of the method.
        is_own = getattr(self._loop.time, "__func__", None) is asyncio.BaseEventLoop.time
        return jet.QuickSender(
            self._table,
            self._nc,
            PublishFuture,
            self._loop,
            self._timer,
            clock=time.monotonic if is_own else self._loop.time,
            heads=self._heads.known,
            retries=self._retries,
            max_outstanding=self.max_outstanding,
        )

    def _check_open(self) -> None:
        if self._ended is not None:
            raise TransportError(self._ended)

    async def _room(self, size: int, called: float, seconds: float) -> None:
        """Wait until the first in line may be sent.

        Args:
            size: Bytes of the command, at most.
            called: Time of the call.
            seconds: Longest wait for room in the buffer, from the call or the time when the line last moved.
                So the wait for a place does not count, and messages that wait for the same full buffer fail
                together, not one after the other.
        """
        while len(self._table) + len(self._retries) >= self.max_outstanding:
            # Bounded by the timeouts of the messages in flight.
            await self._until_freed()
            self._moved = self._loop.time()
        self._check_open()
        if not self._link.fits(size):
            await self._link.room(size, max(called, self._moved) + seconds)
            self._check_open()
        self._moved = self._loop.time()

    async def _publish_slowly(self, subject: str, token: str, body: bytes, block: bytes) -> None:
        """Publish by nats-py's public method, for versions whose private names are unknown."""
        headers: Any = _Lines(block) if block else None
        try:
            await self._nc.publish(subject, body, reply=self._inbox + token, headers=headers)
        except nats.errors.Error as exc:
            raise TransportError(f"nats-py could not publish: {exc}") from exc

    async def _until_freed(self) -> None:
        self._freed.clear()
        self._waiting = True
        await self._freed.wait()

    def _wake(self) -> None:
        self._waiting = False
        self._freed.set()

    # Acks

    async def _on_message(self, msg: Msg) -> None:
        self._on_ack(msg)

    def _on_ack(self, msg: Msg) -> None:
        if self._table.settle_one(msg.subject, msg.headers, msg.data) and self._waiting:
            self._wake()

    def _on_acks(self, messages: list[tuple[str, bytes, bytes | None, bytes]]) -> None:
        """Take the acks of a whole read, on an accelerated connection."""
        if self._table.settle(messages) and self._waiting:
            self._wake()

    # Retries

    def _refused(self, future: PublishFuture, headers: Mapping[str, str] | bytes) -> JetStreamError | None:
        """Return the error of a refused message, or None if a retry was scheduled."""
        error = status_error(headers, future.subject)
        kept = future.kept
        if not isinstance(error, NoJetStreamError) or kept is None:
            return error
        deadline, *_, attempts, wait = kept
        if attempts < 1 or self._loop.time() + wait >= deadline:
            return error
        task = self._loop.create_task(self._retry(future, wait, error))
        self._retries[task] = future
        task.add_done_callback(self._retried)
        return None

    async def _retry(self, future: PublishFuture, wait: float, error: NoJetStreamError) -> None:
        await asyncio.sleep(wait)
        if future.done() or future.kept is None:  # cancelled by the caller meanwhile
            return
        deadline, head, block, body, attempts, wait = future.kept
        if self._loop.time() >= deadline:  # the loop was busy: what is known must not become unknown
            self._fail(future, error)
            return
        future.kept = (deadline, head, block, body, attempts - 1, wait)
        try:
            await self._link.room(len(head) + len(block) + len(body) + _FRAMING, deadline)
            if not future.done():
                await self._write(future, deadline, head, block, body)
        except TransportError as exc:
            text = f"the message on {future.subject!r} is not stored: no server took it, and then {exc}"
            self._fail(future, TransportError(text))

    def _retried(self, task: asyncio.Task[None]) -> None:
        del self._retries[task]
        if self._waiting:
            self._wake()

    # Timeouts and ends

    def _expire(self, now: float) -> None:
        for future, token in self._table.expire(now):
            self._refusals.ended(future.subject)
            what = f"the message on {future.subject!r}"
            causes = _CAUSES + self._link.refusal(future.subject, since=future.before)
            self._fail(future, ack_timeout(what, token, unknown=_UNKNOWN, causes=causes))

    def _in_flight(self) -> list[tuple[str, tuple[PublishFuture, str]]]:
        return [(message[0].subject, message) for message in self._table.waiting()]

    def _refuse(self, message: tuple[PublishFuture, str], error: Exception) -> None:
        """Fail a message that the server does not let the user publish."""
        future, token = message
        self._table.withdraw(token)
        self._fail(future, error)

    def _fail(self, future: PublishFuture, error: Exception) -> None:
        if self._waiting:
            self._wake()
        future.kept = None
        if not future.done():
            future.set_exception(error)

    def _on_ended(self) -> None:
        """Handle a subscription that the connection has ended."""
        if self._ended is None:
            self._end(f"the NATS connection was given up, closed or drained{last_error_of(self._nc)}")

    def _end(self, reason: str) -> None:
        self._ended, self._quick = reason, None
        self._timer.stop()
        self._refusals.stop()
        for future, _ in self._table.expire_all():
            what = f"{reason} before an ack came for the message on {future.subject!r}: {_UNKNOWN}"
            self._fail(future, TransportError(what, sent=True))
        for task, future in self._retries.items():
            task.cancel()
            self._fail(future, TransportError(f"{reason}; the message on {future.subject!r} is not stored"))
        self._wake()

    async def _close_publishing(self) -> None:
        """Unsubscribe and fail every message without an ack."""
        subscription, ended = self._subscription, self._ended
        self._end(ended or "the JetStream context was closed")
        if self._watcher is not None:
            self._watcher.cancel()
        if subscription is not None and ended is None:
            await subscription.unsubscribe()


def _check_retries(attempts: int, wait: float) -> None:
    as_count("retry_attempts", attempts, 0)
    as_seconds("retry_wait", wait)
