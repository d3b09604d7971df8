"""Carries an attack out: opens its connections, sends its bytes, counts what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from liftenvelope.rpc.limits import DEFAULT_LIMITS
from tests.hostile.attacks import Attack
from tests.hostile.frames import Answers

__all__ = ["Extent", "Outcome", "attack"]

#: Pieces sent at once, and the bytes that limit them. One salvo exceeds the burst of control frames that the
#: victim allows. A slow attacker that sent smaller ones would stay below the victim's sustained rate, and its
#: connection would rightly stay open.
_SALVO: Final = 2 * DEFAULT_LIMITS.control_frame_burst
_CHUNK: Final = 512 * 1024
#: Seconds that the victim has to take them or to close.
_PATIENCE: Final = 90.0
#: Pieces on one connection after which a flood that must be cut off has not been.
_TOO_MANY: Final = 400_000
_OPENING: Final = 100
#: Seconds of a paced attack in a slice.
_PACED: Final = 1.0


@dataclass(frozen=True)
class Extent:
    """Size of an attack.

    Attributes:
        seconds: How long connections are opened anew and floods go on. 0: each connection is opened once.
        pieces: How often at most to repeat a piece where the victim does not close.
        connections: Connections at once, at most.
    """

    seconds: float
    pieces: int
    connections: int


@dataclass
class Outcome:
    """Result of an attack.

    Attributes:
        opened: Connections that were opened.
        closed: Connections that the victim has closed, or refused in the handshake.
        pieces: Pieces that were sent.
        goaways, resets, statuses, http: What was answered, by code.
        longest: Length of the longest status text.
    """

    opened: int = 0
    closed: int = 0
    pieces: int = 0
    goaways: Counter[int] = field(default_factory=Counter)
    resets: Counter[int] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    http: Counter[int] = field(default_factory=Counter)
    longest: int = 0

    def add(self, answers: Answers) -> None:
        """Add what came back on one connection."""
        self.goaways += answers.goaways
        self.resets += answers.resets
        self.statuses += answers.statuses
        self.http += answers.http
        self.longest = max(self.longest, answers.longest)


class _Connection(asyncio.Protocol):
    """One connection of an attacker."""

    def __init__(self, row: Attack) -> None:
        self._row = row
        self.answers = Answers()
        self.closed = asyncio.Event()
        self.answered = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self._row.reads:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self._row.wire == "http2":
            self.answers.feed(data)
            if self.answers.statuses:
                self.answered.set()

    def connection_lost(self, exc: Exception | None) -> None:
        for event in (self.closed, self.answered, self._room):
            event.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def send(self, data: bytes, until: float) -> None:
        """Send bytes; wait until there is room for more, the connection is closed, or the time is up."""
        self.transport.write(data)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._room.wait(), max(0.01, until - time.monotonic()))

    @property
    def is_stuck(self) -> bool:
        """True if the victim accepts no more bytes."""
        return not self._room.is_set()

    @property
    def reaction(self) -> asyncio.Event | None:
        """Event that the victim must cause, None if it need not react. An answer does not replace a close."""
        if self._row.must.close:
            return self.closed
        return self.answered if self._row.must.statuses else None

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for an event, with a deadline."""
        # An end that nobody reads is not seen: its answers may be in the way.
        self.transport.resume_reading()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), _PATIENCE)


async def attack(row: Attack, address: str, tls: ssl.SSLContext | None, extent: Extent) -> Outcome:
    """Carry an attack out.

    Args:
        row: The attack.
        address: ``host:port`` of the victim.
        tls: How to speak TLS with it, None for TCP.
        extent: How much of it.
    """
    outcome, over = Outcome(), time.monotonic() + extent.seconds
    places = asyncio.Semaphore(_OPENING)
    slots = min(row.connections, extent.connections)
    async with asyncio.TaskGroup() as group:
        for _ in range(slots):
            group.create_task(_slot(row, address, tls, extent, over, outcome, places))
    return outcome


async def _slot(
    row: Attack,
    address: str,
    tls: ssl.SSLContext | None,
    extent: Extent,
    over: float,
    outcome: Outcome,
    places: asyncio.Semaphore,
) -> None:
    """Attack on one connection after the other."""
    host, port = address.rsplit(":", 1)
    loop = asyncio.get_running_loop()
    while True:
        connection = _Connection(row)
        outcome.opened += 1
        try:
            async with places:
                await loop.create_connection(
                    partial(_same, connection),
                    host,
                    int(port),
                    ssl=tls,
                    ssl_handshake_timeout=None if tls is None else _PATIENCE,
                )
            await _use(row, connection, extent, over, outcome)
            connection.transport.abort()
        except (OSError, ssl.SSLError):
            connection.closed.set()
        outcome.closed += connection.closed.is_set()
        outcome.add(connection.answers)
        if time.monotonic() >= over:
            return
        await asyncio.sleep(0.01)  # no busy loop where connections are refused


def _same(connection: _Connection) -> _Connection:
    return connection


async def _use(row: Attack, connection: _Connection, extent: Extent, over: float, outcome: Outcome) -> None:
    """Send what there is to send on one connection, and wait for what the victim must do."""
    await connection.send(row.begin, over + _PATIENCE)
    if row.repeat is not None:
        # In two steps: the other connections add theirs while this one awaits.
        sent = await _repeat(row, connection, extent, over)
        outcome.pieces += sent
    if connection.reaction is not None:
        await connection.wait(connection.reaction)
    elif row.repeat is None or row.pace:
        # It is held for the time of the attack.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(connection.closed.wait(), max(0.5, over - time.monotonic()))


async def _repeat(row: Attack, connection: _Connection, extent: Extent, over: float) -> int:
    """Send piece after piece; return how many."""
    assert row.repeat is not None
    most, least = row.rounds or _TOO_MANY, extent.pieces
    if row.pace:
        least = min(least, int(_PACED / row.pace))
    reaction = connection.reaction
    patience = over if extent.seconds and reaction is None else time.monotonic() + _PATIENCE
    sent = 0
    while sent < most and not connection.closed.is_set() and time.monotonic() < patience:
        if sent >= least and time.monotonic() >= over and (reaction is None or reaction.is_set()):
            break
        pieces = bytearray()
        end = min(most, sent + (1 if row.pace else _SALVO))
        while sent < end and len(pieces) < _CHUNK:
            pieces += row.repeat(sent)
            sent += 1
        await connection.send(bytes(pieces), patience)
        if connection.is_stuck:
            break
        await asyncio.sleep(row.pace)
    return sent
