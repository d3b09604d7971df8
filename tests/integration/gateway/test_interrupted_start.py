"""Starts of a gateway that fail, are cancelled or are closed leave nothing behind."""

from __future__ import annotations

import asyncio
import fcntl
import os
import types
from collections.abc import AsyncIterator, Coroutine, Generator
from pathlib import Path
from typing import Any, Final

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._cluster.registry import StreamRegistry
from liftenvelope.gateway._streams.reserved import ACTIVITY, CURSORS, reserved_record
from liftenvelope.gateway.embedded import EmbeddedNats
from liftenvelope.gateway.serving import Serving, embedded_nats
from liftenvelope.jetstream import JetStream
from liftenvelope.testing import run_nats_server
from tests.integration.certificates import Certificates
from tests.integration.conftest import connect, until

#: More steps than a start has.
_MOST_STEPS: Final = 1_000


class Interruption:
    """Ends a coroutine at one of its steps; a step is a wait of the event loop's task.

    Args:
        step: Number of the step, from 1.
        error: Raised in place of the step's result. Default: None, the task is cancelled.
    """

    def __init__(self, step: int, error: Exception | None = None) -> None:
        self._step = step
        self._error = error
        self._steps = 0

    @property
    def was_reached(self) -> bool:
        """True if the coroutine had that many steps."""
        return self._steps >= self._step

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run a coroutine to its end."""
        error: BaseException | None = None
        while True:
            try:
                waited_for = work.send(None) if error is None else work.throw(error)
            except StopIteration as stop:
                return stop.value
            error = None
            self._steps += 1
            if self._steps == self._step:
                if self._error is not None:
                    error = self._error
                    continue
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield waited_for
            except BaseException as exc:  # noqa: BLE001 - passed on to the coroutine
                error = exc


def open_files() -> set[tuple[str, str]]:
    """Return this process's open files and sockets."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except OSError:
            continue  # the folder's own descriptor
    return found


class Residue:
    """Compares what a process holds now with what it held at the start.

    Args:
        nc: The connection of the gateways.
    """

    def __init__(self, nc: NatsClient) -> None:
        self._nc = nc
        self._before = self._now()

    def _now(self) -> tuple[set[Any], set[Any], set[Any]]:
        return set(asyncio.all_tasks()), set(self._nc._subs), open_files()

    @property
    def left(self) -> list[set[Any]]:
        """Tasks, subscriptions and open files that were not there at the start."""
        return [now - before for now, before in zip(self._now(), self._before, strict=True)]

    async def is_gone(self) -> None:
        """Wait until nothing is left."""
        try:
            await until(lambda: not any(self.left))
        except TimeoutError:
            pytest.fail(f"left behind: {self.left}")


@pytest.fixture
async def nc() -> AsyncIterator[NatsClient]:
    """A connection to an empty server, on which the first start creates everything."""
    with run_nats_server(jetstream=True) as server:
        client = await connect(server.url)
        await client.jetstream().account_info()  # makes the subscription that nats-py keeps for answers
        yield client
        await client.close()


@pytest.fixture
def options(tmp_path: Path, nc: NatsClient) -> dict[str, Any]:
    """Options of a gateway with every part: TLS, a policy and a log to follow."""
    files = {name: tmp_path / name for name in ("policy_file", "nats_log")}
    for file in files.values():
        file.touch()
    serving = Serving(nats_url="", **Certificates(tmp_path).gateway_config)  # type: ignore[arg-type]
    return {"tls": serving.tls(), **files}


async def interrupted(gateway: Gateway, error: Exception | None, step: int) -> bool:
    """Start a gateway and interrupt it at a step; return False if the start had fewer steps."""
    interruption = Interruption(step, error)
    expected = asyncio.CancelledError if error is None else type(error)
    try:
        await asyncio.create_task(interruption.run(gateway.start()))
    except expected:
        assert interruption.was_reached
    else:
        await gateway.close()
    return interruption.was_reached


@pytest.mark.parametrize("error", [None, TransportError("injected")], ids=["cancelled", "failed"])
async def test_interrupted_start_leaves_nothing(
    nc: NatsClient, options: dict[str, Any], name: str, error: Exception | None
) -> None:
    residue = Residue(nc)
    for step in range(1, _MOST_STEPS):
        if not await interrupted(Gateway(nc, id=name, **options), error, step):
            break
        await residue.is_gone()
    else:
        pytest.fail("a start has too many steps")
    async with Gateway(nc, id=name) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
    await residue.is_gone()


async def test_cancelled_start_of_nats_server_ends_it_and_frees_its_folder(tmp_path: Path) -> None:
    files = open_files()
    for step in range(1, _MOST_STEPS):
        own, interruption = EmbeddedNats(tmp_path), Interruption(step)
        try:
            await asyncio.create_task(interruption.run(own.start()))
        except asyncio.CancelledError:
            # The server holds the lock as long as it lives.
            assert is_free(tmp_path / "lock")
            assert not open_files() - files
        else:
            await own.stop()
            assert not interruption.was_reached
            break
    assert step > 1


def is_free(lock: Path) -> bool:
    """Return whether no process has locked a file."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


async def test_cancelled_wait_for_a_folder_closes_its_lock(tmp_path: Path) -> None:
    async with embedded_nats(Serving(data_dir=str(tmp_path))):
        files = open_files()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(Interruption(1).run(EmbeddedNats(tmp_path).start()))
        assert not open_files() - files
        with pytest.raises(TransportError, match="another nats-server uses the folder"):
            await EmbeddedNats(tmp_path).start(timeout=0.01)
        assert not open_files() - files


async def test_closing_waits_for_start(nc: NatsClient) -> None:
    residue = Residue(nc)
    gateway = Gateway(nc)
    await asyncio.gather(gateway.start(), gateway.close())
    with pytest.raises(UsageError, match="not started"):
        _ = gateway.address
    await residue.is_gone()


async def test_second_start_is_refused_while_first_one_runs(nc: NatsClient) -> None:
    gateway = Gateway(nc)
    started, refused = await asyncio.gather(gateway.start(), gateway.start(), return_exceptions=True)
    assert started is gateway
    assert isinstance(refused, UsageError)
    await gateway.close()


@pytest.mark.parametrize("reserved", [CURSORS, ACTIVITY])
async def test_start_replaces_reserved_stream_that_dead_gateway_left_unfinished(
    nc: NatsClient, name: str, reserved: str
) -> None:
    async with JetStream(nc) as js:
        registry = StreamRegistry(js, lambda *_: None)
        await registry.start()
        await registry.create(reserved_record(reserved, "dead", 1))
        await registry.close()
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.set_cursor("reader", name, 0, 7)
        assert await client.fetch_cursor("reader", name, 0) == 7
        assert reserved in (await client.fetch_metadata()).streams
