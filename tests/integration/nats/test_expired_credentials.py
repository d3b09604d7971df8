"""Credentials that expire: nats-py closes the connection then, and its error_cb is not called."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope.errors import ConnectionClosedError, TransportError
from liftenvelope.jetstream import Api, JetStream
from liftenvelope.jetstream._stored import direct_message
from liftenvelope.nats import AckInbox
from liftenvelope.nats.closing import close_connection
from liftenvelope.nats.program_client import new_client
from liftenvelope.testing import run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect, until
from tests.integration.credentials_files import operator_of

_WHY = r"closed.*\(its last error: nats: user authentication expired\)"


async def expire(nc: Client, write: Callable[[int | None], None]) -> None:
    """Reconnect with credentials that expire after a second or two, however long the reconnect takes."""
    await nc.force_reconnect()
    while not nc.is_closed and not (nc.is_connected and nc.stats["reconnects"]):
        write(2)
        await asyncio.sleep(0.2)


async def test_errors_say_that_the_credentials_have_expired(tmp_path: Path) -> None:
    config, write = operator_of(tmp_path)
    write(None)

    async def no_answer(_: Msg) -> None:
        pass

    async def told(answer: Awaitable[object], kind: type[Exception] = TransportError) -> None:
        with pytest.raises(kind, match=_WHY):
            await answer

    with run_nats_server(config=config) as server:
        nc, other = [await connect(server.url, user_credentials=str(tmp_path / "user.creds")) for _ in "ab"]
        await other.subscribe("nobody.>", cb=no_answer)
        await handled(other)
        api = Api(nc, timeout=240, prefix="nobody")
        async with (
            asyncio.timeout(120),
            JetStream(nc).advisories() as advisories,
            AckInbox(nc, timeout=240) as inbox,
        ):
            pending = inbox.expect()
            await expire(nc, write)
            calls = [
                told(api.ask("nobody.call", b"", timeout=240)),
                told(direct_message(api, "s", {"seq": 1}, timeout=240)),
            ]
            await asyncio.gather(*calls)
            with pytest.raises(ConnectionClosedError, match=_WHY):
                async for _ in advisories:
                    pass
            await told(pending)
            await told(JetStream(nc).account_info())
        await other.close()


async def test_programs_that_reconnect_without_a_limit_take_the_next_credentials(tmp_path: Path) -> None:
    config, write = operator_of(tmp_path)
    write(None)

    async def quiet(_: Exception) -> None: ...

    with run_nats_server(config=config) as server:
        nc = new_client([server.url])
        async with asyncio.timeout(240):
            await nc.connect(
                server.url,
                user_credentials=str(tmp_path / "user.creds"),
                max_reconnect_attempts=-1,
                reconnect_time_wait=0,
                error_cb=quiet,
            )
            await expire(nc, write)
            before = nc.stats["reconnects"]
            await until(lambda: not nc.is_connected)
            write(None)
            await until(lambda: nc.is_connected and nc.stats["reconnects"] > before)
            await nc.flush()
        assert not nc.is_closed
        await close_connection(nc)


async def test_programs_go_on_when_their_credentials_are_whole_again(tmp_path: Path) -> None:
    config, write = operator_of(tmp_path)
    write(None)
    credentials = tmp_path / "user.creds"
    good = credentials.read_text()
    seed = good[(start := good.index("\nSU") + 1) : start + 20]
    seen: list[str] = []

    async def note(error: Exception) -> None:
        seen.append(str(error))

    with run_nats_server(config=config) as server:
        nc = new_client([server.url])
        async with asyncio.timeout(240):
            await nc.connect(
                server.url,
                user_credentials=str(credentials),
                max_reconnect_attempts=-1,
                reconnect_time_wait=0,
                error_cb=note,
            )
            for bad, text in (
                ("", "without them"),
                (good.replace(seed, "BAD"), "no valid seed in"),
                (good.replace(seed, "é"), "no valid seed in"),
            ):
                credentials.write_text(bad)
                await nc.force_reconnect()
                while sum(text in one for one in seen) < 3:
                    await asyncio.sleep(0.01)
                credentials.write_text(good)
                await until(lambda: nc.is_connected)
                await nc.flush()
                assert seed not in "".join(seen)
                seen.clear()
        await close_connection(nc)
