"""Relay behind the fault proxy: carries connections in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from liftenvelope.rpc.address import Address

__all__ = ["DIRECTIONS", "Direction", "Relay", "RelayLane", "family_of"]

Direction: TypeAlias = Literal["to_server", "to_client"]

DIRECTIONS: Final[tuple[Direction, ...]] = ("to_server", "to_client")

# Small, so that a stall takes effect soon, even if the receiver is slow.
_CHUNK: Final = 16 * 1024
# Limit on the data held for a delayed connection, in chunks. Beyond it the sender is held back, as a real
# wire would.
_QUEUE_CHUNKS: Final = 1024
# Seconds that a truncated connection stays half open for its receiver to read the data.
_LINGER: Final = 60.0


class _TruncatedError(Exception):
    """A connection has carried its last byte."""

    def __init__(self, direction: Direction) -> None:
        super().__init__(direction)
        self.direction = direction


class RelayLane:
    """Faults for the bytes in one direction, on every connection."""

    def __init__(self, direction: Direction) -> None:
        self.direction = direction
        self.delay = 0.0
        self.open = asyncio.Event()
        self.open.set()
        #: Bytes to let through before the connection that carries the last of them is cut; None for no limit.
        self.budget: int | None = None
        self.forwarded = 0

    def hold(self, seconds: float) -> None:
        """Set the delay of data that arrives from now on."""
        self.delay = seconds

    def limit(self, budget: int) -> None:
        """Let at most ``budget`` more bytes through."""
        self.budget = budget

    def allowance(self, size: int) -> int:
        """Return the number of the ``size`` bytes that may go through."""
        return size if self.budget is None else min(size, self.budget)

    def passed(self, size: int) -> bool:
        """Record that bytes went through; return True if they were the last."""
        self.forwarded += size
        if self.budget is None:
            return False
        self.budget -= size
        if self.budget > 0:
            return False
        self.budget = None
        return True


@dataclass(eq=False)
class _Link:
    """The two ends of one connection."""

    client: socket.socket
    server: socket.socket
    queues: dict[Direction, asyncio.Queue[tuple[float, bytes]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queues = {direction: asyncio.Queue(_QUEUE_CHUNKS) for direction in DIRECTIONS}

    def source(self, direction: Direction) -> socket.socket:
        return self.client if direction == "to_server" else self.server

    def sink(self, direction: Direction) -> socket.socket:
        return self.server if direction == "to_server" else self.client


def family_of(ip_address: str) -> socket.AddressFamily:
    """Return the address family of an IP address."""
    return socket.AF_INET6 if ":" in ip_address else socket.AF_INET


def _abort(connection: socket.socket) -> None:
    """Close a connection with a reset, so that the peer sees an error and not the end of the stream."""
    if connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


class Relay:
    """Listens, and relays each connection to the target through the two lanes.

    Not thread-safe: belongs to the event loop in which it was created.

    Args:
        target: The server.
        local_address: IP address from which to connect to it. Default: chosen by the system.
    """

    def __init__(self, target: Address, local_address: str | None = None) -> None:
        self._target = target
        self._local_address = local_address
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.lanes = {direction: RelayLane(direction) for direction in DIRECTIONS}
        self.connections = 0

    @property
    def open_connections(self) -> int:
        """Number of open connections."""
        return len(self._links)

    def listen(self, address: tuple[str, int]) -> None:
        """Accept connections at ``address``. Does nothing if already listening."""
        if self._listener is not None:
            return
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        # Not sock_accept: cancelled while a connection arrives, it loses that connection and fails in the
        # loop.
        self._loop.add_reader(listener, self._accept, listener)

    def refuse(self) -> None:
        """Accept no more connections. Open connections continue."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def cut(self) -> None:
        """Reset every connection."""
        await _cancel(list(self._links))

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # the connection is gone already
        self.connections += 1
        task = self._loop.create_task(self._carry(client))
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        # A callback, because a task that is cancelled before its first step runs no code of its own.
        task.add_done_callback(lambda _: _abort(client))

    async def _carry(self, client: socket.socket) -> None:
        """Relay one connection until it ends."""
        client.setblocking(False)
        server = None
        try:
            server = await self._connect()
            await self._relay(_Link(client, server))
        except OSError:
            # The target is down, or one end reset the connection: the callbacks reset the other end.
            pass
        finally:
            if server is not None:
                _abort(server)

    async def _connect(self) -> socket.socket:
        local = self._local_address
        families = socket.AF_UNSPEC if local is None else family_of(local)
        infos = await self._loop.getaddrinfo(*self._target, family=families, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = infos[0]
        server = socket.socket(family, kind, protocol)
        try:
            server.setblocking(False)
            if local is not None:
                server.bind((local, 0))
            await self._loop.sock_connect(server, address)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            server.close()
            raise
        return server

    async def _relay(self, link: _Link) -> None:
        link.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        steps = [step(link, lane) for lane in self.lanes.values() for step in (self._receive, self._send)]
        try:
            await _all(steps)
        except _TruncatedError as exc:
            await self._end_truncated(link, exc.direction)
        else:
            # Both ends have finished cleanly. A plain close, because a reset could overtake the last bytes.
            link.client.close()
            link.server.close()

    async def _receive(self, link: _Link, lane: RelayLane) -> None:
        data = b"-"
        while data:
            await lane.open.wait()
            data = await self._loop.sock_recv(link.source(lane.direction), _CHUNK)
            await link.queues[lane.direction].put((self._loop.time() + lane.delay, data))

    async def _send(self, link: _Link, lane: RelayLane) -> None:
        sink = link.sink(lane.direction)
        while True:
            due, data = await link.queues[lane.direction].get()
            await asyncio.sleep(due - self._loop.time())
            await lane.open.wait()
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            data = data[: lane.allowance(len(data))]
            await self._loop.sock_sendall(sink, data)
            if lane.passed(len(data)):
                raise _TruncatedError(lane.direction)

    async def _end_truncated(self, link: _Link, direction: Direction) -> None:
        """Reset the sender; end the receiver's stream plainly, as a reset could discard data."""
        _abort(link.source(direction))
        sink = link.sink(direction)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                sink.shutdown(socket.SHUT_WR)
                while await self._loop.sock_recv(sink, _CHUNK):
                    pass


async def _all(steps: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all concurrently until they end or one fails; stop the others before raising its error."""
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
