"""The user's nats-py connection, as the rest of this package sees it.

All that is known of nats-py's inside stands here and, what has to do with reading, in ``_receiving``. Frames
go straight into the connection's buffer of commands, which is what ``nc.publish`` does with each message, but
for a whole batch at once and without an ``await``. The private names that this takes are looked for once;
where they have changed, everything goes through public methods, more slowly, and
``tests/integration/test_link.py`` fails to tell us.

Four habits of nats-py (2.16) that are worked around: ``flush()`` sends its PING ahead of what is buffered,
so that it is no barrier; it returns at once, without an error, while the connection is being restored; after
one that is cancelled, or whose time is up, the connection reads nothing any more; and its inner flush
swallows a cancellation.
"""

from __future__ import annotations

import asyncio
import asyncio.selector_events
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import nats.errors
from nats.aio.transport import TcpTransport
from nats.protocol.parser import PERMISSIONS_ERR

from liftenvelope.errors import TransportError
from liftenvelope.nats._subjects import wire_subject

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

#: Bytes that are written between two looks at that buffer: each look costs a microsecond and more.
_LOOK_AFTER: Final = 64 * 1024
#: How often what nats-py gives no event for is looked at, in seconds.
_POLL: Final = 0.02
#: nats-py's own limit on what is buffered, for connections whose limit can't be seen.
_PENDING_SIZE: Final = 2 * 1024 * 1024
_PRIVATE: Final = (
    "_pending",
    "_pending_data_size",
    "_max_pending_size",
    "_flush_queue",
    "_flusher_task",
    "_status",
    "_transport",
)


def _forgets_backpressure() -> bool:
    """Return whether asyncio's ``writelines()`` does not say when its buffer is full (Python 3.12.1, 3.13.0).

    nats-py's flusher never waits then, so that the buffer of a stalled connection grows without a limit.
    """
    transport = getattr(asyncio.selector_events, "_SelectorSocketTransport", object)
    own = vars(transport).get("writelines")
    return own is not None and "_maybe_pause_protocol" not in own.__code__.co_names


_WRITELINES_IS_UNBOUNDED: Final = _forgets_backpressure()


class _Pong(asyncio.Future[bool]):
    """What nats-py sets when a PONG comes, whatever has become of whoever waited for it.

    Its own ``flush()`` leaves a cancelled future behind when it is cancelled or its time is up. The PONG that
    comes later ends nats-py's reader then: the connection looks open, and delivers nothing any more (2.16).
    """

    def set_result(self, result: bool) -> None:
        """Set it, unless nobody waits."""
        if not self.done():
            super().set_result(result)


class Link:
    """A connection that belongs to somebody else: never closed, its callbacks never taken.

    Args:
        nc: The connection.

    Attributes:
        direct: Whether frames can be put into the buffer without going through ``nc.publish``.
    """

    def __init__(self, nc: Client) -> None:
        self._nc: Any = nc
        self.direct = all(hasattr(nc, name) for name in _PRIVATE)
        self._looked_at = 0
        self._is_backed_up = False

    @property
    def max_payload(self) -> int:
        """The largest message in bytes that the server takes."""
        return int(self._nc.max_payload)

    @property
    def is_connected(self) -> bool:
        """Whether what is written now goes out now."""
        return bool(self._nc.is_connected)

    @property
    def epoch(self) -> int:
        """A number that grows with every reconnection; what is written now goes out in this one."""
        # What is buffered while the connection is down survives, and goes out in the next one.
        return int(self._nc.stats["reconnects"]) + (not self._nc.is_connected)

    @property
    def refusal(self) -> str:
        """End of an error's text: the last permission that the server refused, or nothing.

        The server does not answer what it refuses: it reports a violation to the connection, which nats-py
        hands to the user's ``error_cb`` and keeps as the last error.
        """
        said = str(self._nc.last_error)
        return f"; the server said: {said}" if PERMISSIONS_ERR in said else ""

    def new_inbox(self) -> str:
        """A subject that nobody else uses, with the user's own inbox prefix."""
        return str(self._nc.new_inbox())

    def check_open(self, published: int = 0) -> None:
        """Raise TransportError if nothing can be published any more."""
        if self._nc.is_closed:
            raise TransportError("the NATS connection is closed", published)
        if self._nc.is_draining_pubs:
            raise TransportError("the NATS connection is being drained", published)

    def fits(self, size: int) -> bool:
        """Whether size bytes may be buffered now, by the connection's own limit.

        A connected one takes anything while it is below its limit, so that no message is too large for it.
        """
        limit, pending = self._limit(), self._nc.pending_data_size
        if not self._nc.is_connected:
            return bool(pending + size <= limit)
        return bool(pending < limit) and not (_WRITELINES_IS_UNBOUNDED and self._backs_up(limit))

    def _backs_up(self, limit: int) -> bool:
        """Return whether asyncio holds as many bytes for the socket as the connection may buffer."""
        written = self._nc.stats["out_bytes"]
        if self._is_backed_up or written - self._looked_at >= _LOOK_AFTER:
            self._looked_at = written
            # Of TCP and TLS connections; a WebSocket's frames are awaited one by one.
            writer = getattr(self._nc._transport, "_io_writer", None)
            self._is_backed_up = writer is not None and writer.transport.get_write_buffer_size() >= limit
        return self._is_backed_up

    def _limit(self) -> int:
        return int(self._nc._max_pending_size) if self.direct else _PENDING_SIZE

    def write(self, frames: bytes, messages: int, payload: int) -> None:
        """Buffer PUB commands and see that they are sent. Only for a direct link.

        Args:
            frames: The commands, whole ones.
            messages: How many they are.
            payload: The bytes of their payloads, for the connection's statistics.

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
        """Hand PUB commands, and what is buffered before them, to the socket without waiting for anybody.

        That is sooner than nats-py's flusher has its turn, and saves it one. For what is small and rare:
        nothing holds it back when the server is slow to read. Only for a direct link.

        Args, raises: As for :meth:`write`.
        """
        nc = self._nc
        # Other transports, such as that of a WebSocket, send only what is awaited.
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
        """Buffer one PUB command and see that it is sent, if the connection is up and has room.

        Args:
            frame: The command, a whole one.
            size: The bytes of its payload and headers, for the connection's statistics.

        Returns:
            Whether it was taken. If not, :meth:`room` and :meth:`write` are for it; always so where the link
            is not direct.
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
        """Hand what is buffered to the socket, without waiting for nats-py's flusher to have its turn.

        Does nothing where that can't be done; the flusher will.
        """
        nc = self._nc
        # Other transports, such as that of a WebSocket, send only what is awaited.
        is_tcp = self.direct and type(nc._transport) is TcpTransport
        if is_tcp and nc.is_connected and nc._pending:
            frames, nc._pending, nc._pending_data_size = nc._pending, [], 0
            nc._transport.writelines(frames)

    async def publish(self, subject: str, payload: bytes) -> None:
        """Publish one message by nats-py's public method: the way of a link that is not direct.

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
        """Wait until size bytes may be buffered.

        Raises:
            TransportError: The connection is closed, or there is no room at the deadline, which is on the
                event loop's clock.
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
        """Wait until what is buffered has gone to the socket, or for the timeout."""
        nc = self._nc
        if not self.direct or not nc.is_connected or nc._flush_queue.full() or self._is_backed_up:
            await asyncio.sleep(timeout)
            return
        # A future of our own in the flusher's queue, not its _flush_pending(): that swallows cancellation.
        done = asyncio.get_running_loop().create_future()
        nc._flush_queue.put_nowait(done)
        await asyncio.wait({done}, timeout=timeout)

    async def barrier(self, timeout: float) -> None:
        """Return when the server has handled everything that was written before.

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
        # Twice, since the first PING may overtake what was buffered when nothing of it can be seen.
        for _ in range(1 if self.direct else 2):
            await self._round_trip(deadline, timeout)
        if not self._nc.is_connected or self.epoch != epoch:
            raise TransportError("the NATS connection was lost during the flush")

    async def _sent(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while self.direct and self._nc._pending and self._nc.is_connected and loop.time() < deadline:
            await self._flushed(_POLL)

    async def _round_trip(self, deadline: float, timeout: float) -> None:
        left = max(deadline - asyncio.get_running_loop().time(), 0.001)
        self.check_open()
        send_ping = getattr(self._nc, "_send_ping", None)
        if send_ping is None or not self._nc.is_connected:
            await self._public_flush(left, timeout)
            return
        pong = _Pong()
        await send_ping(pong)
        await asyncio.wait({pong}, timeout=left)
        if not pong.done():
            raise TransportError(f"no answer from the NATS server within {timeout} s")

    async def _public_flush(self, left: float, timeout: float) -> None:
        try:
            await self._nc.flush(timeout=left)
        except nats.errors.Error as exc:
            raise TransportError(f"no answer from the NATS server within {timeout} s") from exc

    async def subscribe(
        self, subject: str, on_message: Callable[[Msg], Awaitable[None]] | None, *, queue: str = ""
    ) -> Subscription:
        """Subscribe without a limit on what may queue up: a limit of nats-py drops messages.

        Args:
            subject: The subject.
            on_message: Called with each message; None to wait for them with ``next_msg``.
            queue: The queue group. Default: none.

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
        if task is not None and task.cancelling() > before:  # its inner flush has swallowed it
            await self.unsubscribe(sub)
            raise asyncio.CancelledError
        return sub

    async def unsubscribe(self, sub: Subscription) -> None:
        """End a subscription, if the connection has not ended it already."""
        try:
            await sub.unsubscribe()
        except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError):
            return  # the connection has ended it, or is about to
        except nats.errors.BadSubscriptionError:
            return  # somebody else has

    def when_ended(self, sub: Subscription, callback: Callable[[], None]) -> asyncio.Task[None]:
        """Have callback called as soon as the subscription delivers nothing more, for whatever reason.

        Returns:
            The task to cancel when nobody is interested any more.
        """
        return asyncio.get_running_loop().create_task(self._watch(sub, callback))

    async def _watch(self, sub: Subscription, callback: Callable[[], None]) -> None:
        # nats-py tells nobody that a subscription has ended, but the task that calls our callback ends then.
        delivering = getattr(sub, "_wait_for_msgs_task", None)
        if delivering is not None:
            await asyncio.wait({delivering})
        while delivering is None and not self._nc.is_closed:
            await asyncio.sleep(_POLL)
        callback()
