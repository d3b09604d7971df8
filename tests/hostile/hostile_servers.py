"""HOSTILE, NOT REAL: servers that answer clients with what a table says. One thread serves them all.

A row of the table says how the server greets, what it answers, and what it then repeats without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from hpack import Decoder

from tests.hostile.frames import HEADERS, PREFACE, SETTINGS, frame

__all__ = ["HostileServer", "serving"]

#: Sent by the server itself before the first answer (RFC 9113, 3.4).
SERVER_GREETING: Final = frame(SETTINGS, 0, 0)
_PUBLISHED: Final = re.compile(rb"H?PUB (\S+) (?:(\S+) )?(?:\d+ )?(\d+)")
_CHUNK: Final = 256 * 1024

#: Returns the payloads of replies, each with a header or b"", for a subject and a payload.
NatsAnswers = Callable[[bytes, bytes], list[tuple[bytes, bytes]]]
#: Returns bytes for a stream, the path of its call, and the port of the server.
GrpcAnswers = Callable[[int, bytes, int], bytes]


@dataclass(frozen=True, kw_only=True)
class HostileServer:
    """A server that attacks its clients.

    Attributes:
        name: Its name.
        wire: What it speaks.
        calls: Names of the calls of clients that it attacks (see ``client_victims.py``).
        greeting: Sent to a connection at once.
        pong: Answers PING of NATS; None for silence.
        answers: Answers requests of NATS.
        grpc: Answers calls.
        flood: Sent without end after the greeting.
        closes: Whether it closes the connection after the greeting.
        rss_mib: Memory that the client may take for it, in MiB.
    """

    name: str
    wire: Literal["nats", "grpc"]
    calls: tuple[str, ...]
    greeting: bytes
    pong: bytes | None = b"PONG\r\n"
    answers: NatsAnswers = lambda *_: []
    grpc: GrpcAnswers = lambda *_: b""
    flood: bytes = b""
    closes: bool = False
    rss_mib: float = 64


def _deliver(subject: bytes, sid: bytes, header: bytes, payload: bytes) -> bytes:
    if not header:
        return b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(payload), payload)
    return b"HMSG %b %b %d %d\r\n%b%b\r\n" % (
        subject,
        sid,
        len(header),
        len(header) + len(payload),
        header,
        payload,
    )


class _Session:
    """One connection of a client."""

    def __init__(self, row: HostileServer, port: int, writer: asyncio.StreamWriter) -> None:
        self._row = row
        self._port = port
        self._writer = writer
        self._data = b""
        self._subscriptions: list[tuple[re.Pattern[bytes], bytes]] = []
        self._decoder = Decoder()

    def feed(self, data: bytes) -> None:
        """Answer what came."""
        self._data += data
        if self._row.wire == "nats":
            while self._take_command():
                pass
        else:
            self._data = self._data.removeprefix(PREFACE)
            while len(self._data) >= 9 and len(self._data) >= (
                end := 9 + int.from_bytes(self._data[:3], "big")
            ):
                self._take_frame(self._data[:end])
                self._data = self._data[end:]

    def _take_command(self) -> bool:
        line, found, rest = self._data.partition(b"\r\n")
        if not found:
            return False
        if published := _PUBLISHED.fullmatch(line):
            size = int(published[3])
            if len(rest) < size + 2:
                return False
            self._answer(published[1], published[2] or b"", rest[:size])
            rest = rest[size + 2 :]
        elif line == b"PING" and self._row.pong is not None:
            self._writer.write(self._row.pong)
        elif line.startswith(b"SUB "):
            _, subject, *_, sid = line.split()
            pattern = re.escape(subject).replace(rb"\*", rb"[^.]+").replace(b">", b".+")
            self._subscriptions.append((re.compile(pattern), sid))
        self._data = rest
        return True

    def _answer(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        sids = [sid for pattern, sid in self._subscriptions if pattern.fullmatch(reply)]
        for header, answer in self._row.answers(subject, payload) if sids else []:
            self._writer.write(_deliver(reply, sids[-1], header, answer))

    def _take_frame(self, data: bytes) -> None:
        if data[3] == SETTINGS and not data[4]:
            self._writer.write(frame(SETTINGS, 1, 0))
        if data[3] == HEADERS:
            path = dict(self._decoder.decode(data[9:], raw=True)).get(b":path", b"")
            stream = int.from_bytes(data[5:9], "big")
            self._writer.write(self._row.grpc(stream, bytes(path), self._port))


async def _serve(
    row: HostileServer, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    session = _Session(row, port, writer)

    async def flood() -> None:
        chunk = row.flood * max(1, _CHUNK // len(row.flood))
        while True:
            writer.write(chunk)
            await writer.drain()

    writer.write(row.greeting)
    flooding = asyncio.create_task(flood()) if row.flood else None
    try:
        while not row.closes and (data := await reader.read(65_536)):
            session.feed(data)
    except ConnectionError:
        pass
    finally:
        if flooding is not None:
            flooding.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await flooding
        writer.close()


@contextmanager
def serving(row: HostileServer) -> Iterator[int]:
    """Serve a row of the table; yield the port."""
    loop, ready, ports = asyncio.new_event_loop(), threading.Event(), list[int]()
    over = asyncio.Event()

    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # A stream's task must not end as cancelled: asyncio would print a traceback.
            with contextlib.suppress(asyncio.CancelledError):
                await _serve(row, ports[0], reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await over.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
