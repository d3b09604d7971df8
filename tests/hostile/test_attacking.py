"""The attacker itself: whether a flood is cut off must not depend on how fast the attacker is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

import pytest

from liftenvelope.rpc.limits import ServerLimits
from liftenvelope.rpc.server import Server, unary
from tests.hostile.attacking import Extent, attack
from tests.hostile.attacks import serves
from tests.hostile.http2_attacks import CHECK, HTTP2

#: Control frames per second that the victim allows: more than the attacker sends.
_RATE: Final = 800
_FLOODS: Final = ("reset of whole requests", "reset of unary calls")


async def _answer(_: bytes) -> bytes:
    return b""


@pytest.fixture(scope="module")
def victim() -> Iterator[str]:
    """Address of a server in a thread of its own: the attacker blocks its event loop."""
    listening: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        server = Server({CHECK: unary(_answer)}, limits=ServerLimits(control_frames_per_second=_RATE))
        async with server:
            address = await server.start()
            listening.set_result((address, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    address, loop, over = listening.result(60)
    yield address
    loop.call_soon_threadsafe(over.set)
    thread.join(60)


@pytest.mark.parametrize("name", _FLOODS)
async def test_flood_of_a_starved_attacker_is_cut_off(victim: str, name: str) -> None:
    row = next(row for row in HTTP2 if row.name == name)
    build = row.repeat
    assert build is not None

    def starved(number: int) -> bytes:
        time.sleep(1 / _RATE)
        return build(number)

    outcome = await attack(
        replace(row, repeat=starved), victim, None, Extent(seconds=0, pieces=50, connections=1)
    )
    assert outcome.closed == outcome.opened == 1


async def test_pieces_of_all_connections_are_counted(victim: str) -> None:
    row = next(row for row in HTTP2 if row.name == _FLOODS[0])
    row = replace(row, repeat=lambda _: b"", rounds=10, connections=20, must=serves())
    outcome = await attack(row, victim, None, Extent(seconds=0, pieces=10, connections=20))
    assert outcome.opened == 20
    assert outcome.pieces == 200
