"""Parses received bytes in the turn of the event loop in which they arrive.

nats-py reads from an ``asyncio.StreamReader`` in a task. The reader buffers the received bytes and wakes the
task, which copies them out of the buffer, at most 32 KiB in each turn of the loop. A tap stands between the
transport and the reader. It receives into one buffer and parses the bytes there, which saves the turns, the
task switches and the copies. No read is allocated, which would leave a gap in memory before the messages that
are made of it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

__all__ = ["ReaderTap", "tappable"]

_PRIVATE: Final = ("_waiter", "_buffer")
#: Bytes that are received at once.
_ROOM: Final = 128 * 1024


class _Taker(Protocol):
    """Parser of the received bytes."""

    @property
    def takes_now(self) -> bool:
        """True if bytes may be parsed now, unless the reader has earlier ones."""

    def take(self, data: memoryview) -> bytes:
        """Parse bytes, which are valid until it returns; return those that the reader must have."""


def tappable(transport: Any) -> asyncio.Transport | None:
    """Return the asyncio transport of a connection by TCP or TLS; None if it can't be tapped."""
    reader = getattr(transport, "_io_reader", None)
    if type(reader) is not asyncio.StreamReader or not all(hasattr(reader, name) for name in _PRIVATE):
        return None
    below: asyncio.Transport | None = getattr(getattr(transport, "_io_writer", None), "transport", None)
    is_readers = below is not None and type(below.get_protocol()) is asyncio.StreamReaderProtocol
    return below if is_readers else None


class ReaderTap(asyncio.BufferedProtocol):
    """Hands received bytes to a parser while nats-py's task waits for them, and to the reader otherwise.

    Invariant: bytes are parsed in the order in which they arrive. So the parser gets them only while the
    reader has none, the task waits for some, and the parser is not at work.

    Args:
        transport: Transport of asyncio, which :func:`tappable` has returned.
        reader: Reader of that transport.
        taker: The parser.
    """

    def __init__(self, transport: asyncio.Transport, reader: asyncio.StreamReader, taker: _Taker) -> None:
        self._transport = transport
        self._reader: Any = reader
        self._taker = taker
        self._room = memoryview(bytearray(_ROOM))
        self._protocol: Any = transport.get_protocol()
        transport.set_protocol(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's name
        """Return room for the next bytes."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Parse received bytes, or let the reader have them."""
        reader = self._reader
        waiter = reader._waiter
        data = self._room[:nbytes]
        is_free = waiter is not None and not waiter.done() and not reader._buffer
        left = self._taker.take(data) if is_free and self._taker.takes_now else bytes(data)
        if left:
            reader.feed_data(left)

    def eof_received(self) -> bool | None:
        """Tell the reader that no more bytes come."""
        ends: bool | None = self._protocol.eof_received()
        return ends

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the reader that the connection has ended."""
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Have writers wait."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Let writers go on."""
        self._protocol.resume_writing()

    def give(self, at: int, data: bytes) -> None:
        """Let the reader have bytes, behind the first ``at`` of those that its task has not read yet."""
        self._reader._buffer[at:at] = data  # not feed_data(): the connection may have ended

    def remove(self) -> None:
        """Let the reader have all bytes again."""
        if self._transport.get_protocol() is self:
            self._transport.set_protocol(self._protocol)
