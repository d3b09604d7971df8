"""Connection pool: connects to brokers on demand, shares connections and closes idle ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final

from liftenvelope._deadlines import Deadline
from liftenvelope.client._recent import note
from liftenvelope.client.options import server_name_of
from liftenvelope.consumers.locks import holding
from liftenvelope.errors import CallTimeoutError, TransportError, UsageError
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import CallNotProcessedError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from liftenvelope.client.options import Options

__all__ = ["Connections"]

#: Seconds for which an address is avoided after it could not be reached.
_AVOIDED: Final = 5.0
#: Addresses to remember: a cluster may name ever new ones.
_MOST_ADDRESSES: Final = 1_000


@dataclass(slots=True, eq=False)
class _Pooled:
    """A connection.

    Attributes:
        channel: The connection.
        was_idle: True if the last idle check found it without calls.
        is_lost: True if it was found to accept no more calls.
    """

    channel: Channel
    was_idle: bool = False
    is_lost: bool = False


class Connections:
    """Pool of up to ``max_conns_per_broker`` connections to each address.

    A call gets a connection without open calls if one is free or may still be made, because data for one call
    can delay the answer to another call on the same connection. If the pool is full, or no further connection
    could be made a short time ago, the connection with the fewest open calls is shared.

    Attributes:
        reconnects: Connections that were made in place of one that was lost.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pool: dict[str, list[_Pooled]] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._latencies: dict[str, float] = {}
        #: Loop time until which each address is avoided.
        self._avoided: dict[str, float] = {}
        #: Lost connections without a successor, by address.
        self._lost: Counter[str] = Counter()
        self.reconnects = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def channel(self, address: str, timeout: float | None = None) -> Channel:
        """Return a usable connection. Start the call before the next await: the connection may close later.

        Args:
            address: ``host:port`` of the broker, as the cluster advertises it.
            timeout: Seconds to connect, if a new connection is needed; at most ``connect_timeout``.

        Raises:
            CallNotProcessedError: No connection could be made, or the client is closed.
        """
        if (free := self._free(address)) is not None:
            return free
        if not self.is_avoided(address) or not self._usable(address):
            limit = self._options.connect_timeout if timeout is None else timeout
            await self._connect_in(Deadline(limit), address)
        pooled = self._usable(address)
        if self._closed or not pooled:
            raise CallNotProcessedError(
                "the client is closed" if self._closed else f"{address}: no connection"
            )
        return self._given(min(pooled, key=lambda one: one.channel.open_calls))

    def latency(self, address: str) -> float | None:
        """Return the shortest connection time to an address in seconds; None before the first connection."""
        return self._latencies.get(address)

    def is_avoided(self, address: str) -> bool:
        """Return True if a connection to an address failed in the last 5 seconds: prefer other brokers."""
        return self._avoided.get(address, 0.0) > asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Close every connection. Open calls end with TransportError. Closing twice has no effect."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        pools, self._pool = list(self._pool.values()), {}
        for pooled in pools:
            for one in pooled:
                self._spawn(one.channel.close())
        while self._closing:
            await asyncio.wait(self._closing)  # unlike gather(), it does not cancel the tasks if cancelled

    async def _connect_in(self, deadline: Deadline, address: str) -> None:
        """Make room for a call. Callers connect one at a time, and the deadline includes the wait."""
        text = f"{address}: no connection within {deadline.timeout:.3g} s"
        try:
            async with holding(self._lock(address), deadline, text):
                await self._make_room(address, deadline.left)
        except CallTimeoutError as exc:
            if not self._usable(address):
                raise CallNotProcessedError(str(exc)) from exc

    def _lock(self, address: str) -> asyncio.Lock:
        lock = self._making.get(address) or asyncio.Lock()
        note(self._making, address, lock, _MOST_ADDRESSES)
        return lock

    async def _make_room(self, address: str, timeout: float) -> None:
        """Connect, unless the pool is full or a connection has become free."""
        pooled = self._usable(address)
        if len(pooled) >= self._options.max_conns_per_broker or self._free(address) is not None:
            return
        if pooled and self.is_avoided(address):
            return
        try:
            await self._connect(address, timeout)
        except (TransportError, UsageError) as exc:  # UsageError: a broker advertises an invalid address
            # The end of a short wait of the caller says little about the broker.
            is_short = timeout < self._options.connect_timeout / 2
            if not (is_short and isinstance(exc.__cause__, TimeoutError)):
                self._avoid(address)
            if not self._usable(address):
                raise CallNotProcessedError(str(exc)) from exc

    def _avoid(self, address: str) -> None:
        now = asyncio.get_running_loop().time()
        self._avoided = {one: until for one, until in self._avoided.items() if until > now}
        self._avoided[address] = now + _AVOIDED

    async def _connect(self, address: str, timeout: float) -> None:
        if self._closed:
            return
        options = self._options
        begun, deadline = perf_counter(), Deadline(min(timeout, options.connect_timeout))
        channel = await Channel.connect(
            options.reachable(address),
            tls=options.context,
            server_name=server_name_of(options.tls_server_name, address),
            connect_timeout=deadline.timeout,
            keepalive=options.ping_interval,
            max_message=options.max_message_bytes,
            max_header_list=options.max_header_bytes,
            window=options.window,
        )
        with ExitStack() as unless_it_serves:
            unless_it_serves.callback(lambda: self._spawn(channel.close()))
            await channel.wait_greeted(deadline.left)
            unless_it_serves.pop_all()
        taken = perf_counter() - begun
        note(self._latencies, address, min(taken, self._latencies.get(address, taken)), _MOST_ADDRESSES)
        self._avoided.pop(address, None)
        self._keep(address, channel)

    def _keep(self, address: str, channel: Channel) -> None:
        if self._closed:  # in the meantime
            self._spawn(channel.close())
            return
        if self._lost[address]:
            self._lost[address] -= 1
            self.reconnects += 1
        self._pool.setdefault(address, []).append(_Pooled(channel))
        self._look_later()

    def _usable(self, address: str) -> list[_Pooled]:
        """Return the connections that accept calls; close unusable ones once their open calls have ended."""
        pooled = self._pool.get(address, [])
        for one in [one for one in pooled if not one.channel.is_usable]:
            note(self._lost, address, self._lost[address] + (not one.is_lost), _MOST_ADDRESSES)
            one.is_lost = True
            if not one.channel.open_calls:
                pooled.remove(one)
                self._spawn(one.channel.close())
        return [one for one in pooled if one.channel.is_usable]

    def _free(self, address: str) -> Channel | None:
        idle = (one for one in self._usable(address) if not one.channel.open_calls)
        found = next(idle, None)
        return None if found is None else self._given(found)

    def _given(self, pooled: _Pooled) -> Channel:
        """Mark a connection as used, also if its call ends before the next idle check."""
        pooled.was_idle = False
        return pooled.channel

    def _look_later(self) -> None:
        if self._sweep is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(self._options.keep_alive_time / 2, self._close_idle)

    def _close_idle(self) -> None:
        """Close connections found idle by two checks in a row, half of ``keep_alive_time`` apart."""
        self._sweep = None
        self._pool = {address: pooled for address, pooled in self._pool.items() if pooled}
        for address in list(self._pool):
            for one in self._usable(address):
                is_idle = not one.channel.open_calls
                if is_idle and one.was_idle:
                    self._pool[address].remove(one)
                    self._spawn(one.channel.close())
                one.was_idle = is_idle
        if any(self._pool.values()):
            self._look_later()

    def _spawn(self, closing: Awaitable[None]) -> None:
        task = asyncio.ensure_future(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
