"""asyncio connection that drives the sans-io protocol: common base of client and server."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

from liftenvelope.rpc._events import Event, MessagesReceived

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from liftenvelope.rpc._connection import Connection

__all__ = ["Flow", "Incoming", "TransportLink"]

_C = TypeVar("_C", bound="Connection")


class TransportLink(asyncio.BufferedProtocol, Generic[_C]):
    """Carries bytes between a transport and a sans-io protocol, and wakes waiting senders and receivers."""

    #: Size of the receive buffer, in bytes.
    receive_size: ClassVar[int] = 256 * 1024
    #: Bytes unsent on a call above which its sender waits.
    send_buffer: ClassVar[int] = 256 * 1024
    #: Seconds from the end of a connection until it is aborted: the peer may not be reading.
    close_timeout: ClassVar[float] = 1.0

    def __init__(self, protocol: _C) -> None:
        self.protocol = protocol
        self.loop = asyncio.get_running_loop()
        self.flows: dict[int, Flow] = {}
        #: Calls whose sender waits for room, in order. Most calls have none, and there may be thousands.
        self.senders: dict[Flow, None] = {}
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._flush_due = False
        # One buffer for all reads: asyncio would allocate and shrink a new one for each read, for 10 us.
        self._buffer = memoryview(bytearray(self.receive_size))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface: the connection is open."""
        # Not isinstance: the transports of uvloop have the methods, but not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the buffer for the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process ``nbytes`` received bytes and send the replies."""
        self.receive(self._buffer[:nbytes])

    def receive(self, data: bytes | memoryview) -> None:
        """Process received bytes."""
        self.handled(self.protocol.feed(data))

    def handled(self, events: list[Event]) -> None:
        """Route the events of received bytes, and send the replies."""
        self.dispatch(events)
        if self.protocol.failed:
            self.flush()
            self.close_transport()
        else:
            # A task woken by these events may send as well, such as its next call: one write for both.
            self.flush_soon()

    @property
    def closed_reason(self) -> str:
        """Text for calls that end because the other side has closed the connection."""
        return "the other side closed the connection"

    def connection_lost(self, exc: Exception | None) -> None:
        """End every call: the connection is lost."""
        self.fail(f"the connection was lost: {exc}" if exc else self.closed_reason)
        self.closed.set_result(None)

    def pause_writing(self) -> None:
        """Stop writing: the transport's send buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """Write again: the transport's send buffer has room."""
        self._paused = False
        self.flush()

    @property
    def flush_due(self) -> bool:
        """True if a flush is scheduled for this turn of the event loop."""
        return self._flush_due

    def flush_soon(self) -> None:
        """Flush before the event loop polls again, so that all sends until then share one write."""
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the pending data, unless the transport's send buffer is full."""
        self._flush_due = False
        if self._transport is None or self._transport.is_closing() or self._paused:
            return
        if data := self.protocol.data_to_send():
            self._transport.write(data)
        for flow in list(self.senders):
            flow.wake_sender()

    def fail(self, reason: str) -> None:
        """End every call with ``reason`` and close the connection."""
        if not self.protocol.failed:
            self.dispatch(self.protocol.connection_lost(reason))
        self.close_transport()

    def close_transport(self) -> None:
        """Close the connection once the data written to it is sent."""
        # A second close() of a TLS transport would make its abort() do nothing.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed; abort it after ``close_timeout``."""
        await asyncio.wait([self.closed], timeout=self.close_timeout)
        # A transport that has sent its last data after close() fails in abort() (Python 3.11).
        if self._transport is not None and not self.closed.done():
            self._transport.abort()
            # Several tasks may wait: the cancellation of one must not cancel the future of the others.
            await asyncio.shield(self.closed)

    def dispatch(self, events: list[Event]) -> None:
        """Route events to their calls."""
        raise NotImplementedError


class Flow:
    """Send and receive queues of one call."""

    def __init__(self, link: TransportLink[Any], call_id: int) -> None:
        self._link = link
        self.call_id = call_id
        #: True if no more messages will be received.
        self.exhausted = False
        #: True if the call has ended, so that no more messages can be sent either.
        self.done = False
        self._inbox: deque[MessagesReceived] = deque()
        self._receiver: asyncio.Future[None] | None = None
        self._sender: asyncio.Future[None] | None = None
        #: Callback for received messages. If set, it replaces :meth:`take`.
        self.listener: Callable[[list[bytes]], object] | None = None

    def received(self, event: MessagesReceived) -> None:
        """Queue received messages, or pass them to the listener."""
        if self.listener is not None:
            self._link.protocol.release(self.call_id, event.size)
            self.listener(event.messages)
            return
        self._inbox.append(event)
        self.wake_receiver()

    def exhaust(self) -> None:
        """Mark the receive side as ended."""
        self.exhausted = True
        self.wake_receiver()

    def finish(self) -> None:
        """Mark the call as ended and wake its sender and receiver."""
        self.done = True
        self.exhaust()
        self.wake_sender()

    def discard(self) -> None:
        """Drop the queued messages."""
        self._inbox.clear()

    async def take(self) -> list[bytes] | None:
        """Return the next messages, or None at the end."""
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
        """Send messages; wait while more than the connection's ``send_buffer`` is unsent."""
        self.put_nowait(messages)
        await self.room()

    async def put_framed(self, frames: bytes) -> None:
        """Send messages that already have their gRPC prefixes; wait like :meth:`put`."""
        self.put_framed_nowait(frames)
        await self.room()

    def put_framed_nowait(self, frames: bytes) -> None:
        """Send messages that already have their gRPC prefixes, without waiting."""
        self._link.protocol.send_framed(self.call_id, frames)
        self._link.flush_soon()

    def put_nowait(self, messages: Iterable[bytes]) -> None:
        """Send messages without waiting."""
        self._link.protocol.send(self.call_id, messages)
        self._link.flush_soon()

    async def room(self) -> None:
        """Wait while more than the connection's ``send_buffer`` is unsent."""
        protocol = self._link.protocol
        while not self.done and protocol.unsent(self.call_id) > self._link.send_buffer:
            self._sender = self._sender or self._link.loop.create_future()
            self._link.senders[self] = None
            # Several tasks may wait: the cancellation of one must not reach the others.
            await asyncio.shield(self._sender)

    def wake_receiver(self) -> None:
        """Wake :meth:`take`."""
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def wake_sender(self) -> None:
        """Wake :meth:`put` if there is room."""
        if self._sender is None:
            return
        if self.done or self._link.protocol.unsent(self.call_id) <= self._link.send_buffer:
            self._sender.set_result(None)
            self._sender = None
            self._link.senders.pop(self, None)


class Incoming:
    """Messages received on a call: in lists by :meth:`receive`, or one by one by ``async for``."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        # Rest of the list that the last message was taken from, in reverse: the next message is at the end.
        self._begun: list[bytes] = []
        #: Filter: returns True for messages to deliver. None delivers all. The filter may answer the others.
        self.admits: Callable[[bytes], bool] | None = None

    async def receive(self) -> list[bytes] | None:
        """Return the next messages, at least one, or None at the end."""
        if self._begun:
            messages, self._begun = self._begun[::-1], []
            return messages
        if self.admits is None:
            return await self._flow.take()
        while True:
            # The filter answers without waiting: if the client takes no answers, read none of its messages.
            # Waiting before the take, not after it, loses no message to a cancellation.
            await self._flow.room()
            if (received := await self._flow.take()) is None:
                return None
            if admitted := [message for message in received if self.admits(message)]:
                return admitted

    def put_back(self, message: bytes) -> None:
        """Put a taken message back, as the next one."""
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
