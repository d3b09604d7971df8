"""An HTTP/2 client for tests that does what no gRPC library does, such as to break off in a message."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Self

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection

PATIENCE = 120.0


class RawClient:
    """A connection whose frames the test chooses.

    Args:
        address: ``host:port`` of the server.
        tls: TLS context, None for plain TCP.

    Attributes:
        h2: Makes frames and reads those of the server. :meth:`send` sends what it has made.
        seen: Events that have come.
        ended: Whether the server has closed the connection.
    """

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.seen: list[Any] = []
        self.ended = False

    async def __aenter__(self) -> Self:
        host, port = self._address.rsplit(":", 1)
        self._reader, self._writer = await asyncio.open_connection(host, int(port), ssl=self._tls)
        self.h2.initiate_connection()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    def start(self, path: str, *more: tuple[str, str]) -> int:
        """Make the headers of a call; return its stream."""
        stream: int = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, [*self.headers(path), *more])
        return stream

    @staticmethod
    def headers(path: str) -> list[tuple[str, str]]:
        """The headers of a call."""
        return [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "a"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]

    def send(self, raw: bytes = b"") -> None:
        """Send what was made, and then ``raw``."""
        self._writer.write(self.h2.data_to_send() + raw)

    async def until(self, is_there: Callable[[Self], object]) -> None:
        """Read until a condition holds, or the server closes the connection."""
        async with asyncio.timeout(PATIENCE):
            while not is_there(self) and not self.ended:
                try:
                    data = await self._reader.read(65_536)
                except ConnectionError:
                    data = b""
                self.ended = not data
                self.seen += self.h2.receive_data(data) if data else []
                if not self.ended:
                    self.send()

    async def ping(self) -> bool:
        """Return whether the server, having handled all that was sent, still serves this connection."""
        before = len(self.of(events.PingAckReceived))
        self.h2.ping(bytes(8))
        self.send()
        await self.until(lambda client: len(client.of(events.PingAckReceived)) > before)
        return not self.ended

    def of(self, kind: type) -> list[Any]:
        """Return the events of a kind that have come."""
        return [event for event in self.seen if isinstance(event, kind)]

    def status(self, stream: int) -> tuple[int, str] | None:
        """Return the gRPC status that a call ended with, None if it goes on."""
        for event in self.of((events.TrailersReceived, events.ResponseReceived)):  # type: ignore[arg-type]
            found = dict(event.headers)
            if event.stream_id == stream and "grpc-status" in found:
                return int(found["grpc-status"]), found.get("grpc-message", "")
        return None
