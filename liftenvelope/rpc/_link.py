"""A connection of asyncio with the sans-io protocol on it: what the client and the server share."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeVar

from liftenvelope.rpc.events import Event, MessagesReceived

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from liftenvelope.rpc.connection import Connection

__all__ = ["Flow", "Incoming", "Link"]

#: A sender waits while more than this is unsent on its call.
_SEND_BUFFER: Final = 256 * 1024
_CLOSE_TIMEOUT: Final = 1.0

_C = TypeVar("_C", bound="Connection")


class Link(asyncio.BufferedProtocol, Generic[_C]):
    """Carries bytes between a transport and a protocol, and wakes those who wait for either."""

    #: How much may come at once, in bytes.
    receive_size: ClassVar[int] = 256 * 1024

    def __init__(self, protocol: _C) -> None:
        self.protocol = protocol
        self.loop = asyncio.get_running_loop()
        self.flows: dict[int, Flow] = {}
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._flush_due = False
        # One for all that comes: asyncio would make new room for every piece and cut it to size, for 10 us.
        self._buffer = memoryview(bytearray(self.receive_size))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands: send the preface."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where to put what comes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand out what came, and send what that calls for."""
        self.receive(bytes(self._buffer[:nbytes]))

    def receive(self, data: bytes) -> None:
        """Handle bytes that came."""
        self.dispatch(self.protocol.feed(data))
        if self.protocol.failed:
            self.flush()
            self.close_transport()
        else:
            # Whoever was woken may send something too, such as the next call: one write for both.
            self.flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: end every call."""
        why = f"the connection was lost: {exc}" if exc else "the other side closed the connection"
        self.fail(why)
        self.closed.set_result(None)

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self._paused = True

    def resume_writing(self) -> None:
        """The socket takes more again."""
        self._paused = False
        self.flush()

    @property
    def flush_due(self) -> bool:
        """Whether something is to be sent before the loop waits again."""
        return self._flush_due

    def flush_soon(self) -> None:
        """Send before the loop waits again: what is sent until then goes out in one piece."""
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what is due, unless the socket takes no more."""
        self._flush_due = False
        if self._transport is None or self._transport.is_closing() or self._paused:
            return
        if data := self.protocol.data_to_send():
            self._transport.write(data)
        for flow in self.flows.values():
            flow.wake_sender()

    def fail(self, reason: str) -> None:
        """Give the connection up."""
        if not self.protocol.failed:
            self.dispatch(self.protocol.connection_lost(reason))
        self.close_transport()

    def close_transport(self) -> None:
        """Close the connection after what was sent on it."""
        if self._transport is not None:
            self._transport.close()

    async def wait_closed(self) -> None:
        """Return when the connection is closed, which a peer that takes nothing can't delay for long."""
        await asyncio.wait([self.closed], timeout=_CLOSE_TIMEOUT)
        if self._transport is not None:
            self._transport.abort()
            # Who waits may be cancelled; the others still want to know.
            await asyncio.shield(self.closed)

    def dispatch(self, events: list[Event]) -> None:
        """Hand events to their calls."""
        raise NotImplementedError


class Flow:
    """Messages of one call, both ways."""

    def __init__(self, link: Link[Any], call_id: int) -> None:
        self._link = link
        self.call_id = call_id
        #: Whether no more messages come, and whether the call has ended, so that none go either.
        self.exhausted = False
        self.done = False
        self._inbox: deque[MessagesReceived] = deque()
        self._receiver: asyncio.Future[None] | None = None
        self._sender: asyncio.Future[None] | None = None
        #: Gets messages as they come, in the place of :meth:`take`.
        self.listener: Callable[[list[bytes]], object] | None = None

    def received(self, event: MessagesReceived) -> None:
        """Messages came."""
        if self.listener is not None:
            self._link.protocol.release(self.call_id, event.size)
            self.listener(event.messages)
            return
        self._inbox.append(event)
        self.wake_receiver()

    def exhaust(self) -> None:
        """No more messages come."""
        self.exhausted = True
        self.wake_receiver()

    def finish(self) -> None:
        """The call has ended. Whoever waits finds out."""
        self.done = True
        self.exhaust()
        self.wake_sender()

    def discard(self) -> None:
        """Drop what came and was not taken."""
        self._inbox.clear()

    async def take(self) -> list[bytes] | None:
        """Return the next messages, None if there are no more."""
        while not self._inbox:
            if self.exhausted:
                return None
            self._receiver = self._link.loop.create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        event = self._inbox.popleft()
        if not self.done:
            self._link.protocol.release(self.call_id, event.size)
            self._link.flush_soon()
        return event.messages

    async def put(self, messages: Iterable[bytes]) -> None:
        """Send messages; wait while too many are unsent."""
        self.put_nowait(messages)
        await self.room()

    async def put_framed(self, frames: bytes) -> None:
        """Send messages that have their gRPC prefixes already; wait while too many are unsent."""
        self.put_framed_nowait(frames)
        await self.room()

    def put_framed_nowait(self, frames: bytes) -> None:
        """Send messages that have their gRPC prefixes already, however many are unsent."""
        self._link.protocol.send_framed(self.call_id, frames)
        self._link.flush_soon()

    def put_nowait(self, messages: Iterable[bytes]) -> None:
        """Send messages, however many are unsent."""
        self._link.protocol.send(self.call_id, messages)
        self._link.flush_soon()

    async def room(self) -> None:
        """Wait while too many messages are unsent."""
        protocol = self._link.protocol
        while not self.done and protocol.unsent(self.call_id) > _SEND_BUFFER:
            self._sender = self._sender or self._link.loop.create_future()
            # Several may wait; the cancellation of one must not reach the others.
            await asyncio.shield(self._sender)

    def wake_receiver(self) -> None:
        """Have :meth:`take` look again."""
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def wake_sender(self) -> None:
        """Have :meth:`put` look again, if there is room."""
        if self._sender is None:
            return
        if self.done or self._link.protocol.unsent(self.call_id) <= _SEND_BUFFER:
            self._sender.set_result(None)
            self._sender = None


class Incoming:
    """The messages that come on a call: in lists with :meth:`receive`, or one by one with ``async for``."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        # What came with the message that was taken last, and is not taken yet: the next one at the end.
        self._begun: list[bytes] = []
        #: Says of each message whether it is handed out; None for all.
        self.admits: Callable[[bytes], bool] | None = None

    async def receive(self) -> list[bytes] | None:
        """Return the next messages, at least one, or None when there are no more."""
        if self._begun:
            messages, self._begun = self._begun[::-1], []
            return messages
        while (received := await self._flow.take()) is not None and self.admits is not None:
            received = [message for message in received if self.admits(message)]
            if received:
                break
        return received

    def put_back(self, message: bytes) -> None:
        """Have a message that was taken be the next one again."""
        self._begun.append(message)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._begun:
            received = await self.receive()
            if received is None:
                raise StopAsyncIteration
            self._begun = received[::-1]
        return self._begun.pop()
