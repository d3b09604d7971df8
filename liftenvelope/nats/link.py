"""Adapter for the user's nats-py connection, used by the rest of this package.

All knowledge of nats-py's internals is here, for reading in ``receiving``, and for the quick path of
JetStream publishes in ``_native.jet``. Frames are appended to the connection's command buffer, as
``nc.publish`` does for each message, but a whole batch at once and without an ``await``. Each link checks the
required private names once. If they have changed, everything goes through public methods, which are slower,
and ``tests/integration/nats/test_link.py`` fails.

Workarounds for nats-py (2.16):

- ``flush()`` sends its PING ahead of buffered commands, so it is not a barrier.
- ``flush()`` returns at once, without an error, while the connection is being restored.
- After a ``flush()`` that was cancelled or timed out, the connection stops reading.
- The flush inside ``subscribe()`` swallows a cancellation.
"""

from __future__ import annotations

import asyncio
import asyncio.selector_events
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import nats.errors
from nats.aio.transport import TcpTransport
from nats.protocol.command import sub_cmd

from liftenvelope.errors import ServerProtocolError, TransportError
from liftenvelope.nats.reports import violation_in
from liftenvelope.nats.subjects import wire_subject

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

#: Bytes written between two checks of asyncio's write buffer: each check costs more than a microsecond.
_LOOK_AFTER: Final = 64 * 1024
#: Characters of an error of nats-py in a text.
_SHOWN: Final = 200
#: Poll interval for state that nats-py has no event for, in seconds.
_POLL: Final = 0.02
#: nats-py's default limit of buffered bytes, for connections whose own limit is not readable.
_PENDING_SIZE: Final = 2 * 1024 * 1024
_PRIVATE: Final = (
    "_pending",
    "_pending_data_size",
    "_max_pending_size",
    "_max_payload",
    "_err",
    "_flush_queue",
    "_flusher_task",
    "_status",
    "_transport",
)


def _forgets_backpressure() -> bool:
    """Return True if asyncio's ``writelines()`` ignores backpressure (Python 3.12.1, 3.13.0).

    In that case nats-py's flusher never waits, and the buffer of a stalled connection grows without limit.
    """
    transport = getattr(asyncio.selector_events, "_SelectorSocketTransport", object)
    own = vars(transport).get("writelines")
    return own is not None and "_maybe_pause_protocol" not in own.__code__.co_names


_WRITELINES_IS_UNBOUNDED: Final = _forgets_backpressure()


def max_payload_of(nc: Client) -> int:
    """Return the maximum size of a message that the server accepts, in bytes.

    nats-py keeps whatever the server has sent.

    Raises:
        ServerProtocolError: The server has sent something else than an integer.
    """
    found: object = nc.max_payload
    if type(found) is not int:
        raise ServerProtocolError(f"max_payload of the NATS server must be an integer, got {found!r:.40}")
    return found


def mark_reconnecting(nc: Client) -> None:
    """Make ``close`` of a connection close all that it has, as if it was not closed yet."""
    nc._status = nc.RECONNECTING


def is_encrypted(nc: Client) -> bool:
    """Return True if a connection uses TLS, by the condition under which nats-py begins with TLS."""
    return bool(nc._server_info.get("tls_required") or nc.options["tls_handshake_first"])


def last_error_of(nc: Client) -> str:
    """Return a suffix for the text of an ended connection: the last error that nats-py noted, if any.

    nats-py closes a connection whose credentials have expired, and tells nobody why. It keeps the last error
    also when a reconnect succeeds, so the error may be older than the end. Refused permissions do not count:
    they end no connection. Nor do errors without a text, such as ``asyncio.TimeoutError``.
    """
    last = nc.last_error
    text = "" if last is None else str(last).strip()
    if not text or violation_in(text):
        return ""
    return f" (its last error: {text[:_SHOWN]})"


def _matches(pattern: str, subject: str) -> bool:
    """Return True if a subject is the pattern, or if the pattern ends in ``>`` and the subject is below."""
    return subject == pattern or (pattern.endswith(">") and subject.startswith(pattern[:-1]))


class _Pong(asyncio.Future[bool]):
    """Future that nats-py completes when a PONG arrives; completing it after a cancellation is harmless.

    nats-py's own ``flush()`` leaves a cancelled future behind if it is cancelled or times out. The later PONG
    then kills nats-py's reader: the connection looks open but delivers nothing any more (2.16).
    """

    def set_result(self, result: bool) -> None:
        """Set the result, unless the future is already done."""
        if not self.done():
            super().set_result(result)


class Link:
    """Access to a connection owned by the user: never closes it, never takes its callbacks.

    Args:
        nc: The user's connection.

    Attributes:
        direct: True if frames can be appended to the buffer directly, without ``nc.publish``.
    """

    def __init__(self, nc: Client) -> None:
        self._nc: Any = nc
        self.direct = all(hasattr(nc, name) for name in _PRIVATE)
        self._looked_at = 0
        self._is_backed_up = False

    @property
    def buffers_directly(self) -> bool:
        """True if a frame may be appended to the buffer whenever nats-py's own limit leaves room."""
        return self.direct and not _WRITELINES_IS_UNBOUNDED

    @property
    def max_payload(self) -> int:
        """Maximum size of a message that the server accepts, in bytes.

        Raises:
            ServerProtocolError: The server has sent something else than an integer.
        """
        return max_payload_of(self._nc)

    @property
    def is_connected(self) -> bool:
        """True if the connection is up, so that written data is sent now."""
        return bool(self._nc.is_connected)

    @property
    def epoch(self) -> int:
        """Number of the connection that sends data written now; it grows with every reconnect."""
        # Data buffered while the connection is down survives, and is sent by the next connection.
        return int(self._nc.stats["reconnects"]) + (not self._nc.is_connected)

    @property
    def report(self) -> Exception | None:
        """Last error that nats-py noted on the connection. Keep it before a call, for :meth:`refusal`."""
        last: Exception | None = self._nc.last_error
        return last

    def refusal(self, *subjects: str, since: Exception | None = None) -> str:
        """Return a suffix for an error text: the permission that the server refused to a call, if any.

        The server does not reply to a refused request. It reports a violation to the connection, which
        nats-py passes to the user's ``error_cb`` and keeps as the last error, in lower case. The report may
        concern another user of the connection, or be old.

        Args:
            subjects: Subjects of the call's publishes and subscriptions. ``a.>`` and ``>`` match as in NATS.
                Inboxes of the connection always match.
            since: :attr:`report` before the call. An older refused publish does not count, but an older
                refused subscription does: nats-py subscribes to the inboxes of requests once. Default: any.
        """
        last = self.report
        found = violation_in(str(last))
        if found is None or (found.verb == "publish" and last is since):
            return ""
        inboxes = self.new_inbox().rpartition(".")[0] + ".>"
        if not any(_matches(pattern.lower(), found.subject.lower()) for pattern in (*subjects, inboxes)):
            return ""
        return f"; the server said: {last}"

    def new_inbox(self) -> str:
        """Return a unique inbox subject with the user's inbox prefix."""
        return str(self._nc.new_inbox())

    def check_open(self, published: int = 0) -> None:
        """Raise TransportError if publishing is no longer possible."""
        if self._nc.is_closed:
            raise TransportError(f"the NATS connection is closed{last_error_of(self._nc)}", published)
        if self._nc.is_draining_pubs:
            raise TransportError("the NATS connection is being drained", published)

    def fits(self, size: int) -> bool:
        """Return True if ``size`` bytes may be buffered now, by the connection's own limit.

        A connection that is up accepts any size while it is below the limit, so no message is too large.
        """
        limit, pending = self._limit(), self._nc.pending_data_size
        if not self._nc.is_connected:
            return bool(pending + size <= limit)
        return bool(pending < limit) and not (_WRITELINES_IS_UNBOUNDED and self._backs_up(limit))

    def _backs_up(self, limit: int) -> bool:
        """Return True if asyncio's write buffer holds as many bytes as the connection may buffer."""
        written = self._nc.stats["out_bytes"]
        if self._is_backed_up or written - self._looked_at >= _LOOK_AFTER:
            self._looked_at = written
            # Only TCP and TLS connections have a writer; a WebSocket's frames are awaited one by one.
            writer = getattr(self._nc._transport, "_io_writer", None)
            self._is_backed_up = writer is not None and writer.transport.get_write_buffer_size() >= limit
        return self._is_backed_up

    def _limit(self) -> int:
        return int(self._nc._max_pending_size) if self.direct else _PENDING_SIZE

    def write(self, frames: bytes, messages: int, payload: int) -> None:
        """Buffer PUB commands and wake nats-py's flusher. Only for a direct link.

        Args:
            frames: Complete commands.
            messages: Number of commands.
            payload: Bytes of the payloads, for the connection's statistics.

        Raises:
            TransportError: The connection is closed or draining, or it is down and its buffer is full.
        """
        nc = self._nc
        if not nc.is_connected:
            self.check_open()
            if not self.fits(len(frames)):
                raise TransportError(
                    f"the NATS connection is down and its buffer of {self._limit()} bytes is full"
                )
        elif nc.is_draining_pubs:
            self.check_open()
        nc._pending.append(frames)
        nc._pending_data_size += len(frames)
        nc.stats["out_msgs"] += messages
        nc.stats["out_bytes"] += payload
        queue = nc._flush_queue
        if queue.empty() and nc.is_connected:
            queue.put_nowait(asyncio.get_running_loop().create_future())

    def write_now(self, frames: bytes, messages: int, payload: int) -> None:
        """Write PUB commands to the socket at once, after the commands that are buffered.

        This saves a wakeup of nats-py's flusher. Use it for small, rare commands only: there is no
        backpressure if the server reads slowly. Only for a direct link.

        Args, raises: As for :meth:`write`.
        """
        nc = self._nc
        # Other transports, such as a WebSocket's, send only when awaited.
        is_tcp = type(nc._transport) is TcpTransport
        if not is_tcp or nc._status != nc.CONNECTED:
            self.write(frames, messages, payload)
            return
        stats = nc.stats
        stats["out_msgs"] += messages
        stats["out_bytes"] += payload
        if not nc._pending:
            nc._transport.write(frames)
            return
        buffered, nc._pending, nc._pending_data_size = nc._pending, [], 0
        buffered.append(frames)
        nc._transport.writelines(buffered)

    def offer(self, frame: bytes, size: int) -> bool:
        """Buffer one PUB command and wake nats-py's flusher, if the connection is up and has room.

        Args:
            frame: Complete command.
            size: Bytes of payload and headers, for the connection's statistics.

        Returns:
            True if the command was buffered. If not, use :meth:`room` and :meth:`write`. Always False if the
            link is not direct.
        """
        nc = self._nc
        if not self.direct or nc._status != nc.CONNECTED or nc._pending_data_size >= nc._max_pending_size:
            return False
        if _WRITELINES_IS_UNBOUNDED and self._backs_up(nc._max_pending_size):
            return False
        nc._pending.append(frame)
        nc._pending_data_size += len(frame)
        stats = nc.stats
        stats["out_msgs"] += 1
        stats["out_bytes"] += size
        queue = nc._flush_queue
        if queue.empty():
            queue.put_nowait(asyncio.get_running_loop().create_future())
        return True

    def send_now(self) -> None:
        """Write the buffered commands to the socket now, without waiting for nats-py's flusher.

        If that is not possible, this does nothing, and the flusher sends the commands later.
        """
        nc = self._nc
        # Other transports, such as a WebSocket's, send only when awaited.
        is_tcp = self.direct and type(nc._transport) is TcpTransport
        if is_tcp and nc.is_connected and nc._pending:
            frames, nc._pending, nc._pending_data_size = nc._pending, [], 0
            nc._transport.writelines(frames)

    async def publish(self, subject: str, payload: bytes) -> None:
        """Publish one message by nats-py's public method, for links that are not direct.

        Raises:
            TransportError: nats-py refuses: the connection is closed or draining.
            UsageError: The subject has white space or a control character.
        """
        wire_subject("subject", subject)
        try:
            await self._nc.publish(subject, payload)
        except nats.errors.Error as exc:
            raise TransportError(f"nats-py could not publish: {exc}") from exc

    async def room(self, size: int, deadline: float, published: int = 0) -> None:
        """Wait until ``size`` bytes may be buffered. ``deadline`` is on the event loop's clock.

        Raises:
            TransportError: The connection is closed, or there is no room at the deadline.
        """
        loop = asyncio.get_running_loop()
        while True:
            self.check_open(published)
            if self.fits(size):
                return
            if (left := deadline - loop.time()) <= 0:
                state = "sends too slowly" if self._nc.is_connected else "is down"
                raise TransportError(f"the NATS connection {state}, and its buffer is full", published)
            await self._flushed(min(left, _POLL))

    async def _flushed(self, timeout: float) -> None:
        """Wait until the buffered commands are written to the socket, or until the timeout."""
        nc = self._nc
        if not self.direct or not nc.is_connected or nc._flush_queue.full() or self._is_backed_up:
            await asyncio.sleep(timeout)
            return
        # Queue our own future for the flusher: nats-py's _flush_pending() swallows a cancellation.
        done = asyncio.get_running_loop().create_future()
        nc._flush_queue.put_nowait(done)
        await asyncio.wait({done}, timeout=timeout)

    async def barrier(self, timeout: float) -> None:
        """Wait until the server has processed everything that was written before.

        Raises:
            TransportError: The connection is closed, was lost meanwhile, or is not back within the timeout.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not self._nc.is_connected:
            self.check_open()
            if loop.time() >= deadline:
                raise TransportError(f"the NATS connection was not restored within {timeout} s")
            await asyncio.sleep(_POLL)
        epoch = self.epoch
        await self._sent(deadline)
        # Two round trips if the buffer is not readable: the first PING may overtake buffered commands.
        for _ in range(1 if self.direct else 2):
            await self._round_trip(deadline, timeout, epoch)
        if not self._nc.is_connected or self.epoch != epoch:
            self.check_open()
            raise TransportError("the NATS connection was lost during the flush")

    async def _sent(self, deadline: float) -> None:
        """Wait until the commands that are buffered now are written to the socket."""
        if not self.direct:
            return
        loop = asyncio.get_running_loop()
        # Each write starts a new list, which may fill up again at once.
        buffered = self._nc._pending
        while buffered and self._nc._pending is buffered and self._nc.is_connected and loop.time() < deadline:
            await self._flushed(_POLL)

    async def _round_trip(self, deadline: float, timeout: float, epoch: int) -> None:
        """Wait for the answer to a PING, or until the connection is lost: then nats-py drops the PING."""
        loop = asyncio.get_running_loop()
        self.check_open()
        send_ping = getattr(self._nc, "_send_ping", None)
        if send_ping is None or not self._nc.is_connected:
            await self._public_flush(max(deadline - loop.time(), 0.001), timeout)
            return
        pong = _Pong()
        await send_ping(pong)
        while not pong.done() and self.epoch == epoch:
            if (left := deadline - loop.time()) <= 0:
                raise TransportError(f"no answer from the NATS server within {timeout} s")
            await asyncio.wait({pong}, timeout=min(left, _POLL))

    async def _public_flush(self, left: float, timeout: float) -> None:
        try:
            await self._nc.flush(timeout=left)
        except nats.errors.Error as exc:
            raise TransportError(f"no answer from the NATS server within {timeout} s") from exc

    async def subscribe(
        self, subject: str, on_message: Callable[[Msg], Awaitable[None]] | None, *, queue: str = ""
    ) -> Subscription:
        """Subscribe without a limit on pending messages: nats-py drops messages beyond its limits.

        Args:
            subject: Subject; wildcards are allowed.
            on_message: Called with each message; None to receive messages by ``next_msg``.
            queue: Queue group. Default: none.

        Raises:
            TransportError: nats-py refuses: the connection is closed or draining.
            UsageError: The subject or the queue has white space or a control character.
        """
        wire_subject("subject", subject)
        if queue:
            wire_subject("queue", queue)
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        try:
            sub: Subscription = await self._nc.subscribe(
                subject, queue=queue, cb=on_message, pending_msgs_limit=0, pending_bytes_limit=0
            )
        except nats.errors.Error as exc:
            raise TransportError(f"nats-py could not subscribe to {subject!r}: {exc}") from exc
        if task is not None and task.cancelling() > before:  # swallowed by the flush in subscribe()
            await self.unsubscribe(sub)
            raise asyncio.CancelledError
        return sub

    async def unsubscribe(self, sub: Subscription) -> None:
        """End a subscription, unless the connection has already ended it."""
        try:
            await sub.unsubscribe()
        except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError):
            return  # the connection has ended the subscription, or is about to
        except nats.errors.BadSubscriptionError:
            return  # already unsubscribed
        if not self.is_connected:
            self.forget_sub(sub)

    def forget_sub(self, sub: Subscription) -> None:
        """Remove the SUB command of an ended subscription from the buffer of a connection that is down.

        nats-py sends no UNSUB then. The next connection would send the SUB, and the server would keep the
        subscription.
        """
        if not self.direct:
            return
        inside: Any = sub
        command = sub_cmd(sub.subject, sub.queue, inside._id)
        if command in self._nc._pending:
            self._nc._pending.remove(command)
            self._nc._pending_data_size -= len(command)

    def when_ended(self, sub: Subscription, callback: Callable[[], None]) -> asyncio.Task[None]:
        """Call ``callback`` as soon as the subscription has ended, for any reason.

        Returns:
            Watching task; cancel the task to stop watching.
        """
        return asyncio.get_running_loop().create_task(self._watch(sub, callback))

    async def _watch(self, sub: Subscription, callback: Callable[[], None]) -> None:
        # nats-py has no event for the end of a subscription, but the task that calls our callback ends too.
        delivering = getattr(sub, "_wait_for_msgs_task", None)
        if delivering is not None:
            await asyncio.wait({delivering})
        while delivering is None and not self._nc.is_closed:
            await asyncio.sleep(_POLL)
        callback()
